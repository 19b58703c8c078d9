"""t-SNE of guiding vectors and global prototypes among the clients' features, as in the paper.

A global prototype of a class is the mean, over the clients that hold it, of their mean features (or logits). FedProto's
server has them. FedL2G never makes them: for its runs the analysis computes them from the checkpoint, and nothing of
it is part of the method or leaves a client.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedl2g.errors import FedL2GError
from fedl2g.report.collect import Group, Run, cached_dataset
from fedl2g.report.series import number

if TYPE_CHECKING:
    import torch

    from fedl2g.methods.base import AnyClientHalf
    from fedl2g.payload import Payload
    from fedl2g.runs.checkpoint import Checkpoint
    from fedl2g.setup import Setup

_log = logging.getLogger(__name__)
MAX_FEATURES = 400
MAX_CLASSES = 20  # more colours are hard to distinguish; the largest classes are shown
MIN_POINTS = 8
BATCH = 250


FEATURE, PROTOTYPE, GUIDE = "feature", "prototype", "guide"
FORMS = {FEATURE: "dot", PROTOTYPE: "ring", GUIDE: "diamond"}  # circles but for guiding vectors, in order of drawing
# The same for every run: panels side by side share a legend, which would mix up the forms of different names.
NAMES = {
    FEATURE: "test samples (their features or logits)",
    PROTOTYPE: "global prototypes (FedL2G never sends any)",
    GUIDE: "guiding vectors",
}


@dataclass(frozen=True)
class _Vectors:
    """The vectors to draw, before t-SNE: class vectors by kind, and features with their owners (class, client)."""

    round: int
    space: str
    class_names: tuple[str, ...]
    by_class: dict[str, Payload]
    features: torch.Tensor
    owners: list[tuple[int, int]]


def embeddable(groups: Sequence[Group]) -> list[Group]:
    """The groups whose methods exchange class vectors, those with guiding gradients first."""
    known = [(group, group.traits) for group in groups]
    able = [(group, traits) for group, traits in known if traits is not None and traits.uploads == "class vectors"]
    return [group for group, traits in sorted(able, key=lambda pair: pair[1].vectors != "guiding gradients")]


def embed(run: Run) -> dict[str, Any] | None:
    """Points (x, y, kind, class, client) in the plane, from the run's last checkpoint.

    None if there is nothing to draw: no checkpoint, no cached dataset, or a server that sends no class vectors. Code
    that the run names is imported: `read_runs` has checked that it is trusted.
    """
    import torch
    from safetensors import SafetensorError

    try:
        found = _vectors(run)
    except (FedL2GError, OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        # An incompatible or damaged checkpoint: the report does without this figure.
        _log.warning("t-SNE: left out (%s)", error)
        return None
    if found is None:
        return None
    shown = _largest_classes(found.owners, MAX_CLASSES)
    rows, owners, kinds = [], [], []
    parts: list[tuple[str, torch.Tensor, Sequence[tuple[int, int | None]]]] = [(FEATURE, found.features, found.owners)]
    for kind, vectors in found.by_class.items():
        parts.append((kind, vectors["rows"], [(label, None) for label in vectors["ids"].tolist()]))
    for kind, vectors_of, owners_of in parts:
        for vector, (label, client) in zip(vectors_of, owners_of, strict=True):
            if label in shown:
                rows.append(vector.double())
                owners.append((label, client))
                kinds.append(kind)
    if len(rows) < MIN_POINTS:
        return None
    return {
        "round": found.round,
        "space": found.space,
        "kinds": [[kind, NAMES[kind], form] for kind, form in FORMS.items() if kind in kinds],
        "classes": sorted(shown),
        "class_names": list(found.class_names),
        "points": [
            [number(float(x), 4), number(float(y), 4), kind, *owner]
            for (x, y), kind, owner in zip(_plane(torch.stack(rows)), kinds, owners, strict=True)
        ],
    }


def _plane(points: torch.Tensor) -> Any:
    """The points in two dimensions by t-SNE, scaled to [-1, 1]."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):  # more threads are slower for so few points
        plane = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(points.numpy())
    return (plane - plane.mean(0)) / max(abs(plane).max(), 1e-9)


