"""A deployment for benchmarks: a SuperLink with TLS and authentication, a SuperNode for each client, on this machine.

The ServerApp trains a round for each file `go-ROUND`, so that its rounds can be interleaved with those of others.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedl2g.setup import Setup

_LONGEST_WAIT = 600.0
_SERVER = """\
import sys

sys.path.insert(0, {here!r})
from flower_deployment import serve
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    serve(grid, {folder!r})
"""


class Deployment:
    """The processes of a federation with the clients of a setup; everything ends with `close`."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        from fedl2g.deploy.keys import write_key_pair
        from fedl2g.deploy.package import pin_package
        from fedl2g.deploy.scaffold import Plan, scaffold

        self.folder = folder
        self.names = tuple(f"site{client}" for client in range(setup.experiment.clients))
        self.ports = _free_ports(1)
        classes = setup.dataset.class_names
        scaffold(Plan(folder, self.names, classes, setup.dataset.schema, port=self.ports[0]))
        self.processes: list[subprocess.Popen[bytes]] = []
        self._call("sh", "coordinator/make-certificates.sh")
        _edit(folder / "coordinator" / "experiment.toml", 'name = "fedl2g-f"', 'name = "fedl2g-f"\nwarmup_rounds = 0')
        text = _SERVER.format(here=str(Path(__file__).parent), folder=str(folder))
        (folder / "coordinator" / "app" / "federation_app" / "server.py").write_text(text)
        for client, name in enumerate(self.names):
            at = folder / "sites" / name
            own = np.concatenate([setup.partition.train[client], setup.partition.test[client]])
            images = setup.dataset.inputs[own].transpose(0, 2, 3, 1)
            np.savez(at / "data.npz", images=images, labels=setup.dataset.labels[own], class_names=np.array(classes))
            _edit(at / "site.toml", 'data = "data"', 'data = "data.npz"')
            _edit(at / "site.toml", '"site_code:build_model"', f'"{setup.architecture(client)}"')
            (at / "ca.crt").write_bytes((folder / "coordinator" / "certificates" / "ca.crt").read_bytes())
            write_key_pair(at / "node_key")
            pin_package(at / "site.toml")

    def start(self, seconds: float) -> tuple[float, float]:
        """Start everything; returns the SuperLink's CPU load without nodes, and with all of them idle."""
        self._start("superlink", "sh", "coordinator/start-superlink.sh")
        _wait("the SuperLink listens", lambda: _listens(self.ports[0]))
        for name in self.names:
            self._call("sh", "coordinator/register.sh", f"sites/{name}/node_key.pub", name)
        alone = self._idle(seconds)
        for name in self.names:
            self._start(name, "sh", f"sites/{name}/start-supernode.sh")
        for name in self.names:
            _wait(f"{name} joins", lambda log=self.folder / f"{name}.log": b"SuperNode ID" in log.read_bytes())
        waiting = self._idle(seconds)
        self._call("sh", "coordinator/run.sh", "--detach")
        return alone, waiting

    def start_light(self) -> None:
        """Start real SuperNodes whose sites do not train: one process answers for all, after what `sleep` says."""
        self._start("superlink", "sh", "coordinator/start-superlink.sh")
        _wait("the SuperLink listens", lambda: _listens(self.ports[0]))
        for name in self.names:
            self._call("sh", "coordinator/register.sh", f"sites/{name}/node_key.pub", name)
        self.sleep(0.0)
        self._start("sites", sys.executable, __file__, str(self.folder))
        log = self.folder / "sites.log"
        _wait("the sites join", lambda: log.read_bytes().count(b"SuperNode ID") == len(self.names))
        self._call("sh", "coordinator/run.sh", "--detach")

    def sleep(self, seconds: float) -> None:
        """How long the training of a light site takes, without using this machine's CPUs."""
        (self.folder / "seconds").write_text(str(seconds))

    def memory(self) -> float:
        """MB that the SuperLink's process holds."""
        pages = int(Path(f"/proc/{self.processes[0].pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def train(self, round: int) -> tuple[float, float]:
        """The seconds of a round's training and of its evaluation, as the server measured them."""
        (self.folder / f"go-{round}").touch()
        done = self.folder / f"done-{round}.json"
        _wait(f"round {round}", done.is_file)
        training, evaluation = json.loads(done.read_text())
        return training, evaluation

    def polling(self, seconds: float) -> float:
        """The SuperLink's CPU load while the server polls as in a round, without other work."""
        (self.folder / "poll").touch()
        time.sleep(1.0)
        used = self._idle(seconds)
        (self.folder / "poll").unlink()
        return used

    def superlink_cpu(self) -> float:
        """CPU seconds that the SuperLink has used."""
        fields = Path(f"/proc/{self.processes[0].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _idle(self, seconds: float) -> float:
        started, before = time.perf_counter(), self.superlink_cpu()
        time.sleep(seconds)
        return (self.superlink_cpu() - before) / (time.perf_counter() - started)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def _call(self, *command: str) -> None:
        subprocess.run(command, cwd=self.folder, env=self._environment(), check=True, stdout=subprocess.DEVNULL)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self.folder, env=self._environment(), stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip


def serve(grid: Any, folder: str) -> None:
    """In the ServerApp: train and evaluate a round for each file `go-ROUND` and write how long each took."""
    from fedl2g.deploy.coordinator import read_coordinator
    from fedl2g.deploy.registered import KEYS_FILE, read_keys
    from fedl2g.deploy.server_app import DeploymentEngine
    from fedl2g.methods.registry import get_method

    coordinator = read_coordinator(Path(folder) / "coordinator" / "experiment.toml")
    setup, keys = coordinator.setup, Path(folder) / "coordinator" / KEYS_FILE
    engine = DeploymentEngine(grid, setup, read_keys(keys, coordinator.federation.sites))
    method = setup.experiment.method
    broadcast = get_method(method.name).server(method, setup.task).broadcast(1)
    for round in range(1, 1000):
        while not (Path(folder) / f"go-{round}").exists():
            if (Path(folder) / "poll").exists():
                grid.get_node_ids()
                time.sleep(engine.terms.poll_seconds)
            else:
                time.sleep(0.02)
        started = time.perf_counter()
        list(engine.train(round, range(setup.experiment.clients), broadcast, lambda reply: None))
        trained = time.perf_counter()
        engine.evaluate(range(setup.experiment.clients), {})
        partial = Path(folder) / "partial.json"
        partial.write_text(json.dumps([trained - started, time.perf_counter() - trained]))
        partial.rename(Path(folder) / f"done-{round}.json")


class Recorded:
    """Stands for the process that trains at a light site: its answers have been recorded, and only take time."""

    def __init__(self, folder: Path, client: int, reply: Any) -> None:
        self.folder, self.client, self.reply = folder, client, reply

    def answer(self, kind: str, records: Any, seconds: float, wanted: Callable[[], bool]) -> Any:
        from fedl2g.engines.base import Evaluation
        from fedl2g.engines.flower import messages

        request = messages.unpack_request(records, 2**30)
        evaluated = Evaluation(self.client, 10, 5, {}, 0.5, 0.5)
        if kind == "train":
            time.sleep(float((self.folder / "seconds").read_text()))
            return messages.pack_trained(request.run, request.round, replace(self.reply, client=self.client), evaluated)
        return messages.pack_evaluation(request.run, request.round, evaluated)


def serve_light_sites(folder: Path) -> None:
    """Run a SuperNode for each site, and answer for all of them with the reply of one real training."""
    from fedl2g.deploy import site as real
    from fedl2g.deploy.children import start_child
    from fedl2g.deploy.coordinator import read_coordinator
    from fedl2g.deploy.own_site import load_data, own_site
    from fedl2g.deploy.runtime import Runtime
    from fedl2g.deploy.site_file import read_site
    from fedl2g.engines.host import Host
    from fedl2g.learning.devices import resolve_device
    from fedl2g.methods.registry import get_method

    coordinator = read_coordinator(folder / "coordinator" / "experiment.toml")
    table, method = coordinator.federation, coordinator.experiment.method
    threads, reply = [], None
    for client, name in enumerate(table.sites):
        file = read_site(folder / "sites" / name / "site.toml", trust=True)
        if reply is None:
            setup = own_site(file, coordinator.experiment, load_data(file, table.classes, table.inputs))
            broadcast = get_method(method.name).server(method, coordinator.setup.task).broadcast(1)
            reply = Host(setup, resolve_device("cpu")).train(client, 1, broadcast)
        (port,), secret, home = _free_ports(1), secrets.token_bytes(32), file.folder / "flwr"
        home.mkdir()
        (home / "secret").write_bytes(secret)
        link = file.superlink
        assert link is not None
        supernode = start_child(
            "fedl2g.deploy.supernode", "--superlink", link.address, "--root-certificates",
            str(file.path(link.root_certificates)), "--auth-supernode-private-key", str(file.path(link.private_key)),
            "--isolation", "process", "--host", "127.0.0.1", "--port", str(port), "--superexec-auth-secret-file",
            str(home / "secret"), env={"FLWR_HOME": str(home)},
        )  # fmt: skip
        trainer: Any = Recorded(folder, client, reply)
        served = real.Site(file, supernode, trainer, Runtime(f"127.0.0.1:{port}", secret))
        threads.append(threading.Thread(target=served.serve, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise SystemExit(f"{path} does not hold {old!r}")
    path.write_text(text.replace(old, new))


def _wait(what: str, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + _LONGEST_WAIT
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"waited {_LONGEST_WAIT:.0f} s in vain: {what}")
        time.sleep(0.02)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


if __name__ == "__main__":
    serve_light_sites(Path(sys.argv[1]))
