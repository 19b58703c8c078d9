"""The trained networks in a run directory: of each client, after the best round or after the last one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedl2g.datasets import Dataset
from fedl2g.engines.host import EVALUATION_BATCH, Host
from fedl2g.engines.states import State
from fedl2g.errors import PayloadError, RunError, SettingError, count, shown
from fedl2g.methods.base import AnyClientHalf
from fedl2g.methods.registry import get_method
from fedl2g.models import SplitModel
from fedl2g.payload import Payload, check_payload, tensors_spec
from fedl2g.process import one_thread
from fedl2g.runs.checkpoint import Checkpoint, newest
from fedl2g.runs.directory import RunDirectory
from fedl2g.setup import Setup, load_data

Which = Literal["best", "last"]


@dataclass(frozen=True)
class ClientModel:
    """One client as it was after a round, with everything its method predicts with."""

    client: int
    architecture: str
    which: Which
    round: int
    trained: bool  # False: the client had not trained by then, its network is the initial one
    half: AnyClientHalf

    @property
    def network(self) -> SplitModel:
        """The client's own network, in eval mode."""
        return self.half.model

    @cached_property
    def test_scores(self) -> tuple[Tensor, Tensor]:
        """The labels of the client's test samples, and the scores (N x classes) that its method gives them."""
        labels, scores = [], []
        with torch.no_grad(), one_thread():
            for x, y in self.half.client.test_set.batches(EVALUATION_BATCH):
                labels.append(y)
                scores.append(self.half.predict(x))
        return torch.cat(labels), torch.cat(scores)

    @property
    def counts(self) -> tuple[int, int]:
        """The correct predictions and the number of the client's test samples."""
        labels, scores = self.test_scores
        return int((scores.argmax(1) == labels).sum()), len(labels)


class TrainedModels(Mapping[int, SplitModel]):
    """The clients' networks in a run directory by number, loaded one at a time.

    `models[3]` is the network of client 3 after the best round, `models.last[3]` after the last one; `load(3)` also
    gives the round and predictions. `data` is the experiment's dataset if it is already loaded.
    """

    def __init__(self, directory: RunDirectory, which: Which = "best", *, data: Dataset | None = None) -> None:
        self.directory = directory
        self.which: Which = which
        self._data = data

    def __repr__(self) -> str:
        return f"<trained networks of {count(len(self), 'client')}, {self.which}, in {self.directory.path}>"

    @property
    def best(self) -> TrainedModels:
        """The networks after the best round."""
        return TrainedModels(self.directory, "best", data=self._data)

    @property
    def last(self) -> TrainedModels:
        """The networks after the last round."""
        return TrainedModels(self.directory, "last", data=self._data)

    def __getitem__(self, client: int) -> SplitModel:
        if client not in range(len(self)):
            raise KeyError(f"{shown(client)} is not a client; expected 0 to {len(self) - 1}")
        return self.load(client).network

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self.setup.experiment.clients

    @cached_property
    def setup(self) -> Setup:
        """The run's experiment, data and partition."""
        experiment = self.directory.experiment()
        dataset = load_data(experiment) if self._data is None else self._data
        if dataset.fingerprint != self.directory.about()["dataset_fingerprint"]:
            raise RunError(
                f"dataset: {experiment.dataset!r} is not the one {self.directory.path} was run with; restore that "
                "dataset"
            )
        return Setup(experiment, dataset, self.directory.partition(len(dataset.labels)))

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Where the networks are stored."""
        path = self.directory.path
        if self.directory.deployed:
            raise RunError(f"{path}: the run of a deployment, whose models are at the sites; export them there")
        found = newest(self.directory.checkpoints)
        if found is None:
            raise RunError(f"{path}: holds no checkpoint yet; run it first")
        if self.which == "last":
            return found
        if found.best is None:
            raise RunError(
                f"{path}: holds no models of its best round (execution.keep_best was off); "
                "take those of the last round, --which last"
            )
        return found.best

    @cached_property
    def _broadcast(self) -> Payload:
        """What the server would have sent next, for methods that predict with it."""
        experiment, task = self.setup.experiment, self.setup.task
        method = get_method(experiment.method.name)
        if not method.traits.predicts_with_broadcast:
            return {}
        server = method.server(experiment.method, task)
        state = self.checkpoint.server()
        try:
            check_payload(state, tensors_spec(server.state_dict()))
        except PayloadError as error:
            raise RunError(
                f"{self.checkpoint.path}: does not fit this experiment ({error}); restore it from a copy"
            ) from error
        server.load_state_dict(state)
        return server.broadcast(self.checkpoint.round + 1)

    def load(self, client: int) -> ClientModel:
        """One client with its network and what its method predicts with."""
        if not 0 <= client < len(self):
            raise SettingError(
                f"--client: {client} is not a client of {self.directory.path}; clients are numbered 0 to "
                f"{len(self) - 1}"
            )
        checkpoint = self.checkpoint
        return client_model(
            self.setup, client, checkpoint.client(client), self._broadcast, which=self.which, round=checkpoint.round
        )


def client_model(
    setup: Setup, client: int, state: State | None, broadcast: Payload, *, which: Which, round: int
) -> ClientModel:
    """A client with a stored state (None: its initial one) and the broadcast that its method predicts with, if any."""
    architecture = setup.architecture(client)
    host = Host(setup, torch.device("cpu"))  # one for each client: none is ever evicted to disk
    half = host.half(client)
    try:
        if state is not None:
            half.state.load_state_dict(state)
        if host.method.traits.predicts_with_broadcast and broadcast:
            half.check(broadcast)
            half.receive(broadcast)
    except (RuntimeError, PayloadError) as error:
        raise RunError(
            f"model: the stored state does not fit {architecture} with {setup.task.classes} classes "
            f"({' '.join(str(error).split())}); restore the model's name or code"
        ) from error
    half.model.eval()
    return ClientModel(client, architecture, which, round, state is not None, half)
