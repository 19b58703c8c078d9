"""The plane of a t-SNE: the server's class vectors among the clients' means and samples."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from fedl2g.report.charts.parts import Panel, columns, titled, width
from fedl2g.report.charts.theme import Look

# One colour a class: strong ones first, then their light relatives.
CLASS_COLOURS = (
    "#2f7fe0", "#e0473a", "#2b9348", "#c07a00", "#8b5cf6", "#0f8f9c", "#e0457b", "#71842a", "#a9653b", "#7b8794",
    "#8cbcf2", "#f0a49c", "#8ccf9d", "#e6bd73", "#c5adfb", "#7fcbd2", "#f0a3bf", "#b7c67a", "#d6ac92", "#bcc4cc",
)  # fmt: skip
STAR = "M0,-1L0.24,-0.32L0.95,-0.31L0.38,0.12L0.59,0.81L0,0.4L-0.59,0.81L-0.38,0.12L-0.95,-0.31L-0.24,-0.32Z"
"""Half the height is 1, as of Vega's own symbols."""
RING = "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0ZM0.68,0A0.68,0.68,0,1,0,-0.68,0A0.68,0.68,0,1,0,0.68,0Z"


def embedding(
    points: Sequence[tuple[float, float, str, int, int | None]],
    look: Look,
    *,
    kinds: Sequence[tuple[str, str, str]],
    class_names: Sequence[str],
    title: str = "",
    size: tuple[int, int] = (380, 360),
) -> Panel:
    """Points (x, y, kind, class, client); colour is the class, shape the kind, and both have a legend.

    `kinds` has (kind, name, look) of each, in the order of drawing, where look is "dot", "ring", "star" or "diamond".
    A page's reader can pick classes and kinds in the legends.
    """
    shown = sorted({label for _, _, _, label, _ in points})
    names = [class_names[label] for label in shown]
    named = {kind: name for kind, name, _ in kinds}
    data = columns(
        x=[x for x, _, _, _, _ in points],
        y=[y for _, y, _, _, _ in points],
        kind=[named[kind] for _, _, kind, _, _ in points],
        label=[class_names[label] for _, _, _, label, _ in points],
        client=["" if client is None else str(client) for _, _, _, _, client in points],
    )
    pick = alt.selection_point(name="pick", fields=["label"], bind="legend")
    kind_pick = alt.selection_point(name="kind_pick", fields=["kind"], bind="legend")
    picks = (pick, kind_pick) if look.page else ()  # a file has nothing to click
    colours = [CLASS_COLOURS[n % len(CLASS_COLOURS)] for n in range(len(shown))]
    symbols = {"dot": "circle", "ring": RING, "star": STAR, "diamond": "diamond"}
    shape = alt.Shape(
        "kind:N",
        scale=alt.Scale(domain=[name for _, name, _ in kinds], range=[symbols[form] for _, _, form in kinds]),
        legend=alt.Legend(
            orient="bottom",
            title=None,
            symbolFillColor=look.ink,
            symbolStrokeWidth=0,
            symbolOpacity=0.8,
            columns=1 if look.page else 4,
        ),
    )
    colour = alt.Color(
        "label:N",
        scale=alt.Scale(domain=names, range=colours),
        legend=alt.Legend(title="class", symbolType="circle", symbolOpacity=1, columns=1 if len(shown) <= 12 else 2),
    )
    layers = []
    for _, name, form in kinds:
        area, opacity = {"dot": (16, 0.5), "ring": (150, 1), "star": (150, 1), "diamond": (110, 1)}[form]
        shown_at = alt.value(opacity)
        mark = alt.Chart().transform_filter(alt.FieldEqualPredicate(field="kind", equal=name)).mark_point(
            filled=True, size=area, strokeWidth=0.8,
            stroke=alt.Undefined if form in ("dot", "ring") else look.ink,
        )  # fmt: skip
        layers.append(
            mark.encode(
                x=alt.X("x:Q", axis=None, scale=alt.Scale(zero=False, padding=8)),
                y=alt.Y("y:Q", axis=None, scale=alt.Scale(zero=False, padding=8)),
                color=colour,
                shape=shape,
                opacity=alt.condition(pick & kind_pick, shown_at, alt.value(0.04)) if picks else shown_at,
                tooltip=[
                    alt.Tooltip("label:N", title="class"),
                    alt.Tooltip("kind:N", title="what"),
                    alt.Tooltip("client:N"),
                ],
            )
        )
    layers[0] = layers[0].add_params(*picks)
    chart = alt.layer(*layers, data=data).transform_flatten(["x", "y", "kind", "label", "client"])
    return titled(chart.properties(width=width(look, size[0]), height=size[1]), title)
