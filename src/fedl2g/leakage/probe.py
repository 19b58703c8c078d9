"""A leakage probe: how well can a client's classes and samples be inferred from its uploads?

The attacker sees the uploads as the server does, after clipping and noise. It scores each class of a client by the norm
of the uploaded row (0 for a row that was not sent), or by the noisy count if there is one. The result is the area under
the ROC curve of "the client trains on samples of this class", averaged over clients: 1 is certainty, 0.5 is guessing.
The attack on samples is described in `fedl2g.leakage.membership`.
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
from fedl2g.round.record import MB, Guarantee, Selection, guarantee_of, selected_record, selection_of
from fedl2g.setup import Progress, Setup, prepare


@dataclass(frozen=True)
class Leak:
    """The result of a probe, with the accuracy of the method."""

    method: str
    accuracy: float  # pooled test accuracy in the best round
    rounds: int
    one_round: float  # AUC from one round's upload, mean over rounds and clients
    all_rounds: float  # AUC from all uploads of a client together
    up_mb_per_round: float
    epsilon: float | None  # spent; None without a privacy guarantee
    samples: float | None  # AUC of sample membership, mean over rows; None if it cannot be probed
    guarantee: Guarantee | None = None  # "simulated": the noise was not secret
    selection: Selection = "test"  # the samples that chose the best round

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def probe(experiment: Experiment, observers: Sequence[Observer] = (), *, progress: Progress | None = None) -> Leak:
    """Run an experiment (without a run directory) and measure the leakage of every upload.

    It always uses the inline engine, whatever the experiment names: the numbers are the same, and the attack on samples
    needs the clients' networks.
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
    best = selected_record(federation.history)
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
        guarantee_of(rounds[-1].privacy) if rounds else None,
        selection_of(federation.history),
    )


def _classes_held(setup: Setup) -> np.ndarray:
    """Clients x classes: whether the client trains on samples of the class."""
    has = np.zeros((setup.experiment.clients, setup.dataset.classes), dtype=bool)
    for client, indices in enumerate(setup.partition.train):
        has[client, np.unique(setup.dataset.labels[indices])] = True
    return has


class _RecordingEngine(InlineEngine):
    """The inline engine, which also scores every upload."""

    def __init__(self, setup: Setup, vectors: Vectors) -> None:
        super().__init__(setup)
        self.vectors = vectors
        self.classes = setup.dataset.classes
        self.scores: list[tuple[int, np.ndarray]] = []  # client and its scores by class
        self.sample_areas: list[float] = []  # AUC of each probed row

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
    """The attacker's score of each class, from one upload."""
    scores = torch.zeros(classes, dtype=torch.float64)
    norms = torch.linalg.vector_norm(upload["rows"].double(), dim=1)
    scores[upload["ids"]] = upload[PRESENT].double() if PRESENT in upload else norms
    return scores.numpy()


def _areas(seen: Sequence[tuple[int, np.ndarray]], has: np.ndarray) -> tuple[float, float]:
    """AUC from single uploads and from all uploads of a client, over clients with some but not all classes."""
    from sklearn.metrics import roc_auc_score

    scored = [c for c in range(len(has)) if has[c].any() and not has[c].all()]
    single = [roc_auc_score(has[client], scores) for client, scores in seen if client in scored]
    together = []
    for client in scored:
        scores = [found for who, found in seen if who == client]
        if scores:
            together.append(roc_auc_score(has[client], np.mean(scores, axis=0)))
    return (statistics.fmean(single), statistics.fmean(together)) if single else (0.5, 0.5)
