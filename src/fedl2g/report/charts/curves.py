"""Curves: a line per method over rounds (or megabytes), a band over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from fedl2g.report.charts.parts import ZOOM, Panel, Row, colour, dash, shown, switchable, titled, values, width
from fedl2g.report.charts.theme import Look

Band = Mapping[str, Sequence[Any]]
"""A line: x, y, and low and high of its band."""
MOST_TICKS = 6


def curves(
    lines: Mapping[str, Band],
    look: Look,
    *,
    x: str,
    y: str,
    form: str,
    title: str = "",
    zero: bool = False,
    logarithmic: str = "",
    levels: Mapping[str, Row] | None = None,
    legend: bool = True,
    size: tuple[int, int] = (430, 280),
) -> Panel:
    """A line for each label with its band; `form` is the d3 format of a value, `zero` draws a line there, `logarithmic`
    names the axes ("x", "y", "xy") that are. `levels`, rows with y, low and high, go all the way across.

    A page's reader can drag to zoom, switch methods off and see all values of a round under the pointer.
    """
    kept = {label: line for label, line in lines.items() if len(line["x"])}
    rows = [{"method": label, "key": f"line{n}", **_columns(line)} for n, (label, line) in enumerate(kept.items())]
    across = alt.X(
        "x:Q",
        title=x,
        axis=alt.Axis(grid=False, tickCount=_tick_count([at for line in kept.values() for at in line["x"]], look)),
        scale=alt.Scale(type="log" if "x" in logarithmic else "linear", nice=False, zero=False),
    )
    height = alt.Scale(type="log") if "y" in logarithmic else alt.Scale(zero=zero, nice=True)
    up = alt.Y("y:Q", title=y, axis=alt.Axis(format=_ticks(form)), scale=height)
    tint, stroke = colour(look, legend=legend), dash(look, legend=legend)
    layers: list[Any] = []
    if any(row["low"] != row["high"] for row in rows):
        band = alt.Chart().mark_area(opacity=0.14 if len(rows) <= 6 else 0.07)
        layers.append(band.encode(x=across, y=alt.Y("low:Q", title=y), y2="high:Q", color=tint))
    if zero:
        level = alt.Chart(values([{"y": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.6)
        layers.append(level.encode(y="y:Q"))
    layers.append(alt.Chart().mark_line(strokeWidth=1.8).encode(x=across, y=up, color=tint, strokeDash=stroke))
    if levels:
        layers += _levels(levels, look, up, tint, stroke)
    if any(len(row["x"]) == 1 for row in rows):  # of which there is no line
        single = alt.Chart().transform_joinaggregate(points="count()", groupby=["method"])
        single = single.transform_filter("datum.points == 1")
        layers.append(single.mark_point(filled=True, size=40).encode(x=across, y=up, color=tint))
    if look.page:
        layers += _reading(list(kept), x, form, across)
    chart = (
        alt.layer(*layers, data=values(rows))
        .transform_flatten(["x", "y", "low", "high"])
        .properties(width=width(look, size[0]), height=size[1])
    )
    if look.page:
        chart = chart.transform_filter(f"{ZOOM} === null || inrange(datum.x, {ZOOM})")
        chart = chart.add_params(alt.param(name=ZOOM, value=None))
    return titled(switchable(chart, look), title)


def _levels(levels: Mapping[str, Row], look: Look, up: alt.Y, tint: alt.Color, stroke: alt.StrokeDash) -> list[Any]:
    """Lines and bands without ends: a method that has one does not widen the axis for the others."""
    chart = alt.Chart(values([{"method": label, **level} for label, level in levels.items()]))
    if look.page:
        chart = chart.transform_filter(shown())
    band = chart.mark_rect(opacity=0.14).encode(y=alt.Y("low:Q"), y2="high:Q", color=tint)
    return [band, chart.mark_rule(strokeWidth=1.8).encode(y=up, color=tint, strokeDash=stroke)]


def _columns(line: Band) -> dict[str, list[Any]]:
    low, high = line.get("low", line["y"]), line.get("high", line["y"])
    return {"x": list(line["x"]), "y": list(line["y"]), "low": list(low), "high": list(high)}


def _tick_count(places: Sequence[float], look: Look) -> Any:
    """About six ticks; of rounds no more than there are, so that none stands at half a round."""
    if not all(float(at).is_integer() for at in places):
        return MOST_TICKS
    if look.page:  # where a reader's zoom changes the range
        return alt.ExprRef(expr=f"max(1, min({MOST_TICKS}, span(domain('x'))))")
    return max(1, min(MOST_TICKS, int(max(places, default=0) - min(places, default=0))))


def _ticks(form: str) -> str:
    """The format of ticks, which need no trailing zeros."""
    return "~%" if form.endswith("%") else "~g" if form == "~g" else "~f"


def _reading(labels: Sequence[str], x: str, form: str, across: alt.X) -> list[Any]:
    """The layers of a page: a rule at the nearest round with every value, and a brush that the page zooms with."""
    # Every text is a JSON string inside the expression: labels come from run directories.
    parts = [
        f"{json.dumps(label)}: isValid(datum.line{n}) ? format(datum.line{n}, {json.dumps(form)}) : datum.nothing"
        for n, label in enumerate(labels)
    ]
    text = f"{{title: {json.dumps(x + ' ')} + format(datum.x, ',~r'), {', '.join(parts)}}}"
    near = alt.selection_point(
        name="near", nearest=True, on="pointermove", clear="pointerout", encodings=["x"], empty=False
    )
    brush = alt.selection_interval(name="brush", encodings=["x"])
    rule = (
        alt.Chart()
        .transform_pivot("key", value="y", groupby=["x"])
        # The tip is an object: the page shows it as a small table, without what is not there. The brush's range is
        # that of `at`: of a field named as its channel, Vega-Lite cannot tell pixels from values.
        .transform_calculate(tip=text, at="datum.x")
        # What is under the pointer is the rule, or the region nearest to it, whose datum is the rule.
        .mark_rule(tooltip=alt.ExprRef(expr="datum.tip || datum.datum.tip"))
        .encode(x=_renamed(across, "at"), opacity=alt.condition(near, alt.value(0.4), alt.value(0)))
        .add_params(near, brush)
    )
    return [rule]


def _renamed(channel: alt.X, field: str) -> alt.X:
    """The same channel of another field."""
    found: alt.X = channel.copy()
    found.shorthand = f"{field}:Q"
    return found
