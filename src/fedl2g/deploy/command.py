"""Flower's command line `flwr`, run with the connection of a coordinator's folder, wherever that folder is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.engines.flower import require_flower
from fedl2g.errors import RunError, SettingError
from fedl2g.files import reason_of, write_text

HOME = "flwr"
"""Flower's folder in the coordinator's; each command rewrites it, since the coordinator's folder may have moved."""
CONNECTION = "federation"
_SECONDS = 120.0


class FlowerCommand:
    """Sends commands to the SuperLink of a coordinator's folder, on this machine; every failure is one sentence."""

    def __init__(self, folder: Path, address: str) -> None:
        require_flower()
        self.folder = folder.resolve()
        self.public_address = address
        self.address = local_address(address)

    def start(self, settings: dict[str, str], name: str) -> str:
        """Start the app with these settings; returns Flower's id of the run."""
        config = self.folder / HOME / f"{name}.toml"
        self._write(config, "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        return str(self._ask("run", str(self.folder / "app"), CONNECTION, "--run-config", str(config))["run-id"])

    def status(self, run: str) -> str:
        """Flower's word for the state of a run, such as `running` or `finished:failed`."""
        found = self._ask("list", CONNECTION, "--run-id", run).get("runs", [])
        return str(found[0].get("status", "unknown")) if found else "unknown"

    def stop(self, run: str) -> None:
        """End a run."""
        self._ask("stop", run, CONNECTION)

    def register(self, public_key: Path, name: str) -> None:
        """Let the node with this key in."""
        self._ask("supernode", "register", str(public_key.resolve()), CONNECTION, "--name", name)

    def _ask(self, *arguments: str) -> dict[str, Any]:
        certificate = self.folder / "certificates" / "ca.crt"
        self._write(
            self.folder / HOME / "config.toml",
            f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
            f"address = {json.dumps(self.address)}\nroot-certificates = {json.dumps(str(certificate))}\n"
            "insecure = false\n",
        )
        environment = {
            "FLWR_HOME": str(self.folder / HOME),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        try:
            done = subprocess.run(
                [_program(), *arguments, "--format", "json"], env={**os.environ, **environment}, capture_output=True,
                text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RunError(f"SuperLink: {self.address} does not answer; look at its log, and start it again") from error
        answer = _answer_in(done.stdout)
        if done.returncode or answer.get("success") is False:
            raise RunError(f"SuperLink: {self.address}: {_reason_in(answer, done.stdout + done.stderr)}")
        return answer

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"{path.parent}: cannot be written ({reason_of(error)}); make it writable") from error
        write_text(path, text, durable=False)


def flower_command(folder: Path) -> FlowerCommand:
    """The command of a coordinator's folder."""
    address = read_coordinator(folder / "experiment.toml").federation.address
    if address is None:
        raise SettingError(
            f"{folder / 'experiment.toml'}: federation.address: missing; expected where the sites reach the SuperLink, "
            'such as "fl.example.org:8443"'
        )
    return FlowerCommand(folder, address)


def local_address(address: str) -> str:
    """The SuperLink's address for commands on its own machine."""
    return f"127.0.0.1:{address.rpartition(':')[2]}"


def _program() -> str:
    beside = Path(sys.executable).with_name("flwr")
    found = str(beside) if beside.is_file() else shutil.which("flwr")
    if found is None:
        raise SettingError(
            "flwr: the command is missing beside this Python; install it with pip install 'fedl2g[flower]'"
        )
    return found


def _answer_in(text: str) -> dict[str, Any]:
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason_in(answer: dict[str, Any], text: str) -> str:
    """Flower's message, in one line."""
    said = str(answer.get("error-message") or answer.get("error_message") or text)
    return " ".join(said.split())[-500:] or "the command failed without a message"
