"""Bubbles: who holds how many samples of which class."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from fedl2g.report.charts.parts import Panel, columns, titled, values, width
from fedl2g.report.charts.theme import ACCENT, Look

SMALLEST_AREA = 2
"""In square pixels, so that a single sample of a large dataset stays visible."""


def bubbles(
    counts: Sequence[tuple[int, int, int]],
    look: Look,
    *,
    clients: int,
    classes: int,
    class_names: Sequence[str] = (),
    title: str = "",
    size: tuple[int, int] | None = None,
) -> Panel:
    """A circle for each (client, class, samples), its area the number of samples.

    The largest circle fits its cell, so circles neither overlap nor are cut, however few clients there are.
    """
    across, down = size or (max(240, min(900, 30 * clients)), max(150, min(560, 24 * classes)))
    # The width of a page's card is known only there; with very many classes the cells are too flat to fit circles.
    cell = f"min(width / {clients}, max(height / {classes}, 5), 42)"
    data = columns(
        client=[c for c, _, _ in counts],
        label=[k for _, k, _ in counts],
        samples=[n for _, _, n in counts],
        name=[class_names[k] if class_names else str(k) for _, k, _ in counts],
    )
    largest = max((n for _, _, n in counts), default=1)
    area = alt.Size(
        "samples:Q",
        scale=alt.Scale(domain=[0, largest], range=[SMALLEST_AREA, alt.ExprRef(expr=f"pow(0.94 * {cell}, 2)")]),
        legend=alt.Legend(
            title="samples", values=_sizes(largest), symbolFillColor=ACCENT, symbolStrokeWidth=0,
            orient="bottom" if look.page else "right", direction="horizontal" if look.page else "vertical",
        ),
    )  # fmt: skip
    circles = (
        alt.Chart()
        .mark_circle(color=ACCENT, opacity=0.85)
        .encode(
            x=_axis("client", clients, "client", False),
            y=_axis("label", classes, "class", True),
            size=area,
            tooltip=[
                alt.Tooltip("client:Q"),
                alt.Tooltip("name:N", title="class"),
                alt.Tooltip("samples:Q", format=","),
            ],
        )
    )
    chart = alt.layer(circles, data=data).transform_flatten(["client", "label", "samples", "name"])
    return titled(chart.properties(width=width(look, across), height=down), title)


def sizes(rows: Sequence[tuple[int, int]], look: Look, *, title: str = "") -> Panel:
    """The number of training and test samples of each client, for a dataset whose classes are not known here."""
    data = [
        {"client": client, "part": part, "samples": n}
        for client, both in enumerate(rows)
        for part, n in zip(("train", "test"), both, strict=True)
    ]
    bar = (
        alt.Chart()
        .mark_bar(color=ACCENT)
        .encode(
            x=alt.X("client:O", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("samples:Q"),
            opacity=alt.Opacity(
                "part:N",
                scale=alt.Scale(domain=["train", "test"], range=[1, 0.5]),
                legend=alt.Legend(orient="top", title=None, symbolFillColor=ACCENT),
            ),
            tooltip=["client:O", alt.Tooltip("part:N", title="set"), alt.Tooltip("samples:Q", format=",")],
        )
    )
    chart = alt.layer(bar, data=values(data)).properties(width=width(look, 430), height=200)
    return titled(chart, title)


def _axis(field: str, count: int, title: str, vertical: bool) -> alt.X | alt.Y:
    """An axis with a tick for every id if they fit, else for every second, fifth, tenth and so on."""
    channel = alt.Y if vertical else alt.X
    return channel(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(domain=[-0.5, count - 0.5], nice=False, zero=False, reverse=vertical),
        axis=alt.Axis(values=ticks(count), format="d"),
    )


def ticks(count: int, most: int = 25) -> list[int]:
    """The ids that get a tick: all, or every second, fifth, tenth and so on."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    return list(range(0, count, next(step for step in steps if count / step <= most)))


def _sizes(largest: int) -> list[int]:
    """Three round numbers up to the largest, for the legend."""
    found = [max(1, int(float(f"{largest * part:.1g}"))) for part in (0.25, 0.5, 1.0)]
    return list(dict.fromkeys(min(n, largest) for n in found))
