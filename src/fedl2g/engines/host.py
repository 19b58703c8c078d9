"""A host builds, trains and evaluates the clients of one process; engines are different ways to reach hosts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fedl2g.engines.base import Evaluation
from fedl2g.engines.evaluations import Evaluations
from fedl2g.engines.memory import memory_budget
from fedl2g.engines.residency import Residency
from fedl2g.engines.states import State, StateStore
from fedl2g.learning.client import Client
from fedl2g.learning.devices import synchronizer
from fedl2g.learning.preparation import Preparation, chunks, preparation
from fedl2g.learning.profiling import OTHER, watch
from fedl2g.learning.scores import balanced_accuracy_and_f1
from fedl2g.learning.training import SampleView
from fedl2g.methods.base import AnyClientHalf, Reply, Report
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.process import keep_freed_memory
from fedl2g.setup import Setup
from fedl2g.uploads.stage import Upload
from fedl2g.uploads.stages import upload_stages

EVALUATION_BATCH = 250


@dataclass(frozen=True)
class _Predictions:
    """One client's predictions of its test samples; of its validation samples, how many are right."""

    labels: Tensor
    predicted: Tensor
    others: dict[str, int]  # correct predictions of the method's additional predictors
    held: int  # validation samples
    right: int


class Host:
    """The clients of one process; `share` is (index of this host, number of hosts on this machine).

    Clients that do not fit in the host's share of the memory are evicted to a folder below `scratch`.
    """

    def __init__(
        self, setup: Setup, device: torch.device, *, share: tuple[int, int] = (0, 1), scratch: Path | None = None
    ) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        self.setup = setup
        self.task = setup.task
        self.device = device
        self.method = get_method(setup.experiment.method.name)
        self.stages = upload_stages(setup.experiment, self.task.classes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # read-only arrays: memory maps, which are never written
            self.inputs = torch.from_numpy(setup.dataset.inputs)
            self.labels = torch.from_numpy(setup.dataset.labels)
        self._statistics: dict[int, State] = {}
        self.clients = Residency(
            self._build,
            setup.architecture,
            memory_budget(setup.experiment, device, hosts=share[1]),
            StateStore(scratch / f"host-{share[0]}" if scratch else None),
            scratch,
        )
        self._evaluations = Evaluations(self.method.traits)
        if setup.experiment.execution.profile:
            watch.on(synchronizer(device))
        else:
            watch.off()  # an earlier run in this process may have left it on

    def half(self, client: int) -> AnyClientHalf:
        """One client's half of the method, loaded into memory if necessary."""
        return self.clients.get(client)

    def expect_training(self, clients: Sequence[int]) -> None:
        """Announce the clients about to be trained, in this order, so that their states are prefetched."""
        self.clients.expect(clients)

    def _build(self, client: int) -> AnyClientHalf:
        architecture, partition = self.setup.architecture(client), self.setup.partition
        # Always a new network, never a recycled one: a method's half may keep references to its initial tensors.
        model = self.task.build_client(architecture, client)
        if self.device.type != "cpu":
            model = model.to(self.device)
        parts = (partition.train, partition.test, partition.validation or ((),) * partition.clients)
        sides = [torch.as_tensor(part[client], dtype=torch.int64) for part in parts]
        prepare = self._preparation(client, sides[0])
        train, test, validation = (
            SampleView(
                self.inputs,
                self.labels,
                indices,
                prepare=prepare,
                device=self.device,
                layout=self.task.layout(architecture),
            )
            for indices in sides
        )
        built = Client(client, self.task, model, train, test, validation)
        self.stages.prepare(built)
        half = self.method.client(self.setup.experiment.method, built)
        built.keep_moments(half.state)
        return half

    def _preparation(self, client: int, train: Tensor) -> Preparation:
        """A client's preparation, with the statistics of its train samples: computed only once."""
        prepare = preparation(self.setup.dataset, self.inputs.dtype, self.task.dtype)
        if client not in self._statistics:
            prepare.fit(chunks(self.inputs, train))
            self._statistics[client] = {name: value.clone() for name, value in prepare.state_dict().items()}
        prepare.load_state_dict(self._statistics[client])
        return prepare.to(self.device)

    def train(self, client: int, round: int, payload: Payload) -> Reply:
        """Run one client's round."""
        entered = time.perf_counter()
        half = self.half(client)
        half.check(payload)
        started = time.perf_counter()
        trained = half.train(round, payload)
        seconds = time.perf_counter() - started
        self.clients.measure(client, "trained")
        if self.method.traits.moves(trained.log.steps):
            self.clients.changed(client)
            self._evaluations.forget(client)
        log = trained.log
        report = Report(
            len(half.client.train_set), log.steps, log.cross_entropy, seconds, watch.take(), dict(log.metrics)
        )
        sent = {name: tensor.detach().cpu().contiguous() for name, tensor in trained.payload.items()}
        decode = partial(self._decode, half)
        upload = self.stages.apply(Upload(client, round, sent, report, payload, decode))
        if self.setup.experiment.execution.profile:  # loading and packing are not part of the training seconds
            upload.report.laps[OTHER] = time.perf_counter() - entered - seconds
        return Reply(client, upload.payload, upload.report)

    def _decode(self, half: AnyClientHalf, payload: Payload) -> Payload:
        return self.method.traits.codec.decode(payload, half.expected())

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation]:
        """Evaluate clients on their own test and validation sets; cached evaluations are returned as they are."""
        asked = [client for client in clients if client not in self._evaluations]
        found = {client: self._evaluations[client] for client in clients if client in self._evaluations}
        self.clients.expect(asked)
        predictions = [self._predictions(client, payload) for client in asked]
        if predictions:
            scores = balanced_accuracy_and_f1(
                [p.labels for p in predictions], [p.predicted for p in predictions], self.task.classes
            )
            for client, p, (balanced, macro_f1) in zip(asked, predictions, scores, strict=True):
                samples, correct = len(p.labels), int((p.labels == p.predicted).sum())
                found[client] = Evaluation(client, samples, correct, p.others, balanced, macro_f1, p.held, p.right)
                self._evaluations.add(found[client])
        return [found[client] for client in clients]

    def _predictions(self, client: int, payload: Payload) -> _Predictions:
        half = self.half(client)
        if self.method.traits.predicts_with_broadcast:
            half.check(payload)
            half.receive(payload)
        half.model.eval()
        others: dict[str, Tensor] = {}
        labels, predicted = [], []
        with torch.no_grad():
            for x, y in half.client.test_set.batches(EVALUATION_BATCH):
                labels.append(y)
                predicted.append(half.predict(x).argmax(1))
                for name, scores in half.other_predictions(x).items():
                    others[name] = others.get(name, torch.zeros_like(y[0])) + (scores.argmax(1) == y).sum()
            held = half.client.validation_set
            right = [(half.predict(x).argmax(1) == y).sum() for x, y in held.batches(EVALUATION_BATCH)] if held else []
        self.clients.measure(client, "evaluated")
        counts = {name: int(count) for name, count in others.items()}
        return _Predictions(torch.cat(labels), torch.cat(predicted), counts, len(held), sum(map(int, right)))

    def save(self, directory: Path) -> None:
        """Write one file per changed client."""
        self.clients.save(directory)

    def restore(self, directory: Path | None, clients: frozenset[int] | None = None) -> None:
        """Reset every client, then load the states in the directory; only those of `clients`, if given."""
        self._evaluations.clear()
        self.clients.restore(directory, clients)

    def state(self, client: int) -> State:
        """A copy of everything that changes over rounds on one client."""
        return self.clients.state(client)

    def load_state(self, client: int, state: State) -> None:
        """Load a state returned by `state` into one client."""
        self.clients.load(client, state)
        self._evaluations.forget(client)

    def close(self) -> None:
        """Discard every client, in memory and on disk."""
        self._evaluations.clear()
        self.clients.close()
