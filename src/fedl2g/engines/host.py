"""A host: the clients that live in one process. Every engine is a way to reach hosts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fedl2g.client import Client, Task
from fedl2g.data import Dataset, Partition
from fedl2g.engines.base import Evaluation
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.base import ClientHalf, Reply, Report
from fedl2g.methods.registry import get_method
from fedl2g.models.catalog import is_factory
from fedl2g.payload import Payload
from fedl2g.privacy.noise import add_noise
from fedl2g.robustness.attacks import corrupt, hostile_clients, random_labels
from fedl2g.training import ImageView

EVALUATION_BATCH = 250
_METHOD = "method."  # prefix of a method's private tensors in a client's state file


@dataclass(frozen=True)
class Site:
    """What is needed to bring clients to life: the experiment, the data and who holds which samples."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition

    @property
    def task(self) -> Task:
        """What the server and all clients know in common."""
        e = self.experiment
        return Task(
            classes=self.dataset.classes,
            image_shape=self.dataset.image_shape,
            seed=e.seed,
            rounds=e.rounds,
            auxiliary=e.architectures[0],
            batch_size=e.batch_size,
            local_epochs=e.local_epochs,
            client_lr=e.client_lr,
            reshuffle=e.reshuffle,
            dtype=getattr(torch, e.precision),
            aggregation=e.aggregation,
        )

    def check(self) -> None:
        """Refuse, before anything is written, a device that is not there or a user's network that does not fit."""
        resolve_device(self.experiment.device)
        for name in dict.fromkeys(self.experiment.architectures):
            if is_factory(name):
                self.task.build(name, "check")

    def architecture(self, client: int) -> str:
        """The architecture of one client."""
        return self.experiment.architectures[client % len(self.experiment.architectures)]


class Host:
    """Builds clients when they are first needed, keeps them, trains and evaluates them."""

    def __init__(self, site: Site, device: torch.device) -> None:
        self.site = site
        self.task = site.task
        self.device = device
        self.method = get_method(site.experiment.method.name)
        with warnings.catch_warnings():  # the shared arrays are read-only memory maps, and nobody writes to them
            warnings.simplefilter("ignore", UserWarning)
            self.images = torch.from_numpy(site.dataset.images)
            self.labels = torch.from_numpy(site.dataset.labels)
        self.hostile = hostile_clients(site.experiment.attack, site.experiment.clients, self.task.seed)
        self._halves: dict[int, ClientHalf[Any]] = {}
        self._changed: set[int] = set()
        self._evaluations: dict[int, Evaluation] = {}

    def half(self, client: int) -> ClientHalf[Any]:
        """One client's half of the method, with its client inside."""
        if client not in self._halves:
            self._halves[client] = self._build(client)
        return self._halves[client]

    def _build(self, client: int) -> ClientHalf[Any]:
        model = self.task.build(self.site.architecture(client), "init", client).to(self.device)
        train, test = (
            ImageView(
                self.images, self.labels, torch.as_tensor(part[client]), device=self.device, dtype=self.task.dtype
            )
            for part in (self.site.partition.train, self.site.partition.test)
        )
        if client in self.hostile and self.site.experiment.attack.kind == "random_labels":
            train.labels = random_labels(
                train.labels, train.indices, self.task.classes, self.site.experiment.attack, self.task.seed, client
            )
        return self.method.client(self.site.experiment.method, Client(client, self.task, model, train, test))

    def train(self, client: int, round: int, payload: Payload) -> Reply:
        """One client's round."""
        half = self.half(client)
        half.check(payload)
        half.client.log = type(half.client.log)()
        started = time.perf_counter()
        upload = half.train(round, payload)
        seconds = time.perf_counter() - started
        log = half.client.log
        if log.steps:
            self._changed.add(client)
            self._evaluations.pop(client, None)
        report = Report(len(half.client.train_set), log.steps, log.cross_entropy, seconds)
        upload = {name: t.detach().cpu() for name, t in upload.items()}
        upload = add_noise(upload, self.site.experiment.noise, self.task.seed, client, round)
        if client in self.hostile:
            upload = corrupt(upload, payload, self.site.experiment.attack, self.task.seed, client, round)
        return Reply(client, upload, report)

    def evaluate(self, client: int, payload: Payload) -> Evaluation:
        """One client's predictions on its own test set; a model that has not moved is not evaluated again."""
        half = self.half(client)
        if client in self._evaluations and not half.predicts_with_broadcast:
            return self._evaluations[client]
        if half.predicts_with_broadcast:
            half.check(payload)
            half.receive(payload)
        half.model.eval()
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        others: dict[str, Tensor] = {}
        with torch.no_grad():
            for x, y in half.client.test_set.batches(EVALUATION_BATCH):
                correct += (half.predict(x).argmax(1) == y).sum()
                for name, scores in half.other_predictions(x).items():
                    others[name] = others.get(name, torch.zeros_like(correct)) + (scores.argmax(1) == y).sum()
        result = Evaluation(
            client, len(half.client.test_set), int(correct), {name: int(count) for name, count in others.items()}
        )
        self._evaluations[client] = result
        return result

    def save(self, directory: Path) -> None:
        """Write each changed client's state into a file of its own."""
        for client in sorted(self._changed):
            safetensors.torch.save_file(self.state(client), client_file(directory, client))

    def state(self, client: int) -> dict[str, Tensor]:
        """A copy of all that changes over rounds on one client: its network and the method's private tensors."""
        half = self.half(client)
        state = dict(half.model.state_dict())
        state |= {_METHOD + name: tensor for name, tensor in half.state_dict().items()}
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}

    def restore(self, directory: Path | None) -> None:
        """Forget every client's state and take the one in the directory, where there is one."""
        self._evaluations.clear()
        self._halves.clear()
        self._changed.clear()
        if directory is None:
            return
        for path in directory.glob("client-*.safetensors"):
            client = int(path.stem.removeprefix("client-"))
            if self.holds(client):
                self.load_state(client, safetensors.torch.load_file(path))

    def holds(self, client: int) -> bool:
        """Whether a client of that number lives in this process."""
        return True

    def load_state(self, client: int, state: dict[str, Tensor]) -> None:
        """Bring one client to a state that `state` gave."""
        half = self.half(client)
        private = {name.removeprefix(_METHOD): state.pop(name) for name in list(state) if name.startswith(_METHOD)}
        half.model.load_state_dict(state)
        half.load_state_dict(private)
        self._changed.add(client)


def client_file(directory: Path, client: int) -> Path:
    """Where a checkpoint keeps one client's state."""
    return directory / f"client-{client:06d}.safetensors"


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block: numbers must not depend on how many cores a machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def resolve_device(name: str, worker: int = 0) -> torch.device:
    """The device a host computes on; several are dealt out to the workers in turn."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    devices = [torch.device(part) for part in name.split(",")]
    for device in devices:
        if device.type != "cpu" and (device.index or 0) >= torch.get_device_module(device).device_count():
            raise SettingError(
                f"device: this machine has no {str(device)!r}; use --device cpu, or auto to take what is there"
            )
    return devices[worker % len(devices)]