def _vectors(run: Run) -> _Vectors | None:
    """The next broadcast after the last checkpoint, and its clients' features (or logits) of their test samples."""
    import torch

    from fedl2g.methods.registry import get_method
    from fedl2g.process import one_thread
    from fedl2g.runs.checkpoint import newest
    from fedl2g.setup import Setup

    checkpoint = newest(run.directory.checkpoints)
    dataset = cached_dataset(str(run.directory.about()["dataset_fingerprint"]))
    if checkpoint is None or dataset is None:
        return None
    checkpoint.verify()
    experiment = run.directory.experiment()
    setup = Setup(experiment, dataset, run.directory.partition(len(dataset.labels)))
    server = get_method(experiment.method.name).server(experiment.method, setup.task)
    server.load_state_dict(checkpoint.server())
    sent = server.broadcast(checkpoint.round + 1)
    if set(sent) != {"ids", "rows"} or sent["rows"].shape[1] not in (setup.task.feature_dim, setup.task.classes):
        return None
    column = 0 if sent["rows"].shape[1] == setup.task.feature_dim else 1  # of a network's (features, logits)
    with one_thread(), torch.no_grad():
        features, owners = _features(_halves(setup, checkpoint), experiment.clients, column)
        by_class = {PROTOTYPE: sent}
        if _guided(run):
            by_class = {PROTOTYPE: _prototypes(_halves(setup, checkpoint), column), GUIDE: sent}
    if not all(bool(torch.isfinite(vectors).all()) for vectors in (features, *(v["rows"] for v in by_class.values()))):
        raise ValueError(f"{checkpoint.path}: its networks give NaN or infinite values")
    return _Vectors(checkpoint.round, ("features", "logits")[column], dataset.class_names, by_class, features, owners)


def _guided(run: Run) -> bool:
    """Whether the server's class vectors are guiding vectors, and not means."""
    traits = run.traits
    return traits is not None and traits.vectors == "guiding gradients"


def _halves(setup: Setup, checkpoint: Checkpoint) -> Iterator[AnyClientHalf]:
    """The clients as in the checkpoint, one at a time in memory: nothing of them is written anywhere."""
    import torch

    from fedl2g.engines.host import Host

    for client in range(setup.experiment.clients):
        host = Host(setup, torch.device("cpu"))
        if (state := checkpoint.client(client)) is not None:
            host.load_state(client, state)
        half = host.half(client)
        half.model.eval()
        yield half


def _prototypes(halves: Iterable[AnyClientHalf], column: int) -> Payload:
    """The global prototypes: each client's means over its training samples, and their uniform mean by class."""
    from fedl2g.methods.class_means import ClassMeans
    from fedl2g.payload import class_vectors, mean_by_class

    own = []
    for half in halves:
        task = half.client.task
        means = ClassMeans(half.client, (task.feature_dim, task.classes)[column])
        for x, y in half.client.train_set.batches(BATCH):
            means.add(half.model(x)[column], y)
        own.append(means.pack())
    return class_vectors(*mean_by_class(own))


def _features(halves: Iterable[AnyClientHalf], clients: int, column: int) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Features (or logits) of some test samples of each client, and the (class, client) of each."""
    import torch

    features, owners = [], []
    for client, half in enumerate(halves):
        test_set = half.client.test_set
        chosen = torch.arange(0, len(test_set), max(1, len(test_set) * clients // MAX_FEATURES))
        for x, y in test_set.subset(chosen).batches(BATCH):
            features.append(half.model(x)[column])
            owners += [(label, client) for label in y.tolist()]
    return torch.cat(features), owners


def _largest_classes(owners: list[tuple[int, int]], most: int) -> set[int]:
    counts: dict[int, int] = {}
    for label, _ in owners:
        counts[label] = counts.get(label, 0) + 1
    return set(sorted(counts, key=lambda label: (-counts[label], label))[:most])
