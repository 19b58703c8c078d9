"""Pieces that charts share: rows as data, the channels of a method, what a page can switch off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt

from fedl2g.report.charts.theme import Look

Row: TypeAlias = Mapping[str, Any]
Panel: TypeAlias = alt.LayerChart | alt.FacetChart  # what altair's own methods return for layers
Panels: TypeAlias = Panel | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart

HIDDEN = "hidden"  # the labels that the page's reader switched off
OWN_LEGENDS = alt.Resolve(
    scale=alt.ScaleResolveMap(
        color="independent", strokeDash="independent", shape="independent", opacity="independent", yOffset="independent"
    )
)
ZOOM = "zoom"  # the range of x that the page's reader chose; null: all


def values(rows: Iterable[Row]) -> alt.InlineData:
    """Rows as data inside the chart."""
    return alt.InlineData(values=[dict(row) for row in rows])


def columns(**lists: list[Any]) -> alt.InlineData:
    """Columns as data inside the chart, to be flattened there: a fraction of the size of rows."""
    return alt.InlineData(values=[lists])


def by_method(chart: Panel, rows: Iterable[Row], fields: Sequence[str]) -> Panel:
    """The chart with these fields of the rows as its data: columns by method, flattened there."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        one = found.setdefault(row["method"], {"method": row["method"], **{name: [] for name in fields}})
        for name in fields:
            one[name].append(row[name])
    return chart.properties(data=values(found.values())).transform_flatten(list(fields))


def width(look: Look, pixels: int) -> Any:
    """The width of a chart: that of its card on a page, the given one in a file."""
    return "container" if look.page else pixels


def shown() -> str:
    """The filter that leaves out methods that are switched off."""
    return f"indexof({HIDDEN}, datum.method) < 0"


def switchable(chart: Panel, look: Look) -> Panel:
    """The chart without the methods that the page's reader switched off; unchanged in a file."""
    if not look.page:
        return chart
    return chart.transform_filter(shown()).add_params(alt.param(name=HIDDEN, value=[]))


def titled(chart: Panel, title: str) -> Panel:
    """The chart with a title, if there is one."""
    return chart.properties(title=title) if title else chart


def beside(panels: Sequence[Panel], *, own_legends: bool = False) -> Panels:
    """Panels side by side, with one legend for all of them or with one each."""
    if len(panels) == 1:
        return panels[0]
    return alt.hconcat(*panels, resolve=OWN_LEGENDS) if own_legends else alt.hconcat(*panels)


def colour(look: Look, *, legend: bool = True, symbol: str | None = "stroke") -> alt.Color:
    """The colour of a method; `symbol` is what the legend shows of it."""
    return alt.Color("method:N", scale=method_colours(look), legend=_legend(look, legend, symbol), title=None)


def shape(look: Look) -> alt.Shape:
    """The shape of a method; with `colour` it makes one legend."""
    return alt.Shape("method:N", scale=alt.Scale(domain=look.labels), legend=_legend(look, True, None), title=None)


def method_colours(look: Look) -> alt.Scale:
    """The scale from methods to colours."""
    return alt.Scale(domain=look.labels, range=[style.colour for style in look.styles.values()])


def dash(look: Look, *, legend: bool = True) -> alt.StrokeDash:
    """The dashes of a method; with `colour` they make one legend."""
    scale = alt.Scale(domain=look.labels, range=[list(style.dash) for style in look.styles.values()])
    return alt.StrokeDash("method:N", scale=scale, legend=_legend(look, legend, "stroke"), title=None)


def _legend(look: Look, wanted: bool, symbol: str | None) -> alt.Legend | None:
    if not wanted or (look.page and not look.legend):
        return None
    longest = max(map(len, look.labels), default=0)
    columns = 4 if longest <= 12 else 3 if longest <= 18 else 2  # as wide as a panel
    return alt.Legend(
        symbolType=symbol or alt.Undefined,
        symbolSize=500 if symbol == "stroke" else 90,
        symbolStrokeWidth=2.2,
        symbolOpacity=1,
        orient="bottom",
        columns=columns,
    )


def rows_by_method(look: Look, each: int) -> dict[str, Any]:
    """The y channel and height of a chart with a row per method, whose label stands above the row."""
    return label_above("method", look.labels, each)


def label_above(field: str, labels: list[str], each: int, room: int = 20) -> dict[str, Any]:
    """The y channel and height of a chart with a row of `each` pixels per label.

    The label stands above its row: beside it, it would leave no room for the row on a phone.
    """
    step = each + room
    axis = alt.Axis(
        title=None, domain=False, ticks=False, grid=False, labelAlign="left", labelPadding=-2, labelLimit=420,
        labelOffset=-(each / 2 + 8), labelFontSize=12, labelOverlap=False,
    )  # fmt: skip
    scale = alt.Scale(paddingInner=room / step, paddingOuter=room / step)
    return {"y": alt.Y(f"{field}:N", sort=labels, axis=axis, scale=scale), "height": {"step": step, "for": "position"}}
