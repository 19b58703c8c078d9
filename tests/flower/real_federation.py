"""A federation of real processes on this machine: a SuperLink with TLS and node authentication, and SuperNodes."""

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

from fedl2g.deploy.keys import write_key_pair
from fedl2g.deploy.package import pin_package
from fedl2g.deploy.practice import write_practice_data
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.engines.flower.store import client_folder
from fedl2g.schema import image_schema

SITES = ("north", "south")
CLASSES = ("zero", "one", "two", "three")
PATIENCE = float(os.environ.get("FEDL2G_DEPLOYMENT_SECONDS", "600"))  # for each thing that is waited for

# A site's network that stops in the middle of training for as long as a file `hold` lies beside it.
SITE_CODE = """
import os
import time
from pathlib import Path

from torch import nn

HERE = Path(__file__).parent


class Network(nn.Module):
    def __init__(self, classes, image_shape):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(image_shape[0], 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        if self.training and (HERE / "hold").exists():
            (HERE / "held").write_text(str(os.getpid()))
            while (HERE / "hold").exists():
                time.sleep(0.05)
        return self.fc(self.body(x))


def build_model(classes, image_shape):
    return Network(classes, image_shape)
"""


def wait(what: str, ready: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.1)


def listening(port: int) -> bool:
    """Whether somebody listens on a port of the loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """For processes of Flower: this Python first, files of their own, nothing reported to anybody."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }


class RealFederation:
    """Starts, kills and watches the processes of one federation; every process it started ends with it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        scaffold(Plan(folder, SITES, CLASSES, image_schema(3, 16, 16), port=self.port))
        write_practice_data(folder)
        self.command("sh", "coordinator/make-certificates.sh")
        for site in SITES:
            at = self.site(site)
            (at / "site_code.py").write_text(SITE_CODE, encoding="utf-8")
            (at / "ca.crt").write_bytes((folder / "coordinator" / "certificates" / "ca.crt").read_bytes())
            write_key_pair(at / "node_key")
            pin_package(at / "site.toml")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def site(self, name: str) -> Path:
        """A site's folder."""
        return self.root / "sites" / name

    def log(self, name: str) -> str:
        """What a process has written."""
        path = self.root / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def command(self, *command: str) -> str:
        """Run a command to its end."""
        done = subprocess.run(
            command, cwd=self.root, env=environment(self.root / "coordinator" / "flwr"), capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own; its output goes to NAME.log."""
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment(self.root / "flwr"), stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def start_superlink(self) -> None:
        self.start("superlink", "sh", "coordinator/start-superlink.sh")
        wait("the SuperLink listens", self._listening)

    def _listening(self) -> bool:
        assert self.processes["superlink"].poll() is None, self.log("superlink")[-3000:]
        return listening(self.port)

    def register(self, site: str) -> None:
        self.command("sh", "coordinator/register.sh", f"sites/{site}/node_key.pub", site)

    def start_supernode(self, site: str, *command: str) -> None:
        """Start a site, again and again as systemd would, until the SuperLink lets it in."""
        before = self.log(site).count("SuperNode ID")

        def joined() -> bool:
            if site not in self.processes or self.processes[site].poll() is not None:
                self.start(site, *(command or ("sh", f"sites/{site}/start-supernode.sh")))
            return self.log(site).count("SuperNode ID") > before

        wait(f"{site} joins", joined)

    def start_again(self) -> None:
        """Start the sites that have ended."""
        for site in SITES:
            if self.processes[site].poll() is not None:
                self.start_supernode(site)

    def restart(self, site: str, change: Callable[[], object]) -> None:
        """Stop a site, change something there, and start it again."""
        self.stop(site)
        change()
        self.start_supernode(site)

    def stop(self, site: str) -> None:
        """Ask a site for an orderly end, and wait for it."""
        process = self.processes.pop(site)
        process.terminate()
        process.wait(PATIENCE)

    def kill(self, name: str) -> None:
        """kill -9 of one process; what it started is left to itself."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def run(self, name: str, **replies: object) -> Run:
        """Start a run with a run directory of its own; two rounds, unless it goes on."""
        experiment = self.root / "coordinator" / f"{name}.toml"
        settings = {"minimum": 2, "below_minimum": "wait", **replies}
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        table = (self.root / "coordinator" / "experiment.toml").read_text(encoding="utf-8").split("[federation]")[1]
        experiment.write_text(
            f"rounds = 2\nevaluate_every = 2\npatience = 0\nbatch_size = 10\nclient_lr = 0.01\nseed = 0\n"
            f'[method]\nname = "fedl2g-f"\nwarmup_rounds = 0\n[replies]\n{lines}\n[federation]{table}'
        )
        found = Run(self, experiment, self.root / "coordinator" / "runs" / name)
        found.start()
        return found

    def start_seconds(self) -> float:
        """How long a site's process takes to start now, before it can train."""
        started = time.monotonic()
        self.command(sys.executable, "-c", "import flwr.clientapp, fedl2g.deploy.own_site")
        return time.monotonic() - started

    def hold(self, *sites: str) -> None:
        """Let sites stop in the middle of their next training."""
        for site in sites:
            (self.site(site) / "held").unlink(missing_ok=True)
            (self.site(site) / "hold").touch()

    def held(self, site: str) -> int:
        """Wait until a site has stopped in the middle of training; the process that trains."""
        mark = self.site(site) / "held"
        wait(f"{site} trains", lambda: mark.is_file() and mark.read_text())
        return int(mark.read_text())

    def release(self, *sites: str) -> None:
        for site in sites:
            (self.site(site) / "hold").unlink()

    def close(self) -> None:
        for process in self.processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes.values():
            process.wait()


class Run:
    """One run of a federation."""

    def __init__(self, federation: RealFederation, experiment: Path, path: Path) -> None:
        self.federation = federation
        self.experiment = experiment
        self.path = path

    def start(self) -> None:
        """`fedl2g deploy run`: from the start, or after the last round."""
        self.federation.command(
            "sh", "coordinator/run.sh", "--detach", "--name", self.path.name, "--experiment", str(self.experiment)
        )

    def rounds(self) -> list[int]:
        """The rounds in the metrics, as they were appended."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line)["round"] for line in path.read_text().splitlines()] if path.is_file() else []

    def records(self) -> list[dict[str, Any]]:
        """The lines of the metrics, the first that of the evaluation before the first round."""
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    def store(self, site: str, client: int) -> Path:
        """Where a site keeps its models of this run."""
        last = max((self.path / "checkpoints").glob("round-*"))
        run: str = json.loads((last / "nodes.json").read_text())["run"]
        return client_folder(self.federation.site(site) / "store", run, client)

    def log(self) -> str:
        """The run directory's log."""
        path = self.path / "log.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def finish(self) -> None:
        wait(f"{self.path.name} is over", (self.path / "result.json").is_file)

    def differences(self, missed: dict[int, dict[int, str]] | None = None) -> list[str]:
        """What differs from the same federation in one process, in which the replies in `missed` were lost."""
        script = Path(__file__).parent / "inline_twin.py"
        arguments = (str(self.federation.root), str(self.experiment), str(self.path), json.dumps(missed or {}))
        output = self.federation.command(sys.executable, str(script), *arguments)
        found: list[str] = json.loads(output.split("RESULT ")[-1])
        return found
