"""A host: the clients that live in one process. Every engine is a way to reach hosts."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedl2g.engines.base import Evaluation
from fedl2g.engines.states import Shapes, State, StateStore, available_bytes, shapes_of, stored_shapes
from fedl2g.errors import PayloadError, RunError
from fedl2g.experiment import Experiment
from fedl2g.experiment.policies import Privacy
from fedl2g.learning.client import Client
from fedl2g.learning.profiling import OTHER, watch
from fedl2g.learning.training import ImageView
from fedl2g.methods.base import ClientHalf, Reply, Report
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.process import keep_freed_memory
from fedl2g.uploads.attack import corrupt, hostile_clients, random_labels
from fedl2g.uploads.mechanism import Protection
from fedl2g.uploads.noise import add_noise

EVALUATION_BATCH = 250
_MODULE_BYTES = 4096  # of a module beside its tensors' values (measured: 3.3 to 3.8 KB in the small networks)
_METHOD = "method."  # prefix of a method's private tensors in a client's state file


def protection_of(experiment: Experiment) -> Protection | None:
    """What is done to uploads for privacy; None when nothing is."""
    if experiment.privacy == Privacy():
        return None
    e = experiment
    return Protection(e.privacy, e.clients, e.participation, e.rounds, e.seed)


class Host:
    """Builds clients when they are first needed, keeps them, trains and evaluates them.

    Of the clients that do not fit in its share of the memory, the least recently used wait on disk. `share` says which
    of how many hosts on this machine it is.
    """

    def __init__(self, setup: Setup, device: torch.device, share: tuple[int, int] = (0, 1)) -> None:
        if device.type == "cpu":
            keep_freed_memory()
        self.setup = setup
        self.task = setup.task
        self.device = device
        self.method = get_method(setup.experiment.method.name)
        with warnings.catch_warnings():  # the shared arrays are read-only memory maps, and nobody writes to them
            warnings.simplefilter("ignore", UserWarning)
            self.images = torch.from_numpy(setup.dataset.images)
            self.labels = torch.from_numpy(setup.dataset.labels)
        self.hostile = hostile_clients(setup.experiment.attack, setup.experiment.clients, self.task.seed)
        self.budget = memory_budget(setup.experiment, device, hosts=share[1])
        self._halves: OrderedDict[int, ClientHalf[Any]] = OrderedDict()  # those in memory, the last used at the end
        self._bytes: dict[str, int] = {}  # what a client of each architecture takes
        self._weighed: set[tuple[str, str]] = set()
        self._taken = 0
        self._changed: set[int] = set()  # all that are not as freshly built, in memory or not
        self._unsaved: set[int] = set()  # those in memory that have changed since the store saw them
        self._store = StateStore(setup.scratch / f"host-{share[0]}" if setup.scratch else None)
        self._coming: deque[int] = deque()
        self._evaluations: dict[int, Evaluation] = {}
        if setup.experiment.execution.profile:
            watch.on(synchronizer(device))
        else:
            watch.off()  # an earlier run in this process may have used it

    def half(self, client: int) -> ClientHalf[Any]:
        """One client's half of the method, with its client inside."""
        if client in self._halves:
            self._halves.move_to_end(client)
        else:
            half = self._build(client)
            if client in self._store:
                with self._disk("read", "continue"):
                    state = self._store.read(client)
                _load(half, state)
            self._halves[client] = half
            self._taken += self._bytes.get(self.setup.architecture(client), 0)
            self._weigh(client, "built")
            self._make_room()
        while self._coming and self._coming[0] == client:
            self._coming.popleft()
        if self._coming and self._coming[0] not in self._halves:
            self._store.read_ahead(self._coming[0])
        return self._halves[client]

    def expect(self, clients: Sequence[int], *, evaluation: bool = False) -> None:
        """Say who is about to be trained or evaluated, in this order."""
        self._coming = deque(c for c in clients if not (evaluation and self._has_evaluated(c)))

    def _has_evaluated(self, client: int) -> bool:
        """Whether the last evaluation of a client still holds; known without the client, who may be on disk."""
        return client in self._evaluations and not self.method.client.predicts_with_broadcast

    def _weigh(self, client: int, when: str) -> None:
        """Learn what clients of this architecture take: once as built, once as used, which may leave tensors behind."""
        architecture = self.setup.architecture(client)
        if (architecture, when) not in self._weighed:
            self._weighed.add((architecture, when))
            self._bytes[architecture] = max(self._bytes.get(architecture, 0), _bytes_of(self._halves[client]))
            self._taken = sum(self._bytes[self.setup.architecture(c)] for c in self._halves)

    def _make_room(self) -> None:
        """Send the least recently used clients to the disk until the others fit; the newest stays in any case."""
        while len(self._halves) > 1 and self._taken > self.budget:
            client, half = next(iter(self._halves.items()))
            if client in self._unsaved:
                with self._disk("write", "make room, then continue"):
                    self._store.write_behind(client, _state(half))
                self._unsaved.remove(client)
            del self._halves[client]
            self._taken -= self._bytes[self.setup.architecture(client)]

    @contextmanager
    def _disk(self, what: str, advice: str) -> Iterator[None]:
        """Around the use of the states on disk outside checkpoints, which have a sentence of their own."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            scratch = self.setup.scratch
            message = f"cannot {what} the state of a client in {scratch or tempfile.gettempdir()}: {reason}"
            if scratch is not None:
                message += f"; the last checkpoint is intact: {advice} with `fedl2g resume {scratch.parent}`"
            raise RunError(message) from error

    def _build(self, client: int) -> ClientHalf[Any]:
        architecture = self.setup.architecture(client)
        # Never a network that another client has used: a method's half may keep what it finds in a fresh one.
        model = self.task.build(architecture, "init", client)
        if self.device.type != "cpu":
            model = model.to(self.device)
        train, test = (
            ImageView(
                self.images,
                self.labels,
                torch.as_tensor(part[client]),
                device=self.device,
                dtype=self.task.dtype,
                layout=self.task.layout(architecture),
            )
            for part in (self.setup.partition.train, self.setup.partition.test)
        )
        if client in self.hostile and self.setup.experiment.attack.kind == "random_labels":
            train.labels = random_labels(
                train.labels, train.indices, self.task.classes, self.setup.experiment.attack, self.task.seed, client
            )
        return self.method.client(self.setup.experiment.method, Client(client, self.task, model, train, test))

    def train(self, client: int, round: int, payload: Payload) -> Reply:
        """One client's round."""
        came = time.perf_counter()
        half = self.half(client)
        half.check(payload)
        half.client.log = type(half.client.log)()
        started = time.perf_counter()
        upload = half.train(round, payload)
        seconds = time.perf_counter() - started
        self._weigh(client, "trained")
        log = half.client.log
        if log.steps or not half.moves_by_steps_alone:
            self._changed.add(client)
            self._unsaved.add(client)
            self._evaluations.pop(client, None)
        report = Report(len(half.client.train_set), log.steps, log.cross_entropy, seconds, watch.take())
        upload = {name: t.detach().cpu().contiguous() for name, t in upload.items()}
        if self.task.protection is not None:  # first: noise must fall on the rows of absent classes too
            upload = self.task.protection.densified(upload, self.task.classes)
        upload = add_noise(upload, self.setup.experiment.noise, self.task.seed, client, round)
        if self.task.protection is not None:
            upload = self.task.protection.protect(upload, payload, self.task.classes, client, round)
            report = self.task.protection.reticent(report)
        if client in self.hostile:
            attack = self.setup.experiment.attack
            upload = corrupt(half.whole(upload), half.whole(payload), attack, self.task.seed, client, round)
        if self.setup.experiment.execution.profile:  # loading and packing are no part of the training's seconds
            report.laps[OTHER] = time.perf_counter() - came - seconds
        return Reply(client, upload, report)

    def evaluate(self, client: int, payload: Payload) -> Evaluation:
        """One client's predictions on its own test set; a model that has not moved is not evaluated again."""
        if self._has_evaluated(client):
            return self._evaluations[client]
        half = self.half(client)
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
        self._weigh(client, "evaluated")
        return result

    def save(self, directory: Path) -> None:
        """Give each changed client's state a file of its own; one that has not moved since is not written again."""
        for client in sorted(self._changed):
            if client in self._unsaved:
                self._store.write(client, _state(self._halves[client]))
                self._unsaved.remove(client)
            self._store.export(client, client_file(directory, client))

    def state(self, client: int) -> dict[str, Tensor]:
        """A copy of all that changes over rounds on one client: its network and the method's private tensors."""
        return _state(self.half(client))

    def restore(self, directory: Path | None) -> None:
        """Forget every client's state and take the one in the directory, where there is one."""
        self.close()
        if directory is None:
            return
        shapes: dict[str, Shapes] = {}
        for path in sorted(directory.glob("client-*.safetensors")):
            client = int(path.stem.removeprefix("client-"))
            if self.holds(client):
                # Read when it is needed; whether it will fit is seen now, by its names and shapes.
                architecture = self.setup.architecture(client)
                if architecture not in shapes:
                    shapes[architecture] = shapes_of(_state(self._build(client)))
                if stored_shapes(path) != shapes[architecture]:
                    raise PayloadError(f"{path.name} does not fit a client with {architecture}")
                self._store.adopt(client, path)
                self._changed.add(client)

    def holds(self, client: int) -> bool:
        """Whether a client of that number lives in this process."""
        return True

    def load_state(self, client: int, state: dict[str, Tensor]) -> None:
        """Bring one client to a state that `state` gave."""
        _load(self.half(client), state)
        self._changed.add(client)
        self._unsaved.add(client)
        self._evaluations.pop(client, None)

    def close(self) -> None:
        """Forget every client, in memory and on disk."""
        self._evaluations.clear()
        self._halves.clear()
        self._taken = 0
        self._changed.clear()
        self._unsaved.clear()
        self._store.clear()


