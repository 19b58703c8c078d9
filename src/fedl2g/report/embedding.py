"""t-SNE of the server's class vectors (guiding vectors, prototypes) with the clients' class means and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedl2g.errors import FedL2GError
from fedl2g.report.collect import Group, Run, cached_dataset
from fedl2g.report.series import number

if TYPE_CHECKING:
    import torch

    from fedl2g.engines.host import Host
    from fedl2g.payload import Payload

MAX_FEATURES = 400
MAX_CLASSES = 20  # more colours are hard to distinguish; the largest classes are shown
MIN_POINTS = 8
BATCH = 250


@dataclass(frozen=True)
class _Vectors:
    """The vectors to draw, before t-SNE; owners are (class, client)."""

    round: int
    space: str
    class_names: tuple[str, ...]
    sent: Payload
    features: torch.Tensor
    feature_owners: list[tuple[int, int]]
    means: torch.Tensor
    mean_owners: list[tuple[int, int]]


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

    found = _vectors(run)
    if found is None:
        return None
    shown = _largest_classes(found.feature_owners, MAX_CLASSES)
    parts: dict[str, tuple[torch.Tensor, list[Any]]] = {
        "guide": (found.sent["rows"], [(int(c), None) for c in found.sent["ids"]]),
        "mean": (found.means, found.mean_owners),
        "feature": (found.features, found.feature_owners),
    }
    rows, owners, kinds = [], [], []
    for kind, (vectors, owner) in parts.items():
        for vector, (label, client) in zip(vectors, owner, strict=True):
            if label in shown:
                rows.append(vector.double())
                owners.append((label, client))
                kinds.append(kind)
    if len(rows) < MIN_POINTS:
        return None
    traits = run.traits
    guided = traits is not None and traits.vectors == "guiding gradients"
    return {
        "round": found.round,
        "space": found.space,
        "sent": "guiding vectors" if guided else "the server's class vectors",
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
    from safetensors import SafetensorError

    from fedl2g.engines.host import Host
    from fedl2g.methods.registry import get_method
    from fedl2g.process import one_thread
    from fedl2g.runs.checkpoint import newest
    from fedl2g.setup import Setup

    checkpoint = newest(run.directory.checkpoints)
    dataset = cached_dataset(str(run.directory.about()["dataset_fingerprint"]))
    if checkpoint is None or dataset is None:
        return None
    try:
        checkpoint.verify()
        experiment = run.directory.experiment()
        setup = Setup(experiment, dataset, run.directory.partition())
        server = get_method(experiment.method.name).server(experiment.method, setup.task)
        server.load_state_dict(checkpoint.server())
        sent = server.broadcast(checkpoint.round + 1)
        if set(sent) != {"ids", "rows"} or sent["rows"].shape[1] not in (setup.task.feature_dim, setup.task.classes):
            return None
        space = "features" if sent["rows"].shape[1] == setup.task.feature_dim else "logits"
        host = Host(setup, torch.device("cpu"))
        try:
            with one_thread(), torch.no_grad():
                host.restore(checkpoint.path)
                of_clients = _client_vectors(host, experiment.clients, 0 if space == "features" else 1)
        finally:
            host.close()  # removes the clients' weights from the disk
    except (FedL2GError, OSError, KeyError, RuntimeError, SafetensorError):
        return None  # incompatible or incomplete checkpoint: the report does without this figure
    return _Vectors(checkpoint.round, space, dataset.class_names, sent, *of_clients)


def _client_vectors(
    host: Host, clients: int, column: int
) -> tuple[torch.Tensor, list[tuple[int, int]], torch.Tensor, list[tuple[int, int]]]:
    """Features (or logits) of some test samples of each client, and each client's class means over all of them."""
    import torch

    features, feature_owners, means, mean_owners = [], [], [], []
    for client in range(clients):
        half = host.half(client)
        half.model.eval()
        batches = [(half.model(x)[column], y) for x, y in half.client.test_set.batches(BATCH)]
        vectors, labels = torch.cat([v for v, _ in batches]), torch.cat([y for _, y in batches])
        for label in sorted(set(labels.tolist())):
            means.append(vectors[labels == label].mean(0))
            mean_owners.append((int(label), client))
        step = max(1, len(labels) * clients // MAX_FEATURES)
        for index in range(0, len(labels), step):
            features.append(vectors[index])
            feature_owners.append((int(labels[index]), client))
    return torch.stack(features), feature_owners, torch.stack(means), mean_owners


def _largest_classes(owners: list[tuple[int, int]], most: int) -> set[int]:
    counts: dict[int, int] = {}
    for label, _ in owners:
        counts[label] = counts.get(label, 0) + 1
    return set(sorted(counts, key=lambda label: (-counts[label], label))[:most])
