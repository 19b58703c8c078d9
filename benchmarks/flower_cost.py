"""The overhead of Flower: message sizes per method, the server's cost per reply, and a round on each engine as a ratio.

python benchmarks/flower_cost.py sizes      # bytes of one request and one reply, per method
python benchmarks/flower_cost.py replies    # server seconds and memory per reply
python benchmarks/flower_cost.py engines    # a round on inline, workers, Flower's simulation and a deployment
python benchmarks/flower_cost.py sites 3 10 30    # rounds of so many real SuperNodes, whose sites only wait
"""

from __future__ import annotations

import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flower_deployment import Deployment

from fedl2g.engines.flower import require_flower
from fedl2g.engines.host import Host
from fedl2g.engines.inline import InlineEngine
from fedl2g.experiment import Experiment
from fedl2g.learning.devices import resolve_device
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method, method_names
from fedl2g.payload import nbytes
from fedl2g.round.policies import make_policies
from fedl2g.setup import Setup, prepare


def setup(method: str, clients: int = 4, **settings: Any) -> Setup:
    options: dict[str, Any] = {"name": method}
    if method.startswith("fedl2g"):
        options["warmup_rounds"] = 0
    experiment = Experiment(
        method=options, dataset="digits", samples=400, clients=clients, rounds=100, partition="iid", **settings
    )
    return prepare(experiment)


def wire_bytes(records: Any) -> int:
    """The bytes of a message's records as Flower stores and sends them."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    from fedl2g.engines.flower.records import wrap

    return sum(len(part.deflate()) for part in get_all_nested_objects(wrap(records)).values())


def sizes() -> None:
    from fedl2g.engines.flower import messages

    print("| method | request, payload | request, sent | reply, payload | reply, sent |\n|---|---|---|---|---|")
    for method in method_names():
        at = setup(method)
        server = get_method(method).server(at.experiment.method, at.task)
        host = Host(at, resolve_device("cpu"))
        broadcast = server.broadcast(1)
        reply = host.train(0, 1, broadcast)
        asked = messages.Request("r" * 16, at.experiment, at.dataset.class_names, at.dataset.schema, 1, broadcast)
        request = wire_bytes(messages.pack_request(asked))
        answer = wire_bytes(messages.pack_reply("r" * 16, 1, reply))
        print(f"| {method} | {nbytes(broadcast):,} | {request:,} | {nbytes(reply.payload):,} | {answer:,} |")


def replies(count: int = 2000) -> None:
    """One real reply, decoded and checked many times, then aggregated: the server's work without the network."""
    from fedl2g.engines.flower import messages

    for method in ("fedl2g-f", "fml"):
        at = setup(method)
        server = get_method(method).server(at.experiment.method, at.task)
        engine, broadcast = InlineEngine(at), server.broadcast(1)
        policies = make_policies(at.experiment, server, engine)
        reply = next(engine.train(1, [0], broadcast, policies.inbox.check))
        records = messages.pack_reply("r" * 16, 1, reply)
        many = count if method == "fedl2g-f" else 200
        before, started = _peak(), time.process_time()
        held = []
        for _ in range(many):
            found = messages.unpack_reply(records, client=0, run="r" * 16, round=1, limit=2**30)
            policies.inbox.check(found)
            held.append(found)
        read = time.process_time()
        policies.aggregator.combine(1, held, broadcast)
        done = time.process_time()
        print(
            f"{method}: {many} replies of {nbytes(reply.payload):,} bytes: read and check "
            f"{(read - started) / many * 1e6:.0f} us of CPU each, combine {(done - read) / many * 1e6:.0f} us each, "
            f"{(_peak() - before) / many / 1024:.1f} KB of memory each"
        )


