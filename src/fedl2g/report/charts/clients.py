"""Charts of individual clients: how accurate each is, and whom a method helped or harmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt

from fedl2g.report.charts.parts import (
    Panel,
    Row,
    by_method,
    colour,
    label_above,
    method_colours,
    rows_by_method,
    shape,
    switchable,
    titled,
    values,
    width,
)
from fedl2g.report.charts.theme import Look

CHANGES = ("gains", "unchanged", "loses")
_WHO = (
    alt.Tooltip("method:N"),
    alt.Tooltip("client:N"),
    alt.Tooltip("seed:N"),
    alt.Tooltip("architecture:N"),
    alt.Tooltip("samples:Q", title="training samples", format=","),
)
# Clients of a row are moved up and down, by the golden ratio, so that equal values do not hide each other.
_JITTER = "2 * ((datum.client * 0.618034) % 1) - 1"


def spread(rows: Sequence[Row], look: Look, *, title: str = "", pixels: int = 430) -> Panel:
    """A dot per client and seed, with a box over the middle half and a tick at the median.

    Rows have `method`, `client`, `seed`, `architecture`, `samples` and `accuracy`.
    """
    place = rows_by_method(look, 24)
    name = "test accuracy of a client"
    across = alt.X("accuracy:Q", title=name, axis=alt.Axis(format="~%", tickCount=6), scale=_near())
    base = alt.Chart().encode(y=place["y"])
    middle = base.transform_aggregate(
        low="q1(accuracy)", high="q3(accuracy)", half="median(accuracy)", groupby=["method"]
    )
    box = middle.mark_bar(opacity=0.18, cornerRadius=2).encode(
        x=alt.X("low:Q", title=name, scale=_near()), x2="high:Q", color=colour(look, legend=False)
    )
    median = middle.mark_tick(thickness=2, size=24, color=look.ink).encode(
        x=alt.X("half:Q", scale=_near()), tooltip=[alt.Tooltip("method:N"), _value("half", "median")]
    )
    dots = base.mark_circle(size=34, opacity=0.75).encode(
        x=across, yOffset=_jitter(), color=colour(look, legend=False), tooltip=[*_WHO, _value("accuracy", "accuracy")]
    )
    chart = _of_clients(alt.layer(box, median, dots), rows, "accuracy").transform_calculate(jitter=_JITTER)
    return titled(switchable(chart.properties(width=width(look, pixels), height=place["height"]), look), title)


def differences(rows: Sequence[Row], look: Look, *, against: str, title: str = "", pixels: int = 430) -> Panel:
    """A dot per client at its accuracy minus that of the baseline: right of zero it was helped.

    Rows have `method`, `client`, `seed`, `architecture`, `samples`, `difference` (in points) and `change`, one
    of `CHANGES`. A filled dot is a change beyond the noise of the client's own test samples.
    """
    place = rows_by_method(look, 24)
    across = alt.X(
        "difference:Q",
        title=f"accuracy minus {against}, points",
        axis=alt.Axis(format="+~f", tickCount=6),
        scale=_near(),
    )
    dots = (
        alt.Chart()
        .mark_point(size=40, strokeWidth=1.4, filled=False)
        .encode(
            x=across,
            y=place["y"],
            yOffset=_jitter(),
            color=colour(look, legend=False),
            fill=alt.Fill("method:N", scale=method_colours(look), legend=None),
            fillOpacity=alt.condition("datum.change === 'unchanged'", alt.value(0), alt.value(0.85)),
            tooltip=[*_WHO, _value("difference", "difference, points", "+.2f"), alt.Tooltip("change:N")],
        )
    )
    chart = _of_clients(alt.layer(_zero("x"), dots), rows, "difference", "change").transform_calculate(jitter=_JITTER)
    return titled(switchable(chart.properties(width=width(look, pixels), height=place["height"]), look), title)


_BAR = 11  # pixels of a bar in `by_group`
_NAME = 110  # and the most for the name of its method


def by_group(rows: Sequence[Row], look: Look, *, against: str, title: str = "", pixels: int = 430) -> Panel:
    """The mean difference of the clients of each `group` (an architecture), a bar per group and method.

    Rows have `method`, `group`, `difference` (the mean, in points) and `clients` (how many it is the mean of).
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    methods = {row["method"] for row in rows}
    place = label_above("group", groups, _BAR * len(methods))
    room = min(max(len(method) for method in methods) * 5 + 6, _NAME)
    across = alt.X(
        "difference:Q",
        title=f"mean accuracy minus {against}, points",
        axis=alt.Axis(format="+~f", tickCount=6),
        scale=alt.Scale(padding=room),
    )
    base = alt.Chart().encode(
        y=place["y"], yOffset=alt.YOffset("method:N", sort=look.labels, scale=alt.Scale(paddingInner=0.15))
    )
    bar = base.mark_bar(cornerRadiusEnd=2).encode(
        x=across,
        color=colour(look, symbol="square"),
        tooltip=[
            alt.Tooltip("group:N", title="clients with"),
            alt.Tooltip("method:N"),
            _value("difference", "mean difference, points", "+.2f"),
            alt.Tooltip("clients:Q", title="clients and seeds"),
        ],
    )
    # The name stands on the other side of zero, where it covers no bar.
    sides: tuple[tuple[str, Literal["left", "right"], int], ...] = (
        ("datum.difference < 0", "left", 4),
        ("datum.difference >= 0", "right", -4),
    )
    names = [
        base.transform_filter(side)
        .mark_text(align=align, baseline="middle", dx=dx, fontSize=9, limit=_NAME)
        .encode(x=alt.datum(0), text="method:N")
        for side, align, dx in sides
    ]
    chart = alt.layer(bar, *names, _zero("x"), data=values(rows))
    return titled(switchable(chart.properties(width=width(look, pixels), height=place["height"]), look), title)


