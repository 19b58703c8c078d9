"""Charts of the single clients: how accurate each is, and whom a method helped or harmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from fedl2g.report.charts.parts import Row, colour, rows_by_method, switchable, titled, values, width
from fedl2g.report.charts.theme import HARMED, HELPED, NEUTRAL, Look

_WHO = (
    alt.Tooltip("method:N"),
    alt.Tooltip("client:N"),
    alt.Tooltip("seed:N"),
    alt.Tooltip("architecture:N"),
    alt.Tooltip("samples:Q", title="training samples"),
)


def spread(rows: Sequence[Row], look: Look, *, title: str = "", pixels: int = 430) -> alt.LayerChart:
    """A dot per client and seed, with a box over the middle half and a tick at the median.

    Rows have `method`, `client`, `seed`, `architecture`, `samples`, `accuracy` and `jitter` (between -1 and 1).
    """
    place = rows_by_method(look, 24)
    across = alt.X("accuracy:Q", title="test accuracy of a client", axis=alt.Axis(format="~%"), scale=_near())
    base = alt.Chart().encode(y=place["y"])
    middle = base.transform_aggregate(
        low="q1(accuracy)", high="q3(accuracy)", half="median(accuracy)", groupby=["method"]
    )
    box = middle.mark_bar(opacity=0.18, cornerRadius=2).encode(
        x=alt.X("low:Q", title="test accuracy of a client", scale=_near()),
        x2="high:Q",
        color=colour(look, legend=False),
    )
    median = middle.mark_tick(thickness=2, size=24, color=look.ink).encode(
        x=alt.X("half:Q", scale=_near()), tooltip=[alt.Tooltip("method:N"), _percent("half", "median")]
    )
    dots = base.mark_circle(size=34, opacity=0.75).encode(
        x=across,
        yOffset=alt.YOffset("jitter:Q", scale=alt.Scale(domain=[-1.6, 1.6])),
        color=colour(look, legend=False),
        tooltip=[*_WHO, _percent("accuracy", "accuracy")],
    )
    chart = alt.layer(box, median, dots, data=values(rows))
    return titled(switchable(chart.properties(width=width(look, pixels), height=place["height"]), look), title)


def differences(rows: Sequence[Row], look: Look, *, against: str, title: str = "", pixels: int = 430) -> alt.LayerChart:
    """A dot per client and seed at its accuracy minus that of the baseline: right of zero it was helped.

    Rows have `method`, `client`, `seed`, `architecture`, `samples`, `difference` (between -1 and 1) and `jitter`.
    """
    place = rows_by_method(look, 24)
    across = alt.X("difference:Q", title=f"accuracy minus {against}", axis=alt.Axis(format="+~%"), scale=_near())
    base = alt.Chart().encode(y=place["y"], x=across)
    dots = base.mark_circle(size=38, opacity=0.8).encode(
        yOffset=alt.YOffset("jitter:Q", scale=alt.Scale(domain=[-1.6, 1.6])),
        color=_verdict(look),
        tooltip=[*_WHO, _percent("difference", "difference", "+.2%")],
    )
    chart = alt.layer(_zero("x"), dots, data=values(_judged(rows)))
    return titled(switchable(chart.properties(width=width(look, pixels), height=place["height"]), look), title)


def by_group(rows: Sequence[Row], look: Look, *, against: str, title: str = "", pixels: int = 430) -> alt.LayerChart:
    """The mean difference of the clients of each `group` (an architecture), a row per group and a symbol per method.

    Rows have `method`, `group`, `difference` (the mean) and `clients` (how many it is the mean of).
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    each = 9 * len(look.styles)
    axis = alt.Axis(
        title=None, domain=False, ticks=False, labelAlign="left", labelPadding=-2, labelLimit=420,
        labelOffset=-(each / 2 + 8), labelFontSize=12, labelOverlap=False,
    )  # fmt: skip
    down = alt.Y(
        "group:N", sort=groups, axis=axis, scale=alt.Scale(paddingInner=20 / (each + 20), paddingOuter=20 / (each + 20))
    )
    across = alt.X("difference:Q", title=f"mean accuracy minus {against}", axis=alt.Axis(format="+~%"))
    bar = (
        alt.Chart()
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=across,
            y=down,
            yOffset=alt.YOffset("method:N", sort=look.labels, scale=alt.Scale(paddingInner=0.15)),
            color=colour(look),
            tooltip=[
                alt.Tooltip("group:N", title="clients with"),
                alt.Tooltip("method:N"),
                _percent("difference", "mean difference", "+.2%"),
                alt.Tooltip("clients:Q", title="clients and seeds"),
            ],
        )
    )
    chart = alt.layer(bar, _zero("x"), data=values(rows))
    height = {"step": each + 20, "for": "position"}
    return titled(switchable(chart.properties(width=width(look, pixels), height=height), look), title)


def by_size(rows: Sequence[Row], look: Look, *, against: str, title: str = "", pixels: int = 430) -> alt.LayerChart:
    """The difference of each client against its number of training samples; rows as of `differences`."""
    dots = (
        alt.Chart()
        .mark_point(size=44, opacity=0.85, strokeWidth=1.6)
        .encode(
            x=alt.X("samples:Q", title="training samples of the client", scale=alt.Scale(zero=False, nice=True)),
            y=alt.Y("difference:Q", title=f"accuracy minus {against}", axis=alt.Axis(format="+~%")),
            color=colour(look),
            shape=alt.Shape("method:N", scale=alt.Scale(domain=look.labels), legend=None),
            tooltip=[*_WHO, _percent("difference", "difference", "+.2%")],
        )
    )
    chart = alt.layer(_zero("y"), dots, data=values(rows)).properties(width=width(look, pixels), height=260)
    return titled(switchable(chart, look), title)


def _near() -> alt.Scale:
    return alt.Scale(zero=False, nice=True)


def _percent(field: str, title: str, form: str = ".2%") -> alt.Tooltip:
    return alt.Tooltip(f"{field}:Q", title=title, format=form)


def _zero(channel: str) -> alt.Chart:
    line = alt.Chart(values([{"zero": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.7)
    return line.encode(x="zero:Q") if channel == "x" else line.encode(y="zero:Q")


def _judged(rows: Sequence[Row]) -> list[dict[str, Any]]:
    verdict = {1: "helped", 0: "equal", -1: "harmed"}
    sign = [(row["difference"] > 0) - (row["difference"] < 0) for row in rows]
    return [{**row, "verdict": verdict[one]} for row, one in zip(rows, sign, strict=True)]


def _verdict(look: Look) -> alt.Color:
    scale = alt.Scale(domain=["helped", "equal", "harmed"], range=[HELPED, NEUTRAL, HARMED])
    return alt.Color("verdict:N", scale=scale, legend=alt.Legend(orient="top", title=None, symbolType="circle"))