def accept(reply: Reply) -> None:
    """A check that accepts every reply."""


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def engines(repeats: int = 5, clients: int = 4, idle_seconds: float = 30.0) -> None:
    from fedl2g.engines.base import open_engine

    at = setup("fedl2g-f", clients)
    server = get_method("fedl2g-f").server(at.experiment.method, at.task)
    broadcast = server.broadcast(1)
    opened = {}
    for name in ("inline", "workers", "flower"):
        experiment = Experiment(**{**dict(at.experiment), "execution": {"engine": name, "workers": 2}})
        started = time.perf_counter()
        opened[name] = open_engine(Setup(experiment, at.dataset, at.partition))
        list(opened[name].train(1, range(clients), broadcast, accept))  # clients are built, processes have loaded torch
        print(f"{name}: started, first round done after {time.perf_counter() - started:.1f} s")

    def timed(name: str) -> Callable[[int], tuple[float, float]]:
        def train(round: int) -> tuple[float, float]:
            started = time.perf_counter()
            list(opened[name].train(round, range(clients), broadcast, accept))
            trained = time.perf_counter()
            opened[name].evaluate(range(clients), {})
            return trained - started, time.perf_counter() - trained

        return train

    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(at, Path(folder) / "federation")
        try:
            alone, waiting = deployment.start(idle_seconds)
            print(f"deployment: first round took {sum(deployment.train(1)):.1f} s")
            trains = {**{name: timed(name) for name in opened}, "deployment": deployment.train}
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trains}
            polling = deployment.polling(idle_seconds)
            used, lasted = 0.0, 0.0
            for round in range(2, 2 + repeats):  # interleaved, so that load affects all alike
                for name, train in trains.items():
                    before, started = deployment.superlink_cpu(), time.perf_counter()
                    seconds[name].append(train(round))
                    if name == "deployment":
                        used += deployment.superlink_cpu() - before
                        lasted += time.perf_counter() - started
        finally:
            deployment.close()
    for engine in opened.values():
        engine.close()
    for part, number in (("training", 0), ("evaluation", 1)):
        inline = statistics.median(times[number] for times in seconds["inline"])
        for name, found in seconds.items():
            median = statistics.median(times[number] for times in found)
            print(f"{part}, {name}: {median / inline:.2f} x inline, {median:.2f} s")
    inline = statistics.median(map(sum, seconds["inline"]))
    for name, found in seconds.items():
        median = statistics.median(map(sum, found))
        print(f"round, {name}: {median / inline:.2f} x inline, {median:.2f} s ({clients} clients, 100 samples each)")
    node = max(waiting - alone, 0.0) / clients
    exchange = (used - polling * lasted) / (clients * repeats)  # the evaluation comes with the trained round
    print(
        f"SuperLink: {node * 1e3:.2f} ms of CPU a second for a node that waits, {(polling - waiting) * 1e3:.0f} ms a "
        f"second for a server that waits for a round, {exchange * 1e3:.0f} ms for a request and its reply"
    )


def sites(*counts: str, quick: int = 5, seconds: float = 30.0) -> None:
    """Rounds of many SuperNodes whose sites answer at once, and of the same ones whose training takes a while."""
    for count in map(int, counts or ("3", "10", "30")):
        with tempfile.TemporaryDirectory() as folder:
            deployment = Deployment(setup("fedl2g-f", count), Path(folder) / "federation")
            try:
                deployment.start_light()
                deployment.train(1)
                used = deployment.superlink_cpu()
                rounds = [deployment.train(round) for round in range(2, 2 + quick)]
                used = (deployment.superlink_cpu() - used) / (count * quick)
                deployment.sleep(seconds)
                slow = sum(deployment.train(2 + quick))
                median = statistics.median(map(sum, rounds))
                print(
                    f"{count} sites: a round of {median:.1f} s if sites answer at once; training of {seconds:.0f} s: "
                    f"{slow:.1f} s, {slow / seconds:.2f} x; SuperLink: {used * 1e3:.0f} ms of CPU for a request and "
                    f"its reply, {deployment.memory():.0f} MB",
                    flush=True,
                )
            finally:
                deployment.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a deployment's processes end with this one
    require_flower()
    {"sizes": sizes, "replies": replies, "engines": engines, "sites": sites}[sys.argv[1]](*sys.argv[2:])
