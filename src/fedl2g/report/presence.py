"""The chart of client availability: a row per client and a column per round."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from fedl2g.report.figures import write_figure
from fedl2g.round.absence import AWAY, BUSY, DROPPED, LOST, NOT_JOINED
from fedl2g.round.record import RoundRecord

# Legend entry, colour, and the recorded reasons that it covers.
_KINDS = (
    ("replied", "#2a7f62", ()),
    ("late reply used", "#8ecae6", ()),
    ("not asked", "#f1f1f1", ()),
    ("not joined yet", "#c9c9c9", (NOT_JOINED,)),
    ("away", "#6b6b6b", (AWAY,)),
    ("dropped out before training", "#e07a5f", (DROPPED,)),
    ("upload lost after training", "#b5179e", (LOST,)),
    ("late or still busy", "#f2c14e", (BUSY,)),
    ("refused", "#000000", ()),
)
_ON_LIGHT_AND_DARK = "#76808d"
_NUMBER = {name: number for number, (name, _, _) in enumerate(_KINDS)}
_REASON = {reason: number for number, (_, _, reasons) in enumerate(_KINDS) for reason in reasons}


def presence(history: Sequence[RoundRecord], clients: int) -> list[list[int]]:
    """For each client, the legend index of every round from 1 on."""
    rounds = [record for record in history if record.round > 0]
    return [[_kind(record, client) for record in rounds] for client in range(clients)]


def _kind(record: RoundRecord, client: int) -> int:
    if client in record.refused:
        return _NUMBER["refused"]
    if client in record.late:
        return _NUMBER["late reply used"]
    reason = record.away.get(client)
    if reason is None and client in record.missing:
        return _NUMBER["dropped out before training"]  # reported by an engine: the client was unreachable
    if reason is not None:
        return _REASON.get(reason, _NUMBER["late or still busy"])
    return _NUMBER["replied"] if client in record.participants else _NUMBER["not asked"]


def draw_presence(history: Sequence[RoundRecord], clients: int, target: Path | BytesIO) -> Path | BytesIO:
    """Draw the chart to a file, or to memory for a page (an untitled PNG for light and dark pages)."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    on_a_page = isinstance(target, BytesIO)
    ink = _ON_LIGHT_AND_DARK if on_a_page else "black"
    grid = presence(history, clients)
    figure = Figure(figsize=(9, min(12.0, 2.0 + 0.2 * clients)), layout="constrained")
    axes = figure.subplots()
    if grid and grid[0]:
        axes.imshow(
            grid,
            aspect="auto",
            interpolation="nearest",
            cmap=ListedColormap([colour for _, colour, _ in _KINDS]),
            norm=BoundaryNorm([n - 0.5 for n in range(len(_KINDS) + 1)], len(_KINDS)),
            extent=(0.5, len(grid[0]) + 0.5, clients - 0.5, -0.5),
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        axis.label.set_color(ink)
    axes.tick_params(colors=ink)
    axes.spines[:].set_color(ink)
    axes.set(xlabel="round", ylabel="client", title="" if on_a_page else "Client availability")
    shown = sorted({kind for row in grid for kind in row})
    figure.legend(
        handles=[Patch(color=_KINDS[kind][1], label=_KINDS[kind][0]) for kind in shown],
        loc="outside lower center",
        ncols=4,
        fontsize="small",
        labelcolor=ink,
        frameon=False,
    )
    if isinstance(target, Path):
        return write_figure(figure, target)
    figure.savefig(target, dpi=150, transparent=True)
    return target
