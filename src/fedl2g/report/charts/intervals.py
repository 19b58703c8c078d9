"""Intervals: a row per method with a mean, its confidence interval and the seeds it comes from."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from fedl2g.report.charts.parts import Panel, Row, colour, rows_by_method, switchable, titled, values, width
from fedl2g.report.charts.theme import Look


def intervals(
    rows: Sequence[Row],
    look: Look,
    *,
    x: str,
    form: str = ".2%",
    zero: bool = False,
    title: str = "",
    pixels: int = 430,
) -> Panel:
    """The mean as a dot, the interval as a bar where there is one, every seed as a tick.

    Rows have `method`, `mean`, `low` and `high` (null: no interval), `seeds` (their values) and `text` (a
    sentence). `zero` draws a line at no difference.
    """
    place = rows_by_method(look, 16)
    scale = alt.Scale(zero=False, nice=True)
    axis = alt.Axis(format="~%" if form.endswith("%") else "+~f", tickCount=6)
    base = alt.Chart().encode(y=place["y"])
    tooltip = [
        alt.Tooltip("method:N"),
        alt.Tooltip("mean:Q", format=form),
        alt.Tooltip("low:Q", title="interval from", format=form),
        alt.Tooltip("high:Q", title="interval to", format=form),
        alt.Tooltip("text:N", title="in words"),
    ]
    ticks = base.transform_flatten(["seeds"]).mark_tick(size=14, thickness=1.4, opacity=0.55)
    layers = [ticks.encode(x=alt.X("seeds:Q", title=x, scale=scale, axis=axis), color=colour(look, legend=False))]
    if any(row["low"] is not None for row in rows):
        span = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=3, strokeCap="round")
        layers.append(
            span.encode(
                x=alt.X("low:Q", title=x, scale=scale), x2="high:Q", color=colour(look, legend=False), tooltip=tooltip
            )
        )
    dot = base.mark_circle(size=90, opacity=1)
    layers.append(
        dot.encode(x=alt.X("mean:Q", title=x, scale=scale), color=colour(look, legend=False), tooltip=tooltip)
    )
    if zero:
        line = alt.Chart(values([{"zero": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.7).encode(x="zero:Q")
        layers.insert(0, line)
    chart = alt.layer(*layers, data=values(rows)).properties(width=width(look, pixels), height=place["height"])
    return titled(switchable(chart, look), title)
