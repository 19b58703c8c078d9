"""t-SNE of what the server sends (guiding vectors, prototypes) against the clients' own class means and features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedl2g.errors import FedL2GError
from fedl2g.report.collect import Run, cached_dataset, number

if TYPE_CHECKING:
    import torch

    from fedl2g.engines.host import Host

MOST_FEATURES = 400
MOST_CLASSES = 20  # more colours than this cannot be told apart; the classes with the most samples are shown


def embed(run: Run) -> dict[str, Any] | None:
    """Points (x, y, class, client) of each kind in the plane, from the run's last checkpoint.

    None where there is nothing to draw: no checkpoint, data that is not on this machine, or a method whose server sends
    no class vectors. Networks that are somebody's own code are imported: the run was opened with trust, or names none.
    """
    import torch
    from safetensors import SafetensorError
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

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
        column = 0 if sent["rows"].shape[1] == setup.task.feature_dim else 1
        with one_thread(), torch.no_grad():
            host = Host(setup, torch.device("cpu"))
            try:
                host.restore(checkpoint.path)
                features, feature_of, means, mean_of = _client_vectors(host, experiment.clients, column)
            finally:
                host.close()  # no weights of clients stay behind on the disk
    except (FedL2GError, OSError, KeyError, RuntimeError, SafetensorError):
        return None  # a checkpoint of another version or half deleted: the report is complete without this figure
    shown = _largest_classes(feature_of, MOST_CLASSES)
    parts: dict[str, tuple[torch.Tensor, list[Any]]] = {
        "guide": (sent["rows"], [(int(c), None) for c in sent["ids"]]),
        "mean": (means, mean_of),
        "feature": (features, feature_of),
    }
    rows, owners, kinds = [], [], []
    for kind, (vectors, owner) in parts.items():
        for vector, (label, client) in zip(vectors, owner, strict=True):
            if label in shown:
                rows.append(vector.double())
                owners.append((label, client))
                kinds.append(kind)
    if len(rows) < 8:
        return None
    points = torch.stack(rows).numpy()
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1):  # more threads wait for each other longer than they work on so few points
        plane = TSNE(perplexity=perplexity, init="pca", random_state=0, max_iter=500).fit_transform(points)
    plane = (plane - plane.mean(0)) / max(abs(plane).max(), 1e-9)
    return {
        "round": checkpoint.round,
        "space": "features" if column == 0 else "logits",
        "classes": sorted(shown),
        "class_names": list(dataset.class_names),
        "points": [
            [number(float(x), 4), number(float(y), 4), kind, *owner]
            for (x, y), kind, owner in zip(plane, kinds, owners, strict=True)
        ],
    }


def _client_vectors(
    host: Host, clients: int, column: int
) -> tuple[torch.Tensor, list[tuple[int, int]], torch.Tensor, list[tuple[int, int]]]:
    """Features (or logits) of some test samples of each client, and each client's class means over all of them."""
    import torch

    features, feature_of, means, mean_of = [], [], [], []
    for client in range(clients):
        half = host.half(client)
        half.model.eval()
        test = half.client.test_set
        vectors, labels = [], []
        for x, y in test.batches(250):
            vectors.append(half.model(x)[column])
            labels.append(y)
        all_vectors, all_labels = torch.cat(vectors), torch.cat(labels)
        for label in sorted(set(all_labels.tolist())):
            means.append(all_vectors[all_labels == label].mean(0))
            mean_of.append((int(label), client))
        step = max(1, len(all_labels) * clients // MOST_FEATURES)
        for index in range(0, len(all_labels), step):
            features.append(all_vectors[index])
            feature_of.append((int(all_labels[index]), client))
    return torch.stack(features), feature_of, torch.stack(means), mean_of


def _largest_classes(owners: list[tuple[int, int]], most: int) -> set[int]:
    counts: dict[int, int] = {}
    for label, _ in owners:
        counts[label] = counts.get(label, 0) + 1
    return set(sorted(counts, key=lambda label: (-counts[label], label))[:most])
