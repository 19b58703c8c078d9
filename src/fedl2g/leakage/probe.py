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
from typing import Any

import numpy as np
import torch

from fedl2g.engines.base import Check
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.leakage.membership import members_of, sample_areas
from fedl2g.methods.base import Reply, Vectors
from fedl2g.methods.registry import get_method, method_names
from fedl2g.payload import PRESENT, Payload
from fedl2g.process import one_thread
from fedl2g.round.record import MB, best_record
from fedl2g.setup import Progress, Setup, prepare


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
    """Run an experiment (without a run directory), look at every upload, and say how much it gave away.

    All clients live in this process, whatever engine the experiment names: the numbers are the same, and the question
    about samples needs the clients' networks.
    """
    method = get_method(experiment.method.name)
    if method.traits.uploads != "class vectors":
        able = [name for name in method_names() if get_method(name).traits.uploads == "class vectors"]
        raise SettingError(
            f"method: {method.name} does not upload class vectors, so there is nothing to probe; choose one of "
            f"{', '.join(able)}"
        )
    setup = prepare(experiment, progress)
    has = _classes_held(setup)
    if all(row.all() or not row.any() for row in has):
        raise SettingError(
            "partition: every client has all classes (or none), so there is nothing to guess; choose a skewed one, for "
            "example dirichlet:0.1"
        )
    engine = _RecordingEngine(setup, method.traits.vectors)
    server = method.server(setup.experiment.method, setup.task)
    federation = Federation(setup.experiment, server, engine, observers)
    try:
        federation.run()
    finally:
        engine.close()
    best = best_record(federation.history)
    assert best is not None
    assert best.accuracy is not None
    rounds = federation.history[1:]
    return Leak(
        method.name,
        best.accuracy.pooled,
        len(rounds),
        *_areas(engine.scores, has),
        statistics.fmean(r.up_bytes for r in rounds) / MB if rounds else 0.0,
        rounds[-1].privacy.get("epsilon") if rounds else None,
        statistics.fmean(engine.sample_areas) if engine.sample_areas else None,
    )


def _classes_held(setup: Setup) -> np.ndarray:
    """Clients x classes: whether the client trains on samples of the class."""
    has = np.zeros((setup.experiment.clients, setup.dataset.classes), dtype=bool)
    for client, indices in enumerate(setup.partition.train):
        has[client, np.unique(setup.dataset.labels[indices])] = True
    return has


class _RecordingEngine(InlineEngine):
    """The inline engine, which also records of every upload what it says about its client."""

    def __init__(self, setup: Setup, vectors: Vectors) -> None:
        super().__init__(setup)
        self.vectors = vectors
        self.classes = setup.dataset.classes
        self.scores: list[tuple[int, np.ndarray]] = []  # client, scores of its classes
        self.sample_areas: list[float] = []  # the area of each row that samples were tried on

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Reply]:
        for reply in super().train(round, clients, payload, check):
            self.scores.append((reply.client, _class_scores(reply.payload, self.classes)))
            half = self.host.half(reply.client)
            members = members_of(half, self.vectors, round)
            if members is not None:
                with one_thread():
                    self.sample_areas += sample_areas(
                        half, self.vectors, members, half.client.test_set, payload, reply.payload
                    )
            yield reply


def _class_scores(upload: Payload, classes: int) -> np.ndarray:
    """How much an upload speaks for each class being there."""
    scores = torch.zeros(classes, dtype=torch.float64)
    norms = torch.linalg.vector_norm(upload["rows"].double(), dim=1)
    scores[upload["ids"]] = upload[PRESENT].double() if PRESENT in upload else norms
    return scores.numpy()


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
