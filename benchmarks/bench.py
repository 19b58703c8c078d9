"""How fast fedl2g is, as ratios: `make bench`, or `python benchmarks/bench.py --help`.

rounds    a round of each method / the bare loop that does the same steps in the same layout, one thread
extra     what FedL2G adds to a client's round of local training
guiding   the guiding step / double backward: time and peak memory, by architecture
layout    a training step in contiguous / in channels_last memory, by architecture
workers   throughput of two workers / of one
naive     a naive engine / ours
optimizer a step of torch's optimizers / of ours, by architecture
fedtgp    the server's time for FedTGP's prototypes, by its epochs
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences torch's profiler, which measures memory here

import bare
import numpy as np
import torch
from naive import naive_round
from timing import Ratio, abreast, interleaved, machine, pause, ratio

from fedl2g.datasets import load_dataset, make_partition
from fedl2g.engines.base import open_engine
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.learning.guidance import guiding_gradient
from fedl2g.learning.optimizer import ClippedTorch, Stepper, make_optimizer
from fedl2g.learning.settings import Optimizer
from fedl2g.learning.training import SampleView
from fedl2g.methods.base import Combined
from fedl2g.methods.registry import get_method
from fedl2g.models import build_model
from fedl2g.models.calibration import LAYOUTS, _stepper
from fedl2g.models.catalog import resolve_models
from fedl2g.process import keep_freed_memory
from fedl2g.round.record import RoundRecord
from fedl2g.schema import image_schema
from fedl2g.setup import Setup

RESULTS = Path(__file__).parent / "results"
METHODS = ("local", "lg-fedavg", "feddistill", "fedproto", "fedl2g-l", "fedl2g-f", "fedgh", "fml", "fedkd", "fedmrl")
ROUNDS_TARGET = "<= 1.05"
EXTRA_TARGETS = {"small": "<= 1.10", "htfe8": "<= 1.08"}  # of a group; single networks scatter around it
ARCHITECTURES = (
    "small_cnn", "small_googlenet", "small_mobilenet", "small_resnet", "cnn4", "resnet4", "googlenet", "mobilenet_v2",
    "resnet18",
)  # fmt: skip
MORE_ARCHITECTURES = (
    "resnet6", "resnet8", "resnet10", "resnet34", "resnet50", "resnet101", "resnet152", "vit_b_16", "vit_b_32",
)  # fmt: skip
STEPS_IN_A_ROW = 10  # of an optimizer: a single one would be timed with the caches that its predecessor left
EXTRA_STEPS = 100  # a round, for which the targets of `extra` are set
SECTIONS = ("rounds", "extra", "guiding", "layout", "workers", "naive", "optimizer", "fedtgp")


class OneRound(Observer):
    """Ends `Federation.run` after every round, so that rounds can be measured in turn with something else."""

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        federation.stop("one round")


class Bench:
    """The settings of this run of the benchmark and what it found."""

    def __init__(self, folder: Path, steps: int, repeats: int, models: str) -> None:
        self.folder, self.steps, self.repeats, self.models = folder, steps, repeats, models
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.file, self.about = RESULTS / "bench.json", machine()

    def add(self, section: str, result: Ratio, **more: Any) -> None:
        """Print a ratio and store it in the JSON file."""
        print(result, flush=True)
        self.found.setdefault(section, []).append({**result.to_dict(), **more})
        command = shlex.join(["python", "benchmarks/bench.py", *without_folder(sys.argv[1:])])
        text = json.dumps({"command": command, "machine": self.about, "results": self.found[section]}, indent=1)
        self.file.write_text(text + "\n", encoding="utf-8")

    def turns(self, step: Callable[[], object], seconds: float = 2.0) -> int:
        """The number of repetitions of a short step: as many as fit in `seconds`, and at least `repeats`."""
        step()
        started = time.process_time()
        step()
        return max(self.repeats, round(seconds / (time.process_time() - started)))

    def setup(self, method: str, *, steps: int | None = None, clients: int = 4, **settings: Any) -> Setup:
        """Clients with random 3 x 32 x 32 images, enough for `steps` batches each (and FedL2G's quiz)."""
        quiz = 10 if method.startswith("fedl2g") else 0
        samples = round(clients * ((steps or self.steps) * 10 + quiz + 3) / 0.75)
        path = self.folder / f"random-{samples}.npz"
        if not path.exists():
            generator = np.random.default_rng(0)
            images = generator.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8)
            np.savez(path, images=images, labels=np.arange(samples) % 10)
        options = {"name": method, **({"warmup_rounds": 0} if method.startswith("fedl2g") else {})}
        experiment = Experiment(
            method=options,
            dataset=str(path),
            partition="iid",
            clients=clients,
            **{"models": self.models, "rounds": 100_000, **settings},
        )
        dataset = load_dataset(str(path))
        partition = make_partition("iid", dataset.labels, None, clients=clients, classes=10, seed=0)
        return Setup(experiment, dataset, partition)

    def rounds(self) -> None:
        """A round of each method / the bare loop for the same steps."""
        for method in METHODS:
            setup = self.setup(method)

            def ours(setup: Setup = setup) -> Callable[[], None]:
                return rounds_of(federation_of(setup))

            def loop(setup: Setup = setup, method: str = method) -> Callable[[], None]:
                return bare.bare_round(bare.bare_clients(setup, method), method)

            times = abreast({"bare": loop, "ours": ours, "again": loop}, self.repeats)
            self.add("rounds", ratio(f"{method} / bare loop", times["ours"], times["bare"], ROUNDS_TARGET))
            self.add("rounds", ratio("  A/A: bare loop / bare loop", times["again"], times["bare"]))

    def extra(self) -> None:
        """FedL2G's client time / that of local training with as many steps: by architecture, then for all together."""
        architectures = resolve_models(self.models)
        total: dict[str, list[float]] = {}
        for architecture in architectures:
            times = abreast(self._trainings(architecture), self.repeats, builds=1)
            if len(architectures) > 1:
                self._say_extra(architecture, times)
            for name, seconds in times.items():
                total[name] = [a + b for a, b in zip(total.get(name, [0.0] * self.repeats), seconds, strict=True)]
        self._say_extra(self.models, total)

    def _trainings(self, architecture: str) -> dict[str, Callable[[], Callable[[], None]]]:
        """One client's training by each method.

        All share the memory of their weights: the address of a network can change its speed by some percent.
        """
        weights: list[torch.Tensor] = []

        def trainings(method: str) -> Callable[[], Callable[[], None]]:
            def build() -> Callable[[], None]:
                setup = self.setup(method, steps=EXTRA_STEPS, clients=1, models=architecture)
                federation = federation_of(setup)
                own = list(federation.engine.host.half(0).model.state_dict(keep_vars=True).values())
                weights[:] = weights or own
                for tensor, common in zip(own, weights, strict=True):
                    tensor.data = common.data
                return trainings_of(federation)

            return build

        names = {"local": "local", "local again": "local", "fedl2g-l": "fedl2g-l", "fedl2g-f": "fedl2g-f"}
        return {name: trainings(method) for name, method in names.items()}

    def _say_extra(self, models: str, times: dict[str, list[float]]) -> None:
        local = [(a + b) / 2 for a, b in zip(times["local"], times["local again"], strict=True)]
        for method in ("fedl2g-l", "fedl2g-f"):
            self.add("extra", ratio(f"{models}: {method} / local", times[method], local, EXTRA_TARGETS.get(models, "")))
        self.add("extra", ratio("  A/A: local / local", times["local again"], times["local"]))

    def guiding(self, architectures: tuple[str, ...] = ARCHITECTURES) -> None:
        """The guiding step / double backward."""
        for name in architectures:
            torch.manual_seed(0)
            model = build_model(name, classes=100, inputs=image_schema(3, 32, 32)).train()
            guide, y = torch.randn(100, 512), torch.arange(10)
            study, quiz = (torch.randn(10, 3, 32, 32), y), (torch.randn(10, 3, 32, 32), y + 10)

            def ours(model: Any = model, study: Any = study, quiz: Any = quiz, guide: Any = guide) -> None:
                guiding_gradient(model, study, quiz, guide, lr=0.01, space="features")

            def double(model: Any = model, study: Any = study, quiz: Any = quiz, guide: Any = guide) -> None:
                bare.double_backward(model, study, quiz, guide, 0.01, wide=True)

            times = interleaved({"double": double, "ours": ours, "again": double}, self.turns(double))
            memory = {"ours": peak_bytes(ours), "double": peak_bytes(double)}
            share = memory["ours"] / memory["double"]
            self.add("guiding", ratio(f"{name}: guiding step / double backward", times["ours"], times["double"]))
            self.add("guiding", ratio("  A/A: double / double", times["again"], times["double"]))
            row = Ratio(f"{name}: peak memory / double backward's", share, share, share, 1, 0.0)
            self.add("guiding", row, megabytes={key: round(value / 2**20, 1) for key, value in memory.items()})

    def layout(self, architectures: tuple[str, ...] = ARCHITECTURES) -> None:
        """A training step in contiguous memory / in channels_last: above 1, channels_last is faster."""
        for name in architectures:
            with torch.random.fork_rng(devices=[]):
                steps = {
                    layout: _stepper(name, 10, (3, 32, 32), 10, LAYOUTS[layout.split()[0]])
                    for layout in ("channels_last", "contiguous", "channels_last again")
                }
            times = interleaved(steps, self.turns(steps["contiguous"]))
            self.add(
                "layout", ratio(f"{name}: contiguous / channels_last", times["contiguous"], times["channels_last"])
            )
            aa = ratio("  A/A: channels_last", times["channels_last again"], times["channels_last"])
            self.add("layout", aa)

    def workers(self) -> None:
        """Rounds per second of two workers / of one, and of one / one."""
        engines = {
            name: federation_of(
                self.setup("fedl2g-f", clients=8, execution={"engine": "workers", "workers": int(name[0])})
            )
            for name in ("1", "2", "1 again")
        }
        print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, niceness {os.nice(0)}")
        busiest: dict[str, list[float]] = {name: [] for name in engines}

        def noted(name: str) -> Callable[[], None]:
            play, pids = rounds_of(engines[name]), engines[name].engine.pids

            def noting() -> None:
                before = [cpu_seconds(pid) for pid in pids]
                play()
                busiest[name].append(max(cpu_seconds(pid) - b for pid, b in zip(pids, before, strict=True)))

            return noting

        try:
            times = interleaved({name: noted(name) for name in engines}, self.repeats, time.perf_counter)
        finally:
            for federation in engines.values():
                federation.engine.close()
        bound = ratio("CPU time of 1 worker / of the busier of 2", busiest["1"][1:], busiest["2"][1:])
        self.add("workers", bound)  # an upper bound on the throughput with two free cores, without waiting
        self.add("workers", ratio("throughput of 2 workers / of 1", times["1"], times["2"], ">= 1.5"))
        self.add("workers", ratio("  A/A: 1 worker / 1 worker", times["1 again"], times["1"]))

    def naive(self) -> None:
        """A naive engine / ours: by CPU seconds on one thread, then by wall clock on all cores."""
        for method in ("local", "fedl2g-f"):
            setup = self.setup(method, layout="contiguous")  # as the naive engine

            def ours(setup: Setup = setup) -> Callable[[], None]:
                return rounds_of(federation_of(setup))

            def naive(setup: Setup = setup, method: str = method) -> Callable[[], None]:
                return naive_round(bare.bare_clients(setup, method), method, Path(tempfile.mkdtemp(dir=self.folder)))

            times = abreast({"ours": ours, "naive": naive, "again": naive}, self.repeats)
            self.add("naive", ratio(f"{method}: naive engine / inline, 1 thread", times["naive"], times["ours"]))
            self.add("naive", ratio("  A/A: naive / naive", times["again"], times["naive"]))
            cores = os.cpu_count() or 1
            engines = {}
            for layout in ("contiguous", "preset"):
                wanted = self.setup(method, execution={"engine": "workers", "workers": cores}, layout=layout)
                engines[layout] = federation_of(wanted)
            subjects = {"naive": with_threads(naive(), cores), "again": with_threads(naive(), cores)}
            subjects |= {layout: rounds_of(federation) for layout, federation in engines.items()}
            try:
                times = interleaved(subjects, self.repeats, time.perf_counter)
            finally:
                for federation in engines.values():
                    federation.engine.close()
            for layout in engines:
                name = f"{method}: naive, {cores} threads / {cores} workers, {layout} (wall)"
                self.add("naive", ratio(name, times["naive"], times[layout], ">= 2"))
            self.add("naive", ratio(f"  A/A: naive / naive, {cores} threads", times["again"], times["naive"]))

    def optimizer(self, architectures: tuple[str, ...] = ("small_cnn", "small_resnet", "cnn4", "resnet18")) -> None:
        """Steps of the optimizers that clients may have / the plain step, with and without clipping."""
        chosen = {
            "plain": Optimizer(),
            "momentum": Optimizer(momentum=0.9),
            "adamw": Optimizer(name="adamw"),
        }
        for architecture in architectures:
            model = build_model(architecture, classes=100, inputs=image_schema(3, 32, 32))
            gradients = [torch.randn_like(p) for p in model.parameters()]

            def stepping(stepper: Stepper, model: Any = model, gradients: Any = gradients) -> Callable[[], None]:
                def play() -> None:
                    for _ in range(STEPS_IN_A_ROW):
                        for p, gradient in zip(model.parameters(), gradients, strict=True):
                            p.grad = gradient
                        stepper.step()

                return play

            def of_torch(kind: Any, clip: float = math.inf, model: Any = model, **options: Any) -> Stepper:
                return ClippedTorch(kind(model.parameters(), 1e-9, **options), 1e-9, clip)

            steppers = {
                f"{name}, {limit}": make_optimizer(settings, model.parameters(), 1e-9, clip, None)
                for name, settings in chosen.items()
                for limit, clip in (("not clipped", math.inf), ("clipped", 1.0))
            }
            steppers["torch.optim.SGD, not clipped"] = of_torch(torch.optim.SGD, fused=True)
            steppers["torch.optim.SGD, clipped"] = of_torch(torch.optim.SGD, 1.0, fused=True)
            steppers["momentum not fused, not clipped"] = of_torch(torch.optim.SGD, momentum=0.9)
            steppers["adamw not fused, not clipped"] = of_torch(torch.optim.AdamW)
            subjects = {name: stepping(stepper) for name, stepper in steppers.items()}
            subjects["again"] = stepping(steppers["plain, not clipped"])
            times = interleaved(subjects, self.turns(subjects["plain, not clipped"], 0.2))
            for name in subjects:
                base = (
                    "plain, clipped"
                    if name.endswith(" clipped") and "not clipped" not in name
                    else "plain, not clipped"
                )
                if name != base:
                    self.add("optimizer", ratio(f"{architecture}: {name} / {base}", times[name], times[base]))

    def fedtgp(self) -> None:
        """The server's training of prototypes, for 20 clients with 16 of 100 classes each, by the number of epochs."""
        clients, classes, held = 20, 100, 16
        task = replace(self.setup("fedtgp").task, classes=classes)
        generator = torch.Generator().manual_seed(0)
        ids = torch.cat([torch.randperm(classes, generator=generator)[:held].sort().values for _ in range(clients)])
        rows = torch.rand(len(ids), task.feature_dim, generator=generator)
        combined = Combined({"ids": ids, "rows": rows, "weights": torch.ones(len(ids))})
        method = get_method("fedtgp")

        def update(epochs: int) -> Callable[[], object]:
            server = method.server(method.options(server_epochs=epochs), task)
            return lambda: server.update(1, combined)

        times = interleaved({str(n): update(n) for n in (1, 10, 100)}, self.repeats)
        for n, seconds in times.items():
            found = ratio(f"FedTGP's server, {n} epochs / 1 epoch", seconds, times["1"])
            self.add("fedtgp", found)
            print(f"  {found.seconds:.2f} CPU seconds a round")


