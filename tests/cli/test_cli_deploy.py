"""`fedl2g deploy` and `fedl2g export`: the files of a federation, each verdict of a check, models for use elsewhere."""

from __future__ import annotations

import datetime
import http.server
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import safetensors.torch
import torch

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from tiny import TINY

import fedl2g as fedl2g_package
from fedl2g.deploy import check
from fedl2g.deploy.certificates import make_certificates
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.own_site import load_data, make_node
from fedl2g.deploy.programs import load_program
from fedl2g.deploy.site_file import read_site
from fedl2g.deploy.verdict import attempt
from fedl2g.engines.flower.messages import Request
from fedl2g.errors import SettingError
from fedl2g.methods.registry import get_method
from fedl2g.schema import image_schema
from fedl2g.version import __version__

NEW = (
    "deploy", "new", "hospitals", "--site", "north", "--site", "south", "--class", "zero", "--class", "one",
    "--image-shape", "3,16,16",
)  # fmt: skip
APP = ("pyproject.toml", "federation_app/__init__.py", "federation_app/client.py", "federation_app/server.py")
FEDERATION = {
    "README.md",
    *(f"coordinator/app/{name}" for name in APP),
    "coordinator/experiment.toml",
    "coordinator/make-certificates.sh",
    "coordinator/start-superlink.sh",
    "coordinator/register.sh",
    "coordinator/run.sh",
}
SITE = {"README.md", "site.toml", "site_code.py", "make-key.sh", "start-supernode.sh"}
TARGET = {
    "systemd": ({"superlink.service", "install-service.sh"}, {"supernode.service", "install-service.sh"}),
    "compose": ({"Dockerfile", "compose.yaml"},) * 2,
    "k8s": ({"Dockerfile", "kubernetes.yaml", "kustomization.yaml"},) * 2,
}
VERDICTS = [
    "package", "identity", "limits", "data", "labels", "split", "model", "batch", "store", "node key", "certificate",
    "server", "clock", "registration",
]  # fmt: skip
OFFLINE = VERDICTS[:-3]
REGISTERED, UNREGISTERED = 2003, 2004  # Flower's codes for an interval of no seconds, and for a key it does not know


class Coordinator(http.server.BaseHTTPRequestHandler):
    """Answers as a SuperLink does: what it says of a key, and what time it is."""

    code = REGISTERED
    clock = 0.0

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        text = json.dumps({"code": self.code, "detail": "no"}).encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.clock)

    def log_message(self, *_: object) -> None:
        pass


class Quiet(http.server.ThreadingHTTPServer):
    """Does not print that a client hung up or did not trust it."""

    def handle_error(self, *_: object) -> None:
        pass


