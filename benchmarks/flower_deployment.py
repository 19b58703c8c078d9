"""A deployment for benchmarks: a SuperLink with TLS and authentication, a SuperNode for each client, on this machine.

The ServerApp trains a round for each file `go-ROUND`, so that its rounds can be interleaved with those of others.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
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
        scaffold(Plan(folder, self.names, classes, setup.dataset.shape, port=self.ports[0]))
        self.processes: list[subprocess.Popen[bytes]] = []
        self._call("sh", "coordinator/make-certificates.sh")
        _edit(folder / "coordinator" / "experiment.toml", 'name = "fedl2g-f"', 'name = "fedl2g-f"\nwarmup_rounds = 0')
        text = _SERVER.format(here=str(Path(__file__).parent), folder=str(folder))
        (folder / "app" / "federation_app" / "server.py").write_text(text)
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
        self._start("superlink", "coordinator/start-superlink.sh")
        _wait("the SuperLink listens", lambda: _listens(self.ports[0]))
        for name in self.names:
            self._call("sh", "coordinator/register.sh", f"sites/{name}/node_key.pub", name)
        alone = self._idle(seconds)
        for name in self.names:
            self._start(name, f"sites/{name}/start-supernode.sh")
        for name in self.names:
            _wait(f"{name} joins", lambda log=self.folder / f"{name}.log": b"SuperNode ID" in log.read_bytes())
        waiting = self._idle(seconds)
        self._call("sh", "coordinator/run.sh")
        return alone, waiting

    def train(self, round: int) -> float:
        """The seconds of a round of training, as the server measured them."""
        (self.folder / f"go-{round}").touch()
        done = self.folder / f"done-{round}.json"
        _wait(f"round {round}", done.is_file)
        return float(json.loads(done.read_text()))

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

    def _start(self, name: str, script: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    ["sh", script], cwd=self.folder, env=self._environment(), stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip


def serve(grid: Any, folder: str) -> None:
    """In the ServerApp: train a round for each file `go-ROUND` and write how long it took."""
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
        partial = Path(folder) / "partial.json"
        partial.write_text(json.dumps(time.perf_counter() - started))
        partial.rename(Path(folder) / f"done-{round}.json")


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
