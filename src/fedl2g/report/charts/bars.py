"""Bars: a row per method with one or more linear bars from zero, each with its number."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from fedl2g.report.charts.parts import Panel, Row, colour, rows_by_method, switchable, titled, values, width
from fedl2g.report.charts.theme import Look

THICK = 13


def bars(rows: Sequence[Row], look: Look, *, x: str, form: str, title: str = "", pixels: int = 430) -> Panel:
    """Bars of rows with `method`, `part` and `value`; parts of a method stand below each other, paler."""
    parts = list(dict.fromkeys(row["part"] for row in rows))
    place = rows_by_method(look, THICK * len(parts))
    offset = alt.YOffset("part:N", sort=parts, scale=alt.Scale(paddingInner=0.12))
    across = alt.X("value:Q", title=x, axis=alt.Axis(tickCount=5), scale=alt.Scale(zero=True, nice=True))
    legend = alt.Legend(orient="top", symbolType="square", symbolFillColor=look.ink, title=None)
    pale = alt.Opacity(
        "part:O",
        sort=parts,
        scale=alt.Scale(domain=parts, range=[1, 0.55, 0.3][: len(parts)]),
        legend=legend if len(parts) > 1 else None,
    )
    tooltip = [
        alt.Tooltip("method:N"),
        *([alt.Tooltip("part:N", title="what")] if len(parts) > 1 else []),
        alt.Tooltip("value:Q", title=x, format=form),
    ]
    base = alt.Chart().encode(x=across, y=place["y"], yOffset=offset)
    bar = base.mark_bar(cornerRadiusEnd=2).encode(color=colour(look, legend=False), opacity=pale, tooltip=tooltip)
    number = base.mark_text(align="left", baseline="middle", dx=4).encode(text=alt.Text("value:Q", format=form))
    chart = alt.layer(bar, number, data=values(rows)).properties(width=width(look, pixels), height=place["height"])
    return titled(switchable(chart, look), title)
