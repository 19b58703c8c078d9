"""A line for every client, and one for every architecture, over the rounds of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fedl2g.report.cards import Card, Section
from fedl2g.report.charts.curves import curves
from fedl2g.report.charts.parts import Panel
from fedl2g.report.charts.theme import Look, style_of
from fedl2g.report.clients import architectures_of
from fedl2g.report.collect import Group, Run
from fedl2g.report.content import Content
from fedl2g.report.drawings import thinned
from fedl2g.report.series import band
from fedl2g.runs.deployed import read_sites

MOST_CHARTS = 8
MOST_LINES = 60
MOST_NAMED = 12  # lines of which each has a look of its own
Lines = dict[str, dict[int, float]]  # label -> value by round


def client_section(content: Content) -> Section:
    """The lines of the clients and of the architectures; a run is chosen by its name."""
    clients: list[tuple[str, Panel]] = []
    kinds: list[tuple[str, Panel]] = []
    # Those under way first: there may be more than can be chosen from.
    chosen = [(group, _latest(group)) for group in content.groups]
    for group, run in sorted(chosen, key=lambda one: one[1].status != "running"):
        if len(clients) >= MOST_CHARTS:
            break
        for measure, form, values in (
            ("test accuracy", ".2%", client_accuracies(run)),
            ("loss", ".4f", client_losses(run)),
        ):
            if not values:
                continue
            name = f"{group.label}, seed {run.seed}: {measure}"
            clients.append((name, _chart(_named(run, dict(list(values.items())[:MOST_LINES])), measure, form)))
            if by_kind := architecture_means(values, architectures_of(run)):
                kinds.append((name, _chart(by_kind, measure, form)))
    cards = []
    if clients:
        caption = "A line per client; the numbers are under the pointer. Drag to zoom."
        cards.append(Card("client-lines", "The clients by round", caption, clients, zoom="round", wide=not kinds))
    if kinds:
        caption = "The mean of the clients with the same network."
        cards.append(Card("architecture-lines", "The architectures by round", caption, kinds, zoom="round"))
    return Section("clients", "Every client", [], cards)


def _latest(group: Group) -> Run:
    """The run under way; without any, the last that has begun."""
    return max(group.runs, key=lambda run: (run.status == "running", bool(run.history), run.seed))


def client_accuracies(run: Run) -> Lines:
    """Test accuracy by client and round."""
    return _by_client({r.round: r.accuracy.clients for r in run.history if r.accuracy is not None})


def client_losses(run: Run) -> Lines:
    """The original local loss by client and round."""
    return _by_client({r.round: r.client_losses for r in run.history if r.client_losses})


def architecture_means(values: Lines, architectures: tuple[str, ...]) -> Lines:
    """The mean over the clients with the same architecture; nothing unless there are several architectures."""
    if len(set(architectures)) < 2:
        return {}
    found: dict[str, dict[int, list[float]]] = {}
    for label, line in values.items():
        kind = found.setdefault(architectures[int(label.removeprefix("client ")) % len(architectures)], {})
        for number, value in line.items():
            kind.setdefault(number, []).append(value)
    return {kind: {number: statistics.fmean(all_of) for number, all_of in line.items()} for kind, line in found.items()}


def _by_client(rounds: Mapping[int, Mapping[int, float]]) -> Lines:
    clients = sorted({client for values in rounds.values() for client in values})
    return {f"client {c}": {number: values[c] for number, values in rounds.items() if c in values} for c in clients}


def _named(run: Run, values: Lines) -> Lines:
    """The lines of a deployment's clients by the names of their sites."""
    sites = read_sites(run.directory.path) if run.directory.deployed else {}
    names = {f"client {client}": site.name for client, site in sites.items()}
    return {names.get(label, label): line for label, line in values.items()}


def _chart(values: Lines, measure: str, form: str) -> Panel:
    look = Look({label: style_of(n) for n, label in enumerate(values)}, page=True, legend=len(values) <= MOST_NAMED)
    lines = {label: thinned(band([line]), len(values)) for label, line in values.items()}
    return curves(lines, look, x="round", y=measure, form=form)
