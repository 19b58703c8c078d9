"""A leakage probe: how well do uploads tell which classes a client has, and which samples were in them?

The attacker sees the uploads as the server does, after noise and clipping. It scores each class of a client by the
norm of the row that was sent for it (0 for a row that was not sent; with a noisy count, by that count). The result is
the area under the ROC curve of "the client trains on samples of this class", mean over clients: 1 is certainty, 0.5 is
guessing. What is asked about samples, and by whom, stands in `fedl2g.leakage.membership`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedl2g.engines.base import Absence, Engine, Evaluation, open_engine
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.leakage.membership import members_of, sample_areas
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.process import one_thread
from fedl2g.round.record import best_record
from fedl2g.setup import Progress, prepare


@dataclass(frozen=True)
class Leak:
    """What a probe found, beside what the method achieved."""

    method: str
    accuracy: float  # best pooled test accuracy
    rounds: int
    one_round: float  # AUC from one round's upload, mean over rounds and clients
    all_rounds: float  # AUC from all uploads of a client together
    up_mb_per_round: float
    epsilon: float | None  # spent, where there is a guarantee
    samples: float | None  # AUC of "this sample was in the upload", mean over rows; None where it cannot be asked

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def probe(experiment: Experiment, observers: Sequence[Observer] = (), *, progress: Progress | None = None) -> Leak:
    """Run an experiment (without a run directory), look at every upload, and say how much it gave away."""
    method = get_method(experiment.method.name)
    if method.server.uploads != "class vectors":
        raise SettingError(
            f"method: {method.name} does not upload class vectors; the probe works for those that do, such as "
            "fedproto, feddistill, fedgh, fedl2g-l and fedl2g-f"
        )
    setup = prepare(experiment, progress)
    experiment, dataset, partition = setup.experiment, setup.dataset, setup.partition
    has = np.zeros((experiment.clients, dataset.classes), dtype=bool)
    for client, indices in enumerate(partition.train):
        has[client, np.unique(dataset.labels[indices])] = True
    if all(row.all() or not row.any() for row in has):
        raise SettingError(
            "partition: every client has all classes (or none), so there is nothing to guess; choose a skewed one, for "
            "example dirichlet:0.1"
        )
    tap = _Tap(open_engine(setup), dataset.classes)
    federation = Federation(experiment, method.server(experiment.method, setup.task), tap, observers)
    try:
        federation.run()
    finally:
        tap.close()
    best = best_record(federation.history)
    assert best is not None
    assert best.accuracy is not None
    rounds = federation.history[1:]
    return Leak(
        method.name,
        best.accuracy.pooled,
        len(rounds),
        *_areas(tap.seen, has),
        statistics.fmean(r.up_bytes for r in rounds) / 2**20 if rounds else 0.0,
        rounds[-1].privacy.get("epsilon") if rounds else None,
        statistics.fmean(tap.samples) if tap.samples else None,
    )


class _Tap:
    """An engine in whose line somebody listens."""

    def __init__(self, engine: Engine, classes: int) -> None:
        self.engine = engine
        self.classes = classes
        self.seen: list[tuple[int, np.ndarray]] = []  # client, scores of its classes
        self.samples: list[float] = []  # the area of each row that samples were tried on

    def train(self, round: int, participants: Sequence[int], payload: Payload) -> Iterator[Reply | Absence]:
        for answer in self.engine.train(round, participants, payload):
            if isinstance(answer, Reply):
                self.seen.append((answer.client, self._scores(answer.payload)))
                self._try_samples(round, answer, payload)
            yield answer

    def _try_samples(self, round: int, reply: Reply, sent: Payload) -> None:
        if not isinstance(self.engine, InlineEngine):
            return  # the clients' networks are in other processes
        half = self.engine.host.half(reply.client)
        members = members_of(half, round)
        if members is not None:
            with one_thread():
                self.samples += sample_areas(half, members, half.client.test_set, sent, reply.payload)

    def _scores(self, upload: Payload) -> np.ndarray:
        scores = torch.zeros(self.classes, dtype=torch.float64)
        known = upload.get("present")
        norms = torch.linalg.vector_norm(upload["rows"].double(), dim=1)
        scores[upload["ids"]] = norms if known is None else known.double()
        return scores.numpy()

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation]:
        return self.engine.evaluate(clients, payload)

    def save(self, directory: Path) -> None:
        self.engine.save(directory)

    def restore(self, directory: Path | None) -> None:
        self.engine.restore(directory)

    def revive(self) -> None:
        self.engine.revive()

    def close(self) -> None:
        self.engine.close()


def _areas(seen: Sequence[tuple[int, np.ndarray]], has: np.ndarray) -> tuple[float, float]:
    """AUC from single uploads and from all uploads of each client; of clients that have some classes but not all."""
    from sklearn.metrics import roc_auc_score

    judged = [c for c in range(len(has)) if has[c].any() and not has[c].all()]
    single = [roc_auc_score(has[client], scores) for client, scores in seen if client in judged]
    together = []
    for client in judged:
        scores = [found for who, found in seen if who == client]
        if scores:
            together.append(roc_auc_score(has[client], np.mean(scores, axis=0)))
    return (statistics.fmean(single), statistics.fmean(together)) if single else (0.5, 0.5)
