"""Shared by all tests: caches of their own, one thread, tiny experiments, and what two runs must agree in."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedl2g.engines.processes import WorkerPool, shared_workers
from fedl2g.experiment import Experiment, overlay
from fedl2g.runs.checkpoint import newest
from fedl2g.runs.directory import RunDirectory
from fedl2g.setup import Setup, prepare


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The sums of what tests counted, `record_property("figures", {part: {what: count}})`."""
    total: dict[str, Counter[str]] = {}
    for report in (report for kind in terminalreporter.stats.values() for report in kind):
        for name, figures in getattr(report, "user_properties", ()):
            if name == "figures" and report.when == "call":
                for part, counts in figures.items():
                    total.setdefault(part, Counter()).update(counts)
    for part, counts in sorted(total.items()):
        terminalreporter.write_line(f"{part}: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Datasets and step times go to a folder of the session, which the processes of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fedl2g-caches"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDL2G_DATA", str(folder / "datasets"))
        patch.setenv("FEDL2G_CACHE", str(folder))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tests share few cores, and a forked process must not inherit a thread pool."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def _worker_pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def kept_workers(_worker_pool: WorkerPool) -> Iterator[None]:
    """Worker processes go on to the next test: importing torch is what takes the time."""
    with shared_workers(_worker_pool):
        yield


@pytest.fixture
def own_workers() -> Iterator[None]:
    """Worker processes that end with the test, which has modules of its own."""
    pool = WorkerPool()
    with shared_workers(pool):
        yield
    pool.close()


@pytest.fixture
def registries_as_found() -> Iterator[None]:
    """What a test registers of its own is unknown to the next one."""
    from fedl2g import references
    from fedl2g.methods.registry import methods
    from fedl2g.registry import engines, rules, samplers

    registries = (methods, engines, rules, samplers)
    plugins = list(references._plugins)
    before = [set(registry.names()) for registry in registries]  # built-in ones are known before they are imported
    yield
    references._plugins[:] = plugins  # else the worker processes of later tests would load them
    for registry, known in zip(registries, before, strict=True):
        for name in set(registry.names()) - known:
            del registry._registered[name]


TINY: dict[str, Any] = {
    "method": {"name": "fedl2g-f", "warmup_rounds": 1},
    "samples": 200,
    "image_size": 16,
    "partition": "dirichlet:1",
    "models": "small_cnn,small_resnet,small_googlenet",  # plain, BatchNorm, BatchNorm and dropout
    "clients": 4,
    "participation": 0.8,  # three of four: in a short run some client may not have trained at a checkpoint
    "rounds": 4,
    "execution": {"checkpoint_every": 1},
}


def make_tiny(**overrides: Any) -> Experiment:
    """A federation of four clients on 200 digits; dotted names reach into tables, as on the command line."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return Experiment(**overlay(TINY, dotted))


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Experiment]:
    return make_tiny


@pytest.fixture(scope="session")
def setup_of() -> Callable[[Experiment], Setup]:
    """The data and partition of an experiment, as a run makes them."""
    return prepare


def read_outcome(path: Path) -> dict[str, Any]:
    """All that must be equal, bit for bit, in two runs of one experiment: everything but times and the run's place."""
    run = RunDirectory.open(path, trust=True)
    result = run.result()
    checkpoint = newest(run.checkpoints)
    assert checkpoint is not None
    return {
        "history": [_without_times(record.to_dict()) for record in run.history()],
        "result": None if result is None else _without_times(result.to_dict()),
        "checkpoint": checkpoint.round,
        "files": {path.name: path.read_bytes() for path in sorted(checkpoint.path.glob("*.safetensors"))},
        "best round": checkpoint.best.round if checkpoint.best is not None else None,
        "best": {path.name: path.read_bytes() for path in sorted(checkpoint.path.glob("best/*.safetensors"))},
        "partition": (path / "partition.json").read_bytes(),
    }


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in values.items() if "seconds" not in key and key != "run"}
    return json.loads(json.dumps(kept))


@pytest.fixture(scope="session")
def outcome() -> Callable[[Path], dict[str, Any]]:
    return read_outcome


@pytest.fixture(scope="session")
def guide_of() -> Callable[[Path], torch.Tensor]:
    """The guiding vectors at the end of a run."""

    def read(path: Path) -> torch.Tensor:
        checkpoint = newest(RunDirectory(path).checkpoints)
        assert checkpoint is not None
        return checkpoint.server()["guide"]

    return read


@contextmanager
def untracked(model: nn.Module) -> Iterator[None]:
    """Batch statistics alone, by the simplest means: a model whose BatchNorms have no running statistics."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    kept = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in norms]
    for m in norms:
        m.running_mean = m.running_var = m.num_batches_tracked = None
    yield
    for m, statistics in zip(norms, kept, strict=True):
        m.running_mean, m.running_var, m.num_batches_tracked = statistics


def _double_backward(
    model: nn.Module, study: Any, quiz: Any, guide: Tensor, lr: float, space: str, weight: float = 1.0
) -> Tensor:
    """dq/dG straight from the definition, through the graph of the pseudo-step."""
    with torch.random.fork_rng(devices=[]), untracked(model), sdpa_kernel(SDPBackend.MATH):
        guide = guide.clone().requires_grad_()
        parameters = dict(model.named_parameters())
        features, logits = model(study[0])
        z = features if space == "features" else logits
        objective = F.cross_entropy(logits, study[1]) + weight * ((z - guide[study[1]]) ** 2).sum() / z.numel()
        gradients = torch.autograd.grad(objective, list(parameters.values()), create_graph=True)
        moved = {name: p - lr * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
        quiz_loss = F.cross_entropy(functional_call(model, moved, (quiz[0],))[1], quiz[1])
        return torch.autograd.grad(quiz_loss, guide)[0]


@pytest.fixture(scope="session", name="double_backward")
def double_backward_fixture() -> Callable[..., Tensor]:
    """The independent, slow reference of the guiding gradient."""
    return _double_backward