def _state(half: ClientHalf[Any]) -> State:
    state = dict(half.model.state_dict())
    state |= {_METHOD + name: tensor for name, tensor in half.state_dict().items()}
    # Row by row whatever the layout in memory: a file does not depend on it.
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


def _load(half: ClientHalf[Any], state: State) -> None:
    private = {name.removeprefix(_METHOD): tensor for name, tensor in state.items() if name.startswith(_METHOD)}
    half.model.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith(_METHOD)})
    half.load_state_dict(private)


def _bytes_of(half: ClientHalf[Any]) -> int:
    """The memory of a client: its tensors, in networks or kept as they are, and the objects networks are made of."""
    kept = list(vars(half).values())
    for helper in vars(half).values():  # such as class vectors; the client's views hold the images that all share
        if not isinstance(helper, nn.Module | Client | ImageView):
            kept += getattr(helper, "__dict__", {}).values()
    modules = {id(part): part for value in kept if isinstance(value, nn.Module) for part in value.modules()}
    tensors = {id(value): value.nbytes for value in kept if isinstance(value, Tensor)}
    for module in modules.values():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensors[id(tensor)] = tensor.nbytes
    return sum(tensors.values()) + _MODULE_BYTES * len(modules)


def memory_budget(experiment: Experiment, device: torch.device, hosts: int) -> int:
    """Bytes of clients that each of the hosts on this machine may keep; by default half of what is free."""
    megabytes = experiment.execution.memory_mb
    if megabytes is not None:
        return megabytes * 2**20 // hosts
    if device.type == "cuda":  # there the networks live, with those of the workers that share it
        sharing = [resolve_device(experiment.device, worker) for worker in range(hosts)].count(device)
        return torch.cuda.mem_get_info(device)[0] // 2 // max(1, sharing)
    return available_bytes() // 2 // hosts


def client_file(directory: Path, client: int) -> Path:
    """Where a checkpoint keeps one client's state."""
    return directory / f"client-{client:06d}.safetensors"
