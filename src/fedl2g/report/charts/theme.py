"""How every chart looks: the colour and dashes of a method, and the style of axes, legends and text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedl2g.methods.registry import method_names

# In the order of the registry. Every colour is readable on white and on the dark page (contrast above 3), and every two
# of them are far apart, so that one palette serves light, dark, print and paper.
PALETTE = (
    "#7b8794", "#a9653b", "#71842a", "#0f8f9c", "#2b9348", "#c07a00",
    "#b857c9", "#8b5cf6", "#2f7fe0", "#e0473a", "#9a6b86", "#e0457b",
)  # fmt: skip
# Besides colours, one for each method: lines that coincide, or that are printed in grey, can still be told apart.
DASHES: tuple[tuple[int, ...], ...] = (
    (2, 2), (10, 3), (6, 2, 2, 2), (12, 3, 3, 3), (4, 4), (6, 2, 2, 2, 2, 2),
    (9, 6), (2, 5), (7, 2, 3, 2), (3, 2, 3, 6), (5, 2), (1, 0),
)  # fmt: skip
ACCENT = "#2f7fe0"
INK = "#1a202c"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
FILE_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


@dataclass(frozen=True)
class Style:
    """The colour and the dashes of a line."""

    colour: str
    dash: tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """What a chart must know about where it is shown.

    On a page the chart fills its card, follows the page's text colour, and leaves the legend of methods, which can be
    switched off there, to the page. In a file it has a size and a legend of its own.
    """

    styles: Mapping[str, Style] = field(default_factory=dict)  # by label, in the given order
    page: bool = False
    legend: bool = False  # of its own, also on a page: its lines are not the page's methods

    @property
    def ink(self) -> str:
        return "currentColor" if self.page else INK

    def only(self, labels: Iterable[str]) -> Look:
        """The look without the methods that a chart does not show."""
        kept = set(labels)
        return replace(self, styles={label: style for label, style in self.styles.items() if label in kept})

    @property
    def labels(self) -> list[str]:
        return list(self.styles)


def style_of(number: int) -> Style:
    """The style with this number; with more than twelve, colours return with other dashes."""
    lap = number // len(PALETTE)
    return Style(PALETTE[number % len(PALETTE)], DASHES[(number + lap) % len(DASHES)])


def styles_of(groups: Sequence[tuple[str, str]]) -> dict[str, Style]:
    """The style of every label, from pairs of label and method.

    A method has the style of its place in the registry, wherever it is drawn. Further variants of a method that is
    drawn already, and methods that are not installed, take the styles that nobody here uses.
    """
    names = method_names()
    first: dict[str, str] = {}  # method -> its first label
    for label, method in groups:
        if method in names:
            first.setdefault(method, label)
    own = {label: names.index(method) for method, label in first.items()}
    free = (n for n in range(len(groups) + len(names) + 1) if n not in own.values())
    return {label: style_of(own[label] if label in own else next(free)) for label, _ in groups}


def config(look: Look) -> dict[str, Any]:
    """The Vega-Lite configuration of every chart: real ticks, a light grid, text in one colour."""
    ink, font = look.ink, FONT if look.page else FILE_FONT
    text = {"labelColor": ink, "titleColor": ink, "labelFont": font, "titleFont": font, "titleFontWeight": "normal"}
    return {
        "font": font,
        "background": "transparent" if look.page else "white",
        "padding": 2 if look.page else 10,
        "view": {"stroke": None},
        "axis": {
            **text,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titlePadding": 6,
            "domainColor": ink,
            "domainOpacity": 0.45,
            "ticks": True,
            "tickColor": ink,
            "tickOpacity": 0.45,
            "tickSize": 4,
            "gridColor": ink,
            "gridOpacity": 0.1,
            "labelOverlap": "greedy",
            "labelFlush": False,
            "labelSeparation": 6,
        },
        "legend": {**text, "labelFontSize": 11, "titleFontSize": 11, "symbolSize": 90, "labelLimit": 260},
        "title": {"color": ink, "font": font, "fontSize": 13, "anchor": "start", "fontWeight": 600, "offset": 8},
        "text": {"color": ink, "font": font, "fontSize": 11},
        "rule": {"color": ink},
        "tick": {"color": ink},
        "concat": {"spacing": 28},
    }