def without_folder(arguments: list[str]) -> list[str]:
    """The arguments that decide the numbers: not the folder of this machine to which they are written."""
    place = arguments.index("--out") if "--out" in arguments else len(arguments)
    return arguments[:place] + arguments[place + 2 :]


def federation_of(setup: Setup) -> Federation:
    """A federation that has evaluated its clients once and stops after every round."""
    experiment = setup.experiment
    server = get_method(experiment.method.name).server(experiment.method, setup.task)
    federation = Federation(experiment, server, open_engine(setup), [OneRound()])
    federation.run()
    return federation


def take_turns() -> None:
    """Make our own loop call `pause` at every batch, as the bare loop does."""
    batch = SampleView.batch

    def pausing(self: SampleView, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pause()
        return batch(self, positions)

    SampleView.batch = pausing  # type: ignore[method-assign]


def rounds_of(federation: Federation) -> Callable[[], None]:
    """A function that runs the next round."""

    def play() -> None:
        federation.stop_reason = None
        federation.run()

    return play


def trainings_of(federation: Federation) -> Callable[[], None]:
    """A function that trains all clients once more, without aggregation and evaluation."""
    rounds = iter(range(1, 10**9))
    clients = list(range(federation.experiment.clients))

    def play() -> None:
        round = next(rounds)
        for _ in federation.engine.train(round, clients, federation.server.broadcast(round), lambda reply: None):
            pass

    return play


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def with_threads(call: Callable[[], object], threads: int) -> Callable[[], None]:
    """A function that makes the call with this number of threads."""

    def play() -> None:
        torch.set_num_threads(threads)
        try:
            call()
        finally:
            torch.set_num_threads(1)

    return play


def peak_bytes(call: Callable[[], object]) -> int:
    """The peak memory of tensors during a call, beyond that before it."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@contextmanager
def own_caches() -> Iterator[Path]:
    """A temporary folder for data; the cached step times of this machine are kept."""
    with tempfile.TemporaryDirectory(prefix="fedl2g-bench-") as name:
        before = os.environ.get("FEDL2G_DATA")
        os.environ["FEDL2G_DATA"] = str(Path(name) / "datasets")
        try:
            yield Path(name)
        finally:
            os.environ.pop("FEDL2G_DATA")
            if before is not None:
                os.environ["FEDL2G_DATA"] = before


def main() -> None:
    """Run the chosen sections, print the ratios and write them to results/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=[], metavar="SECTION", help=f"some of: {', '.join(SECTIONS)}")
    parser.add_argument("--steps", type=int, default=40, help="training steps of a client in a round")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", default="small", help="model group or architectures (naming the result files too)")
    parser.add_argument("--all-architectures", action="store_true", help="guiding and layout: the large networks too")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"unknown section {sorted(unknown)[0]!r}; there are {', '.join(SECTIONS)}")
    try:
        resolve_models(options.models)
    except SettingError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    take_turns()
    options.out.mkdir(parents=True, exist_ok=True)
    with own_caches() as folder:
        bench = Bench(folder, options.steps, options.repeats, options.models)
        for section in options.sections or SECTIONS:
            about = machine()
            name = section if options.models == "small" else f"{section}-{options.models.replace(',', '+')}"
            name += "-all" if options.all_architectures else ""
            bench.file, bench.about = options.out / f"{name}.json", about
            steps = EXTRA_STEPS if section == "extra" else options.steps
            print(f"\n{section} ({options.models}, {steps} steps a client, load {about['load'][0]})", flush=True)
            if section in ("guiding", "layout"):
                wanted = ARCHITECTURES + MORE_ARCHITECTURES if options.all_architectures else ARCHITECTURES
                getattr(bench, section)(wanted)
            else:
                getattr(bench, section)()


if __name__ == "__main__":
    main()