def by_size(rows: Sequence[Row], look: Look, *, against: str, title: str = "", pixels: int = 430) -> Panel:
    """The difference of each client against its number of training samples; rows as of `differences`."""
    held = [row["samples"] for row in rows if row["samples"] is not None]
    dots = (
        alt.Chart()
        .mark_point(size=44, opacity=0.85, strokeWidth=1.6)
        .encode(
            x=alt.X(
                "samples:Q",
                title="training samples of the client",
                axis=alt.Axis(tickCount=max(1, min(6, max(held, default=0) - min(held, default=0)))),  # no half sample
                scale=alt.Scale(zero=False, nice=False, padding=10),
            ),
            y=alt.Y(
                "difference:Q",
                title=f"accuracy minus {against}, points",
                axis=alt.Axis(format="+~f", tickCount=6),
                scale=alt.Scale(nice=True, padding=6),
            ),
            color=colour(look, symbol=None),
            shape=shape(look),
            tooltip=[*_WHO, _value("difference", "difference, points", "+.2f"), alt.Tooltip("change:N")],
        )
    )
    chart = _of_clients(alt.layer(_zero("y"), dots), rows, "difference", "change")
    return titled(switchable(chart.properties(width=width(look, pixels), height=260), look), title)


def _of_clients(chart: Panel, rows: Sequence[Row], *fields: str) -> Panel:
    return by_method(chart, rows, ("client", "seed", "architecture", "samples", *fields))


def _near() -> alt.Scale:
    return alt.Scale(zero=False, nice=True)


def _jitter() -> alt.YOffset:
    return alt.YOffset("jitter:Q", scale=alt.Scale(domain=[-1.6, 1.6]))


def _value(field: str, title: str, form: str = ".2%") -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", title=title, format=form)


def _zero(channel: str) -> alt.Chart:
    line = alt.Chart(values([{"zero": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.7)
    found: alt.Chart = line.encode(x="zero:Q") if channel == "x" else line.encode(y="zero:Q")
    return found