class TLSServer:
    """A coordinator's SuperLink, on a port of its own."""

    def __init__(self, certificates: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self.handler = type("Handler", (Coordinator,), {})
        self.server = Quiet(("127.0.0.1", 0), self.handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def certificates(folder: Path, address: str = "127.0.0.1:8443") -> Path:
    made, _ = make_certificates(folder / "coordinator" / "certificates", address, "hospitals")
    return made.folder


@pytest.fixture
def hospitals(fedl2g: Any, tmp_path: Path) -> Iterator[Path]:
    """A new federation with data, and a server that answers."""
    assert fedl2g(*NEW).code == 0
    assert fedl2g("deploy", "practice", "hospitals").code == 0
    folder = tmp_path / "hospitals"
    north = folder / "sites" / "north"
    server = TLSServer(certificates(folder))
    shutil.copy(folder / "coordinator" / "certificates" / "ca.crt", north)
    assert fedl2g("deploy", "key", str(north / "node_key")).code == 0
    SERVER[folder] = server
    for file in (north / "site.toml", folder / "coordinator" / "experiment.toml"):
        replace(file, "127.0.0.1:8443", f"127.0.0.1:{server.port}")
    assert fedl2g("deploy", "pin", str(north / "site.toml")).code == 0
    yield folder
    server.close()
    sys.modules.pop("site_code", None)  # each federation has its own


SERVER: dict[Path, TLSServer] = {}


def verdicts(fedl2g: Any, folder: Path, *options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code, and for each line what was tried: ok or FAIL, and the detail."""
    found = fedl2g(
        "deploy", "check", str(folder / "sites/north/site.toml"), "--experiment",
        str(folder / "coordinator/experiment.toml"), "--trust", *options,
    )  # fmt: skip
    lines = {}
    for line in found.out.splitlines():
        mark, rest = line[:4].strip(), line[6:]
        what, _, detail = rest.partition(": ")
        lines[what] = (mark, detail)
    assert "Traceback" not in found.err
    return found.code, lines


def test_a_site_in_order_passes_every_line(fedl2g: Any, hospitals: Path) -> None:
    code, lines = verdicts(fedl2g, hospitals)
    assert code == 0, lines
    assert list(lines) == VERDICTS
    assert {mark for mark, _ in lines.values()} == {"ok"}
    assert "60 images of 3 x 16 x 16" in lines["data"][1]
    assert "2 of the federation's 2 classes: zero, one" in lines["labels"][1]
    assert lines["split"][1] == "45 training samples, 15 test samples"
    assert "site_code:build_model builds" in lines["model"][1]
    assert "10 samples forward and backward, loss 0." in lines["batch"][1]
    assert "TLSv1.3" in lines["server"][1]
    assert lines["clock"][1] == "it agrees with the coordinator's"
    assert lines["registration"][1] == "this site's key is registered at the coordinator"
    assert list(verdicts(fedl2g, hospitals, "--offline")[1]) == OFFLINE


@pytest.mark.parametrize("bits", [8, 16])
def test_grey_images_pass_the_check_of_a_grey_federation(bits: int, fedl2g: Any, tmp_path: Path) -> None:
    from PIL import Image

    grey = [option if option != "3,16,16" else "1,16,16" for option in NEW]
    assert fedl2g(*grey).code == 0
    assert fedl2g("deploy", "practice", "hospitals").code == 0
    if bits == 16:
        for path in (tmp_path / "hospitals/sites/north/data").rglob("*.png"):
            with Image.open(path) as picture:
                values = np.asarray(picture).astype(np.uint16) * 257
            Image.fromarray(values).save(path)
    lines = verdicts(fedl2g, tmp_path / "hospitals", "--offline")[1]
    sys.modules.pop("site_code", None)
    assert lines["data"] == ("ok", "60 images of 1 x 16 x 16 in data")
    assert {lines[what][0] for what in ("labels", "split", "model", "batch")} == {"ok"}


def _spoil_key(north: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    (north / "node_key").write_bytes(text)


def _expire(north: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + datetime.timedelta(days=9))
    (north / "ca.crt").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _few_pictures(north: Path) -> None:
    for place in (north / "data").iterdir():
        for picture in sorted(place.iterdir())[1 if place.name == "one" else 0 :]:
            picture.unlink()
        if not any(place.iterdir()):
            place.rmdir()


def _another_authority(north: Path) -> None:
    shutil.copy(certificates(north.parents[1] / "other") / "ca.crt", north)


def _answers(north: Path, **as_it_should_not: Any) -> None:
    for name, value in as_it_should_not.items():
        setattr(SERVER[north.parents[1]].handler, name, value)


def _plain_server(north: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection = listener.accept()[0]
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()
        listener.close()

    threading.Thread(target=answer, daemon=True).start()
    _address(north, listener.getsockname()[1])


def _address(north: Path, port: int | str, host: str = "127.0.0.1") -> None:
    """Another address in both files."""
    for file in (north / "site.toml", north.parents[1] / "coordinator" / "experiment.toml"):
        old = next(line for line in file.read_text().splitlines() if line.startswith("address"))
        replace(file, old, f'address = "{host}:{port}"')


def _nobody_listens(north: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    _address(north, port)


def _no_superlink(north: Path) -> None:
    text = (north / "site.toml").read_text()
    (north / "site.toml").write_text(text.split("[superlink]")[0])


NAN_CODE = """
from torch import nn

class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(768, 8))
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(self.body(x) * (float("nan") if len(x) > 2 else 1.0))

def build_model(classes, image_shape):
    return Network(classes)
"""

ASKED = {"clock", "registration"}
SPOILED: dict[str, tuple[Any, dict[str, str], set[str]]] = {
    # what was done to the site: which lines fail and how, which lines are not there
    "not the coordinator's site": (
        lambda n: replace(n / "site.toml", 'name = "north"', 'name = "west"'),
        {"identity": "client 0 is 'west' here; the coordinator's sites are 0 north, 1 south"},
        set(),
    ),
    "another package": (
        lambda n: replace(n / "site.toml", 'digest = "sha256:', f'digest = "sha256:{"0" * 64}" # '),
        {"package": "(sha256:000000000000) is pinned; install that one, or run `fedl2g deploy pin "},
        set(),
    ),
    "a method that is not allowed": (
        lambda n: replace(n / "site.toml", '"fedl2g-f", ', ""),
        {"limits": "limits.methods: the coordinator asks for fedl2g-f; this site allows fedl2g-l"},
        set(),
    ),
    "no data": (lambda n: shutil.rmtree(n / "data"), {"data": "data"}, {"labels", "split", "batch"}),
    "a class nobody knows": (
        lambda n: (n / "data" / "one").rename(n / "data" / "ones"),
        {"data": "data: class 'ones' is not one of the federation's; did you mean 'one'? known: zero, one"},
        {"labels", "split", "batch"},
    ),
    "one picture": (_few_pictures, {"split": "too few", "batch": ""}, set()),
    "an unknown network": (
        lambda n: replace(n / "site.toml", '"site_code:build_model"', '"small_cn"'),
        {"model": "did you mean 'small_cnn'?", "batch": "small_cn"},
        set(),
    ),
    "a network of NaN": (
        lambda n: (n / "site_code.py").write_text(NAN_CODE),
        {"batch": "the loss of the first batch is not finite"},
        set(),
    ),
    "a store that is a file": (
        lambda n: replace(n / "site.toml", '"store"', '"ca.crt"'),
        {"data": "cannot be stored", "store": "ca.crt"},
        {"labels", "split", "batch"},
    ),
    "no key": (lambda n: (n / "node_key").unlink(), {"node key": "node_key", "registration": "node_key"}, set()),
    "a key for everybody": (lambda n: (n / "node_key").chmod(0o644), {"node key": "chmod 600"}, set()),
    "a key of another kind": (
        _spoil_key, dict.fromkeys(("node key", "registration"), "not an elliptic-curve key"), set(),
    ),
    "no certificate": (
        lambda n: (n / "ca.crt").unlink(),
        dict.fromkeys(("certificate", "server"), "get the coordinator's ca.crt again"),
        ASKED,
    ),
    "garbage for a certificate": (
        lambda n: (n / "ca.crt").write_text("garbage"),
        dict.fromkeys(("certificate", "server"), "it is not a certificate in PEM form"),
        ASKED,
    ),
    "an expired certificate": (
        _expire, {"certificate": "expired on 2020-01-10; get", "server": "was not signed by this ca.crt"}, ASKED,
    ),
    "another authority": (
        _another_authority,
        {"server": "its certificate was not signed by this ca.crt, which is not the coordinator's; get ca.crt"},
        ASKED,
    ),
    "nobody listens": (_nobody_listens, {"server": "cannot be reached (Connection refused); check the address"}, ASKED),
    "no such machine": (
        lambda n: _address(n, 8443, "nowhere.invalid"),
        {"server": "nowhere.invalid:8443: no machine of this name is known; check the address in site.toml"},
        ASKED,
    ),
    "another address than the coordinator's": (
        lambda n: replace(n / "site.toml", 'address = "127.0.0.1:', 'address = "127.0.0.1:1'),
        {"server": "the coordinator's experiment.toml says 127.0.0.1:"},
        ASKED,
    ),
    "a server without TLS": (_plain_server, {"server": "but it is not a SuperLink with TLS"}, ASKED),
    "a key that nobody registered": (
        lambda n: _answers(n, code=UNREGISTERED),
        {"registration": "the coordinator does not know this key; send it node_key.pub, to be registered"},
        set(),
    ),
    "a clock that is ahead": (
        lambda n: _answers(n, clock=-120.0),
        {"clock": "s ahead of the coordinator's, which would refuse this site; set"},
        set(),
    ),
    "a clock that is behind": (
        lambda n: _answers(n, clock=7200.0), {"clock": "s behind the coordinator's, which would refuse"}, set(),
    ),
    "no table superlink": (
        _no_superlink,
        dict.fromkeys(("node key", "certificate", "server"), "superlink: the table is missing")
        | {"package": "package: not pinned"},
        ASKED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_what_is_wrong_with_a_site_is_said_on_its_line(what: str, fedl2g: Any, hospitals: Path) -> None:
    spoil, expected, missing = SPOILED[what]
    spoil(hospitals / "sites" / "north")
    code, lines = verdicts(fedl2g, hospitals)
    assert code == 1
    assert {name for name, (mark, _) in lines.items() if mark == "FAIL"} == set(expected), lines
    assert set(VERDICTS) - set(lines) == missing
    for name, words in expected.items():
        assert words in lines[name][1]
        assert lines[name][1]


def test_labels_outside_the_federation_are_refused() -> None:
    from fedl2g.datasets import Dataset

    pictures = np.zeros((2, 1, 8, 8), dtype=np.uint8)
    dataset = Dataset("x", image_schema(1, 8, 8), pictures, np.array([0, 5]), ("a", "b"), None, (), "f")
    verdict = attempt("labels", lambda: check._labels(dataset))
    assert (verdict.good, verdict.detail) == (False, "labels range from 0 to 5; expected 0 to 1")


@pytest.mark.parametrize("file", ["sites/north/site.toml", "coordinator/experiment.toml"])
def test_files_that_cannot_be_read_are_one_line(file: str, fedl2g: Any, hospitals: Path) -> None:
    (hospitals / file).write_text("= nonsense")
    code, lines = verdicts(fedl2g, hospitals)
    assert code == 1
    assert list(lines) == ["files"]
    assert "is not valid TOML" in lines["files"][1]


def test_a_deployment_measures_no_layout(fedl2g: Any, hospitals: Path) -> None:
    file = hospitals / "coordinator/experiment.toml"
    file.write_text('layout = "auto"\n' + file.read_text())
    code, lines = verdicts(fedl2g, hospitals)
    assert code == 1
    assert list(lines) == ["files"]
    assert "clients of a deployment run on several; choose preset" in lines["files"][1]


_WITHOUT_CONTAINERS = {
    ".": (
        f"fedl2g-{__version__}-py3-none-any.whl[flower]",  # it is on no index
        *("make-certificates.sh", "start-superlink.sh", "register.sh", "run.sh"),
    ),
    "sites/north": ("make-key.sh", "start-supernode.sh"),
}
_DEPLOYED = ("fedl2g deploy register", "fedl2g deploy run")
README_STEPS = {  # what a README must name
    "systemd": _WITHOUT_CONTAINERS,
    "compose": {".": ("docker compose build", *_DEPLOYED), "sites/north": ("docker compose",)},
    "k8s": {".": ("kubectl apply", *_DEPLOYED), "sites/north": ("kubectl",)},
}


@pytest.mark.parametrize("target", TARGET)
def test_a_new_federation_is_whole(target: str, fedl2g: Any, tmp_path: Path) -> None:
    said = fedl2g(*NEW, "--host", "fl.example.org", "--port", "9000", "--target", target)
    assert said.code == 0
    assert "exchange only its public half, node_key.pub, and the coordinator's ca.crt" in said.out
    root = tmp_path / "hospitals"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    coordinators, sites = TARGET[target]
    assert files == {
        *FEDERATION,
        *(f"coordinator/{name}" for name in coordinators),
        *(f"sites/{site}/{name}" for site in ("north", "south") for name in SITE | sites),
    }
    assert f"wrote {len(files)} files to hospitals" in said.out
    coordinator = read_coordinator(root / "coordinator" / "experiment.toml")
    assert coordinator.federation.sites == ("north", "south")
    assert coordinator.federation.classes == ("zero", "one")
    assert coordinator.federation.address == "fl.example.org:9000"
    assert coordinator.experiment.clients == 2
    for number, name in enumerate(("north", "south")):
        site = read_site(root / "sites" / name / "site.toml", trust=True)
        assert (site.client_id, site.name) == (number, name)
        assert site.superlink is not None
        assert site.superlink.address == "fl.example.org:9000"
        assert str(site.superlink.private_key) == ("node_key" if target == "systemd" else "keys/node_key")
        script = (root / "sites" / name / "start-supernode.sh").read_text()
        assert "exec fedl2g deploy site site.toml" in script
        assert site.limits.image_shape == list(coordinator.federation.inputs.shape)
    superlink = (root / "coordinator" / "start-superlink.sh").read_text()
    assert "--enable-supernode-auth" in superlink
    assert "--host 0.0.0.0" in superlink
    assert "--insecure" not in superlink
    app = tomllib.loads((root / "coordinator/app/pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["components"]["serverapp"] == "federation_app.server:app"
    for name in files:
        text = (root / name).read_text()
        assert str(tmp_path) not in text, name  # it works wherever it is copied
        assert not re.search(r"\$(root|unit|name|keys|site)\b", text), name
        if name.endswith(".sh"):
            subprocess.run(["sh", "-n", str(root / name)], check=True)
        if name.endswith(".py"):
            compile(text, name, "exec")
        if name.endswith(".toml"):
            tomllib.loads(text)
    readmes = {place: (root / place / "README.md").read_text() for place in (".", "sites/north")}
    for place, steps in README_STEPS[target].items():
        assert [step for step in steps if step not in readmes[place]] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--image-shape", "3,16"), "is not the shape of one sample of kind image"),
        (("--site", "north"), "each once"),
        (("--site", "a b"), "a b"),
        (("--class", 'x"y'), "plain names"),
        (("--port", "70000"), "expected 1 to 65535"),
        (("--host", "a b"), "is not a host name"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(arguments: tuple[str, str], sentence: str, fedl2g: Any) -> None:
    found = fedl2g(*NEW, *arguments)
    assert found.code == 2
    assert sentence in found.sentence
    assert not Path("hospitals").exists()


def test_nothing_is_overwritten(fedl2g: Any) -> None:
    assert fedl2g(*NEW).code == 0
    again = fedl2g(*NEW)
    assert (again.code, "exists already" in again.sentence) == (2, True)
    for command in (("deploy", "practice", "hospitals"), ("deploy", "key", "node_key")):
        assert fedl2g(*command).code == 0
        twice = fedl2g(*command)
        assert (twice.code, "exists already" in twice.sentence) == (2, True)
    assert Path("node_key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('modle = "x"', "modle: unknown setting; did you mean 'model'? known: client-id, name, "),
        ("client-id = -1", "client-id"),
        ("[limits]\nmegabytes = 0.0", "limits.megabytes"),
        ("[limits]\nrounds = true", "limits.rounds"),
        ("[limits]\nepoch = 1", "limits.epoch: unknown setting; did you mean 'epochs'? known: methods, rounds, "),
        ('[package]\nversion = "1"\ndigest = "x"', "package.digest"),
        ('[superlink]\naddress = "nowhere"\nroot-certificates = "a"\nprivate-key = "b"', "superlink.address"),
    ],
)
def test_a_site_file_is_read_strictly(line: str, sentence: str, tmp_path: Path) -> None:
    given = {"client-id": "client-id = 0", "name": 'name = "n"', "model": 'model = "m"', "data": 'data = "d"'}
    given[line.split(" ")[0]] = line
    (tmp_path / "site.toml").write_text("\n".join(given.values()))
    with pytest.raises(SettingError) as error:
        read_site(tmp_path / "site.toml", trust=False)
    assert str(error.value).startswith(f"{tmp_path / 'site.toml'}: {sentence}")


def test_paths_of_a_site_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('client-id = 0\nname = "n"\nmodel = "m"\ndata = "d"')
    site = read_site(tmp_path / "site.toml", trust=False)
    assert site.path(site.store) == (tmp_path / "store").resolve()


def same_predictions(out: Path, half: Any, images: torch.Tensor) -> dict[str, Any]:
    """The program in the folder predicts as the method does, its weights are the network's; what is written of them."""
    model = half.model.eval()
    with torch.no_grad():
        expected, own = half.predict(images / 127.5 - 1.0), model(images / 127.5 - 1.0)[1]
        program = torch.jit.load(out / "model.torchscript")
        assert torch.allclose(program(images), expected, atol=1e-5)
        assert program(images.to(torch.uint8)).shape == expected.shape
        for parameter in model.parameters():
            parameter.zero_()
        model.load_state_dict(safetensors.torch.load_file(out / "weights.safetensors"))
        assert torch.equal(model(images / 127.5 - 1.0)[1], own)
        with (out / "model.pt2").open("rb") as file:
            exported = load_program(file)
        session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
        for number in (1, len(images)):
            assert torch.allclose(exported(images[:number]), expected[:number], atol=1e-5)
            (scores,) = session.run(["scores"], {"images": images[:number].numpy()})
            assert torch.allclose(torch.from_numpy(scores), expected[:number], atol=1e-4)
    written = [(out / "model.onnx").read_bytes()]
    for name in ("model.torchscript", "model.pt2"):
        with zipfile.ZipFile(out / name) as archive:
            written += [archive.read(entry) for entry in archive.namelist()]
    for module in (torch, fedl2g_package):  # no path of this machine leaves it
        folder = str(Path(str(module.__file__)).parent).encode()
        assert not any(folder in part for part in written)
    about: dict[str, Any] = json.loads((out / "model.json").read_text())
    return about


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:FutureWarning")
def test_the_model_of_a_run_is_exported_and_predicts_the_same(fedl2g: Any, tmp_path: Path) -> None:
    from fedl2g.datasets import load_dataset
    from fedl2g.engines.host import Host
    from fedl2g.learning.devices import resolve_device
    from fedl2g.methods.registry import get_method
    from fedl2g.runs.checkpoint import Checkpoint
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.setup import Setup

    # FedMRL predicts with a network that the server sends: its own network alone would predict otherwise.
    assert fedl2g("run", *TINY, "--method", "fedmrl", "--set", "execution.checkpoint_every=1", "--out", "run").code == 0
    said = fedl2g("export", "run", "--client", "1", "--which", "last", "--out", "model")
    directory = RunDirectory.open(tmp_path / "run")
    experiment = directory.experiment()
    dataset = load_dataset(experiment.dataset, samples=experiment.samples)
    setup = Setup(experiment, dataset, directory.partition())
    host = Host(setup, resolve_device("cpu"))
    checkpoint = Checkpoint(tmp_path / "run/checkpoints/round-000002")
    state = checkpoint.client(1)
    assert state is not None
    host.load_state(1, state)
    server = get_method("fedmrl").server(experiment.method, setup.task)
    server.load_state_dict(checkpoint.server())
    (evaluation,) = host.evaluate([1], server.broadcast(3))
    assert directory.history()[-1].accuracy.counts[1] == (evaluation.correct, evaluation.samples)  # type: ignore[union-attr]
    images = torch.from_numpy(dataset.inputs[:20]).float()
    about = same_predictions(Path("model"), host.half(1), images)
    assert (about["architecture"], about["round"], about["client"], about["which"]) == ("small_cnn", 2, 1, "last")
    assert about["test_accuracy"] == evaluation.correct / evaluation.samples
    assert f"last model: round 2, test accuracy {about['test_accuracy']:.2%}" in said.out
    assert about["classes"] == list(dataset.class_names)
    for arguments, sentence in (
        (("run",), "name the client, for example --client 0"),
        (("run", "--client", "9"), "numbered 0 to 2"),
        (("nowhere.toml",), "nowhere.toml: cannot be read"),
    ):
        refused = fedl2g("export", *arguments, "--out", "other")
        assert (refused.code, sentence in refused.sentence) == (2, True)
    assert not Path("other").exists()


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:FutureWarning")
def test_the_model_of_a_site_is_exported_and_predicts_the_same(fedl2g: Any, hospitals: Path) -> None:
    north = hospitals / "sites" / "north"
    export = ("export", str(north / "site.toml"), "--trust", "--force", "--out", "model")
    nothing = fedl2g(*export)
    assert (nothing.code, "its runs: none" in nothing.sentence) == (2, True)
    file = read_site(north / "site.toml", trust=True)
    coordinator = read_coordinator(hospitals / "coordinator/experiment.toml")
    experiment, table = coordinator.experiment, coordinator.federation
    server = get_method(experiment.method.name).server(experiment.method, coordinator.setup.task)
    request = Request("run1", experiment, table.classes, table.inputs, 60, server.broadcast(60))
    node = make_node(file, request)
    assert node.train(request).report.steps > 0
    host = node._host(node._store(request).before(61))
    none_yet = fedl2g(*export)
    assert (none_yet.code, "has not named a best round yet; take" in none_yet.sentence) == (2, True)
    assert fedl2g(*export, "--which", "last").code == 0
    later = Request("run1", experiment, table.classes, table.inputs, 61, server.broadcast(61), best=60)
    assert node.train(later).report.steps > 0
    said = fedl2g(*export, "--metrics", "auroc,confusion")
    images = torch.from_numpy(load_data(file, table.classes, table.inputs).inputs).float()
    (found,) = host.evaluate([0], {})
    about = same_predictions(Path("model"), host.half(0), images)
    assert (about["site"], about["round"], about["run"]) == ("north", 60, "run1")
    assert (about["test_accuracy"], about["test_samples"]) == (found.correct / found.samples, found.samples)
    assert (
        f"best model: round 60 (best round chosen on test data), test accuracy {about['test_accuracy']:.2%}" in said.out
    )
    assert about["classes"] == ["zero", "one"]
    assert sum(map(sum, about["metrics"]["confusion"])) == found.samples
    other = fedl2g(*export, "--run", "run2")
    assert (other.code, "its runs: run1" in other.sentence) == (2, True)


@pytest.mark.parametrize(
    "command",
    [
        ("run", *TINY, "--method", "local", "--engine", "flower", "--out", "run"),
        ("deploy", "key", "node_key"),
        ("deploy", "check", "site.toml", "--experiment", "experiment.toml"),
    ],
)
def test_without_flower_what_to_install_is_said(
    command: tuple[str, ...], fedl2g: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "flwr"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "flwr", None)
    found = fedl2g(*command)
    assert found.code == 2
    assert 'pip install "fedl2g[flower]"' in found.sentence
    assert not Path("run").exists()
    assert not Path("node_key").exists()
