"""Client availability: a row per client over the rounds, or the number of clients where there are too many."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from fedl2g.report.charts.bubbles import ticks
from fedl2g.report.charts.parts import Panel, columns, titled, width
from fedl2g.report.charts.theme import Look

MOST_CELLS = 20_000  # more rectangles make a page slow


def presence_grid(
    grid: Sequence[Sequence[int]], kinds: Sequence[tuple[str, str]], look: Look, *, title: str = "", pixels: int = 640
) -> Panel:
    """A rectangle for every stretch of rounds in which a client was in one state.

    `grid` has, for each client, the number of its state in every round from 1 on; `kinds` their names and colours.
    """
    stretches = [(client, *stretch) for client, row in enumerate(grid) for stretch in _stretches(row)]
    used = sorted({kind for _, kind, _, _ in stretches})
    data = columns(
        client=[client for client, _, _, _ in stretches],
        state=[kinds[kind][0] for _, kind, _, _ in stretches],
        first=[first - 0.5 for _, _, first, _ in stretches],
        end=[last + 0.5 for _, _, _, last in stretches],
        rounds=[str(first) if first == last else f"{first} to {last}" for _, _, first, last in stretches],
    )
    rounds = len(grid[0]) if grid else 0
    high = max(60, min(600, 16 * len(grid)))
    cells = (
        alt.Chart()
        .transform_calculate(above="datum.client - 0.46", below="datum.client + 0.46")
        .mark_rect(stroke=None)
        .encode(
            x=alt.X(
                "first:Q",
                title="round",
                scale=alt.Scale(domain=[0.5, max(rounds, 1) + 0.5], nice=False, zero=False),
                axis=alt.Axis(tickMinStep=1, format="d", grid=False),
            ),
            x2="end:Q",
            y=alt.Y(
                "above:Q",
                title="client",
                scale=alt.Scale(domain=[-0.5, len(grid) - 0.5], nice=False, zero=False, reverse=True),
                axis=alt.Axis(values=ticks(len(grid)), format="d", grid=False),
            ),
            y2="below:Q",
            color=alt.Color(
                "state:N",
                scale=alt.Scale(domain=[kinds[kind][0] for kind in used], range=[kinds[kind][1] for kind in used]),
                legend=alt.Legend(orient="bottom", title=None, columns=2 if look.page else 4, symbolType="square"),
            ),
            tooltip=[alt.Tooltip("client:Q"), alt.Tooltip("rounds:N", title="rounds"), alt.Tooltip("state:N")],
        )
    )
    chart = alt.layer(cells, data=data).transform_flatten(["client", "state", "first", "end", "rounds"])
    return titled(chart.properties(width=width(look, pixels), height=high), title)


def presence_counts(
    grid: Sequence[Sequence[int]], kinds: Sequence[tuple[str, str]], look: Look, *, title: str = "", pixels: int = 640
) -> Panel:
    """How many clients were in each state in every round; for more clients and rounds than a grid can show."""
    used = sorted({kind for row in grid for kind in row})
    counted = [
        (number + 1, kind, sum(row[number] == kind for row in grid))
        for number in range(len(grid[0]) if grid else 0)
        for kind in used
    ]
    data = columns(
        round=[r for r, _, _ in counted],
        order=[kind for _, kind, _ in counted],
        state=[kinds[kind][0] for _, kind, _ in counted],
        clients=[n for _, _, n in counted],
    )
    area = (
        alt.Chart()
        .mark_area(interpolate="step")
        .encode(
            x=alt.X("round:Q", axis=alt.Axis(tickMinStep=1, grid=False), scale=alt.Scale(nice=False, zero=False)),
            y=alt.Y("clients:Q", title="clients"),
            order="order:Q",
            color=alt.Color(
                "state:N",
                scale=alt.Scale(domain=[kinds[kind][0] for kind in used], range=[kinds[kind][1] for kind in used]),
                legend=alt.Legend(orient="bottom", title=None, columns=2 if look.page else 4, symbolType="square"),
            ),
            tooltip=[alt.Tooltip("round:Q"), alt.Tooltip("state:N"), alt.Tooltip("clients:Q")],
        )
    )
    chart = alt.layer(area, data=data).transform_flatten(["round", "order", "state", "clients"])
    return titled(chart.properties(width=width(look, pixels), height=220), title)


def _stretches(row: Sequence[int]) -> list[tuple[int, int, int]]:
    """(state, first round, last round) of every run of equal states."""
    found: list[tuple[int, int, int]] = []
    for number, kind in enumerate(row, start=1):
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1], number)
        else:
            found.append((kind, number, number))
    return found
