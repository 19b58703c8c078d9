"""The cards of a page: a section for each question of a reader, a card for each chart that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedl2g.report import drawings
from fedl2g.report.charts import clients as client_charts
from fedl2g.report.charts.parts import Panels
from fedl2g.report.charts.theme import Look
from fedl2g.report.clients import accuracy_rows, architecture_rows, difference_rows
from fedl2g.report.collect import Group
from fedl2g.report.content import Content, byte_notes
from fedl2g.report.increase import loss_increase
from fedl2g.report.series import (
    accuracy_series,
    best_accuracy,
    loss_series,
    metric_names,
    number,
)
from fedl2g.runs.verdicts import DEFAULT_REFERENCE, Difference

ALIGNMENT = "alignment"
MANY = 4  # more sentences than this are folded behind a summary
_ABOUT_ALIGNMENT = (
    "The cosine between the clients' quiz gradient and the pull of the guiding vectors, mean over clients. Above zero "
    "a step along the pull lowers the loss on the quiz samples, below zero it raises it."
)


@dataclass(frozen=True)
class Card:
    """A title, a sentence about what is shown, and a chart; of several charts a reader chooses one by its name."""

    id: str
    title: str
    caption: str
    charts: Sequence[tuple[str, Panels]] = field(repr=False)
    zoom: str = ""  # charts with the same name zoom together
    notes: tuple[str, ...] = ()
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """A question and the cards that answer it."""

    id: str
    question: str
    sentences: list[str] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    summary: str = ""  # shown in place of many sentences until a reader opens them


def sections(content: Content) -> list[Section]:
    """The sections of a page; a card without anything to show is left out."""
    look = drawings.look_of(content.groups, page=True)
    return [
        Section("help", "Did it help?", verdict_sentences(content), _help(content, look), _verdict_summary(content)),
        Section("whom", "Whom did it help?", change_sentences(content), _whom(content, look), _change_summary(content)),
        Section("how", "How did it learn?", [], _how(content, look)),
        Section("cost", "At what cost?", [], _cost(content, look)),
        Section("data", "On what data?", [], _data(content, look)),
    ]


def verdict_sentences(content: Content) -> list[str]:
    """The verdicts, or why there are none."""
    found = [one.sentence for one in _differences(content)]
    if not found:
        if any(group.method != DEFAULT_REFERENCE for group in content.groups):
            return [
                f"Nothing here can say whether it helped: that takes a run of `{DEFAULT_REFERENCE}` on the same data "
                f"and seed (`fedl2g compare --methods {DEFAULT_REFERENCE},...`) that was evaluated."
            ]
        return []
    others = [c.reference.label for c in content.compared if c.reference.method != DEFAULT_REFERENCE]
    explained = [f"Nobody trained locally on this data, so methods are compared with {label}." for label in others]
    return [*explained, *found]


def _verdict_summary(content: Content) -> str:
    """How many methods help and harm; nothing where there are few enough to name each."""
    found = _differences(content)
    if len(found) <= MANY:
        return ""
    counts = {name: [one.method for one in found if one.verdict == name] for name in ("helps", "harms")}
    named = [f"{name}: {', '.join(methods) or 'none'}" for name, methods in counts.items()]
    return f"{len(found)} methods against {drawings.reference_name(content.compared)}; {'; '.join(named)}"


def _change_summary(content: Content) -> str:
    """In how many methods clients gain and lose; nothing where there are few enough to name each."""
    found = _differences(content)
    if len(found) <= MANY:
        return ""
    gain, lose = sum(one.gain > 0 for one in found), sum(one.lose > 0 for one in found)
    return (
        f"With {gain} of {len(found)} methods some client gains more than the noise of its test samples, with {lose} "
        "some client loses more"
    )


def _differences(content: Content) -> list[Difference]:
    return [one for compared in content.compared for one in compared.differences]


def change_sentences(content: Content) -> list[str]:
    """How many clients gained and lost, and who lost most."""
    found = []
    for one in _differences(content):
        worst = one.worst
        whose = "" if worst.seed is None or len(one.seeds) == 1 else f" of seed {worst.seed}"
        least = "lost most" if worst.difference < 0 else "gained least"
        so_far = "" if one.over else ", so far"
        found.append(
            f"{one.method}: of {len(one.clients)} clients {one.gain} gain and {one.lose} lose more than the noise of "
            f"their test samples, {one.unchanged} do neither; client {worst.client}{whose} {least} "
            f"({100 * worst.difference:+.1f} points){so_far}."
        )
    return found


def seeds_text(groups: Sequence[Group]) -> str:
    """How many seeds a mean is taken over; nothing while there are no runs, as on a page that waits for the first."""
    if not groups:
        return ""
    counts = sorted({len(group.runs) for group in groups})
    if counts == [1]:
        return "One seed."
    most = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"Mean over {most} seeds; the band goes from the lowest to the highest."


def _help(content: Content, look: Look) -> list[Card]:
    cards = []
    if any(number(best_accuracy(run)) is not None for run in content.runs):
        several = any(len(group.runs) > 1 for group in content.groups)
        caption = (
            "A tick for every seed, a dot at their mean." if several else "One seed: how much seeds differ is unknown."
        )
        chart = drawings.best_accuracies(content.groups, look)
        cards.append(Card("best", "Accuracy", f"In the selected round, pooled over clients. {caption}", [("", chart)]))
    if content.compared:
        covers = dict.fromkeys(one.covers for one in _differences(content))
        caption = (
            f"Paired by seed and client. The bar is the 95 % interval over {'; '.join(covers)}; a method whose bar "
            "crosses zero may not differ at all."
        )
        shown = look.only([one.method for one in _differences(content)])
        chart = drawings.verdicts(content.groups, content.compared, shown)
        title = f"Difference to {drawings.reference_name(content.compared)}"
        cards.append(Card("difference", title, caption, [("", chart)]))
    return cards


def _whom(content: Content, look: Look) -> list[Card]:
    cards = []
    accuracies = accuracy_rows(content.groups)
    if accuracies:
        caption = "A dot per client and seed in the selected round; box: the middle half, tick: the median."
        chart = client_charts.spread(accuracies, look.only([row["method"] for row in accuracies]))
        cards.append(Card("spread", "Accuracy of individual clients", caption, [("", chart)]))
    rows = difference_rows(content.groups, content.compared)
    if not rows:
        return cards
    name = drawings.reference_name(content.compared)
    shown = look.only([row["method"] for row in rows])
    caption = (
        f"Every client's accuracy minus its own with {name}. Right of zero it gained. Filled: more than the noise of "
        "its own test samples."
    )
    chart = client_charts.differences(rows, shown, against=name)
    cards.append(Card("changes", "Clients helped and harmed", caption, [("", chart)]))
    if by_kind := architecture_rows(rows):
        caption = f"Mean difference to {name} of the clients with the same network."
        chart = client_charts.by_group(by_kind, shown, against=name)
        cards.append(Card("architectures", "By architecture", caption, [("", chart)]))
    if len({row["samples"] for row in rows} - {None}) > 1:
        caption = f"Each client's difference to {name} against its number of training samples."
        chart = client_charts.by_size(rows, shown, against=name)
        cards.append(Card("sizes", "By size", caption, [("", chart)]))
    return cards


def _how(content: Content, look: Look) -> list[Card]:
    groups, cards = content.groups, []
    seeds = seeds_text(groups)
    if any(accuracy_series(run.history) for run in content.runs):
        caption = f"Correct predictions over all clients' test samples. {seeds} Drag to zoom."
        cards.append(Card("accuracy", "Test accuracy", caption, [("", drawings.accuracy(groups, look))], zoom="round"))
    if any(loss_series(run.history) for run in content.runs):
        caption = f"Cross entropy alone on the clients' training batches, mean over clients. {seeds}"
        cards.append(Card("loss", "Original local loss", caption, [("", drawings.loss(groups, look))], zoom="round"))
    for name in metric_names(groups):
        caption = _ABOUT_ALIGNMENT if name == ALIGNMENT else "Reported by the clients, mean over those that sent it."
        chart = drawings.metric(groups, look, name)
        cards.append(Card(f"metric-{len(cards)}", name.capitalize(), f"{caption} {seeds}", [("", chart)], zoom="round"))
    increase = loss_increase(groups)
    if increase["relative"]:
        caption = (
            "Original local loss minus that of local training after as many rounds of training (warm-up rounds left "
            "out). Above zero, the method works against the client's own task."
        )
        chart = drawings.loss_against_local(groups, look)
        cards.append(
            Card("loss-increase", "Loss increase against local training", caption, [("", chart)], zoom="training")
        )
    if any(line["x"] for line in increase["per_round"].values()):
        caption = (
            "The original local loss of each round minus its own earlier minimum: above zero it rises. Counted in "
            f"rounds of training. {seeds}"
        )
        chart = drawings.loss_per_round(groups, look)
        cards.append(Card("loss-per-round", "Loss increase in each round", caption, [("", chart)], zoom="training"))
    if any(rise["mean"] for rise in increase["rise"].values()):
        caption = "The largest rise of the original local loss above its own earlier minimum, mean over seeds."
        chart = drawings.loss_rise(groups, look)
        cards.append(Card("loss-rise", "Loss increase during training", caption, [("", chart)]))
    if content.embeddings:
        rounds = sorted({plane.values["round"] for plane in content.embeddings})
        caption = (
            f"t-SNE of one seed after round {', '.join(map(str, rounds))}. Click a class or a kind in the legends to "
            "see it alone."
        )
        charts = [(plane.name, drawings.plane(plane.values, look)) for plane in content.embeddings]
        cards.append(Card("embedding", "Class vectors among the clients' features", caption, charts))
    if content.presence:
        caption = "Who took part in which round, in one seed."
        charts = [(one.name, drawings.availability(one.values["grid"], look)) for one in content.presence]
        cards.append(Card("presence", "Client availability", caption, charts, wide=True))
    return cards


def _cost(content: Content, look: Look) -> list[Card]:
    groups, cards = content.groups, []
    spends = any(record.up_bytes + record.down_bytes for run in content.runs for record in run.history)
    several = "Mean over seeds. " if any(len(group.runs) > 1 for group in groups) else ""
    if spends:
        caption = f"Counted from the payloads exchanged, all participants together (1 MB is 2^20 bytes). {several}"
        chart = drawings.communication(groups, look)
        notes = tuple(byte_notes(groups))
        cards.append(Card("communication", "Communication per round", caption, [("", chart)], notes=notes))
    if any(record.round > 0 for run in content.runs for record in run.history):
        caption = f"Seconds of one client (mean over clients) on the machine of the run, and of the server. {several}"
        chart = drawings.computation(groups, look)
        cards.append(Card("computation", "Computation per round", caption, [("", chart)]))
    if spends and any(accuracy_series(run.history) for run in content.runs):
        silent = any(not sum(r.up_bytes + r.down_bytes for r in run.history) for run in content.runs)
        level = " A method that sends nothing is a horizontal line at its best accuracy." if silent else ""
        closer = " Hide what sends most, above, to see the others closer." if len(groups) > 2 else ""
        caption = f"What the accuracy cost in megabytes up to each round. {seeds_text(groups)}{level}{closer}"
        chart = drawings.megabytes(groups, look)
        cards.append(Card("megabytes", "Accuracy against megabytes sent", caption, [("", chart)], zoom="megabytes"))
    return cards


def _data(content: Content, look: Look) -> list[Card]:
    if not content.partitions:
        return []
    known = any(one.values["counts"] is not None for one in content.partitions)
    caption = (
        "Samples of each client by class; a circle's area is their number."
        if known
        else "Samples of each client; the dataset is not in the local cache, so its classes are not known here."
    )
    charts = [(one.name, drawings.partition(one.values, look)) for one in content.partitions]
    return [Card("partition", "Who holds what", caption, charts, wide=True)]
