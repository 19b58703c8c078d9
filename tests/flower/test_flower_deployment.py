"""Real servers with TLS and node authentication: the tutorial, faults, refusals. `make test-deployment` runs them."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from private_network import run_script
from real_federation import SITES, RealFederation, free_port, wait
from short_certificate import write_certificate

from fedl2g.deploy.keys import write_key_pair
from fedl2g.engines.flower.store import stored_model

pytestmark = pytest.mark.deployment
ALL_ROUNDS = [0, 1, 2]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    """One SuperLink and its SuperNodes for all tests; each test has a run of its own."""
    made = RealFederation(tmp_path_factory.mktemp("deployment") / "federation")
    try:
        made.start_superlink()
        for site in SITES:
            made.register(site)
        for site in SITES:
            made.start_supernode(site)
        yield made
    finally:
        made.close()


def test_the_tutorial_runs_and_equals_the_inline_run(tmp_path: Path) -> None:
    folder = tmp_path / "my machines"  # with a space
    folder.mkdir()
    done = run_script(Path(__file__).parent / "run_tutorial.py", str(folder), timeout=900, cwd=folder)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:] + done.stdout[-1000:]
    found = json.loads(lines[-1].removeprefix("RESULT "))
    assert found["differences"] == []
    assert found["other user"] == (os.geteuid() == 0 and shutil.which("setpriv") is not None)
    assert found["predictions"] == {"north": [5, 4], "south": [5, 4], "east": [5, 4]}
    assert found["originals"] == []  # nothing names the folder in which it was made
    for word in ("north", "site_code:build_model", "small_resnet", "45", "not disclosed"):
        assert word in found["shown"]
    assert re.search(r"round 2: accuracy [\d.]+% \(\d+ of 15 test samples\); alone ", found["log"])


def try_to_join(federation: RealFederation, name: str, *options: str) -> str:
    """Start a SuperNode that must not be let in, wait for its end; what it said."""
    process = federation.start(
        name, "flower-supernode", "--superlink", federation.address, "--host", "127.0.0.1", "--port", str(free_port()),
        "--max-retries", "1", "--node-config", f'client-id=0 site="{federation.site("north")}/site.toml"', *options,
    )  # fmt: skip
    wait(f"{name} ends", lambda: process.poll() is not None)
    del federation.processes[name]
    assert process.returncode != 0
    assert "SuperNode ID" not in federation.log(name)
    return federation.log(name)


def refused_site(federation: RealFederation, key: Path) -> str:
    """Start a site as its institution does, with another key; the last line of its log, after its end."""
    folder = key.with_name("stranger")
    shutil.copytree(federation.site("north"), folder, ignore=shutil.ignore_patterns("store", "flwr", "hold", "held"))
    shutil.copy(key, folder / "node_key")
    return ended_site(federation, folder)


def ended_site(federation: RealFederation, folder: Path) -> str:
    """Start a site that is not let in and wait for its end; the last line of its log."""
    process = federation.start(folder.name, "fedl2g", "deploy", "site", str(folder / "site.toml"))
    wait(f"{folder.name} ends", lambda: process.poll() is not None)
    del federation.processes[folder.name]
    assert process.returncode == 2
    said = federation.log(folder.name)
    assert "SuperNode ID" not in said
    assert "Traceback" not in said
    return said.splitlines()[-1]


def activate_with_keys(federation: RealFederation, signing: Path, claimed: Path) -> int:
    """Ask to join by a registered public key, signed by another private key; the SuperLink's status code."""
    import httpx
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    from fedl2g.engines.flower.internals import (
        ActivateNodeRequest,
        FleetHttpClient,
        NodeAuthHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        public_key_to_bytes,
    )

    private = load_ssh_private_key(signing.read_bytes(), None)
    public = load_ssh_public_key(claimed.read_bytes())
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, public),  # type: ignore[arg-type]
    ]
    authority = (federation.site("north") / "ca.crt").read_bytes()
    with FleetHttpClient.from_server_address(federation.address, False, authority, interceptors=interceptors) as client:
        request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=30)  # type: ignore[arg-type]
        try:
            client.ActivateNode(request)
        except httpx.HTTPStatusError as error:
            return error.response.status_code
    return 200


def test_strangers_are_refused_and_the_run_goes_on(federation: RealFederation, tmp_path: Path) -> None:
    run = federation.run("refusals")
    write_key_pair(tmp_path / "unregistered")
    secure = ("--root-certificates", str(federation.site("north") / "ca.crt"))
    own_key = ("--auth-supernode-private-key", str(tmp_path / "unregistered"))
    assert "Failed to initialize the connection" in try_to_join(federation, "unregistered", *secure, *own_key)
    assert "Failed to initialize the connection" in try_to_join(federation, "keyless", *secure)
    assert "Failed to initialize the connection" in try_to_join(federation, "plain", "--insecure")
    said = refused_site(federation, tmp_path / "unregistered")
    assert "the coordinator does not know this key; send it node_key.pub, to be registered there with" in said
    public = federation.site("north") / "node_key.pub"
    assert activate_with_keys(federation, tmp_path / "unregistered", public) == 401
    log = federation.log("superlink")
    assert '/v1/fleet/activate-node HTTP/1.1" 401' in log
    run.finish()
    assert run.rounds() == ALL_ROUNDS
    assert "refused" not in run.log()
    assert run.differences() == []


TAMPERED = """
import os
import sys
from pathlib import Path

Path({folder!r}, str(os.getpid())).write_text(os.path.basename(sys.argv[0]) + " " + os.environ.get("FLWR_HOME", ""))
"""


@contextmanager
def tampered_app(federation: RealFederation, marks: Path) -> Iterator[None]:
    """Inside the block every process that imports any part of the coordinator's app leaves a mark."""
    marks.mkdir()
    files = sorted((federation.root / "coordinator" / "app" / "federation_app").glob("*.py"))
    before = {file: file.read_text(encoding="utf-8") for file in files}
    assert {file.name for file in files} == {"__init__.py", "client.py", "server.py"}
    for file, text in before.items():
        file.write_text(text + TAMPERED.format(folder=str(marks)), encoding="utf-8")
    try:
        yield
    finally:
        for file, text in before.items():
            file.write_text(text, encoding="utf-8")


@contextmanager
def plain_supernode(federation: RealFederation, folder: Path) -> Iterator[None]:
    """A node started as Flower's documentation says, which runs whatever app the coordinator sends."""
    public = write_key_pair(folder / "node_key")
    federation.command("flwr", "supernode", "register", str(public), "federation", "--name", "plain")
    process = federation.start(
        "control", "env", f"FLWR_HOME={folder}", "flower-supernode", "--superlink", federation.address,
        "--root-certificates", str(federation.site("north") / "ca.crt"),
        "--auth-supernode-private-key", str(folder / "node_key"), "--host", "127.0.0.1", "--port", str(free_port()),
    )  # fmt: skip
    try:
        wait("the plain node joins", lambda: "SuperNode ID" in federation.log("control"))
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        del federation.processes["control"]


def test_no_line_of_a_tampered_app_runs_at_a_site(federation: RealFederation, tmp_path: Path) -> None:
    marks, home = tmp_path / "marks", tmp_path / "plain"
    home.mkdir()
    with tampered_app(federation, marks), plain_supernode(federation, home):
        run = federation.run("tampered")
        run.finish()
        found = sorted({mark.read_text() for mark in marks.iterdir()})
    # The tampering works: at the coordinator, and at a node that is not started by `fedl2g deploy site`.
    coordinator = federation.root / "coordinator" / "flwr"
    assert found == [f"flwr {coordinator}", f"flwr-clientapp {home}", f"flwr-serverapp {coordinator}"]
    assert run.rounds() == ALL_ROUNDS
    assert run.differences() == []
    assert "is refused: SuperNode: it runs the coordinator's app" in run.log()


def test_a_site_that_answers_for_another_one_is_refused_and_counted(federation: RealFederation) -> None:
    file = federation.site("south") / "site.toml"
    text = file.read_text(encoding="utf-8")
    assert "client-id = 1" in text
    try:
        federation.restart("south", lambda: file.write_text(text.replace("client-id = 1", "client-id = 0")))
        run = federation.run("impostor", minimum=1)
        run.finish()
    finally:
        federation.restart("south", lambda: file.write_text(text))
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    claim = "it claims to be client 0, but has the key of client 1"
    assert [record["refused"] for record in records[1:]] == [{"1": f"its node is refused: {claim}"}] * 2
    assert [list(record["client_losses"]) for record in records[1:]] == [["0"]] * 2
    assert f"is refused: {claim}" in run.log()
    assert json.loads((run.path / "result.json").read_text())["refused"] >= 2


def test_a_killed_supernode_and_a_killed_client_process_change_nothing(federation: RealFederation) -> None:
    federation.hold("north", "south")
    run = federation.run("killed")
    federation.held("north")
    os.kill(federation.held("south"), signal.SIGKILL)
    federation.kill("north")
    federation.release("north", "south")
    federation.start_supernode("north")
    run.finish()
    log = run.log()
    assert "train, round 1, client 0: its node" in log
    assert "train, round 1, client 1: its node reports error" in log
    assert run.rounds() == ALL_ROUNDS
    assert run.differences() == []


def test_a_site_slower_than_the_deadline_misses_the_round_and_keeps_what_it_learned(
    federation: RealFederation,
) -> None:
    deadline = 20.0 + 10.0 * federation.start_seconds()  # no other site is late, however busy the machine is
    federation.hold("south")
    run = federation.run("slow", deadline_seconds=deadline, minimum=1)
    federation.held("south")
    wait("round 1 is over", lambda: 1 in run.rounds(), 3 * deadline)
    federation.release("south")
    run.finish()
    late = "it did not answer in time"
    assert f"train, round 1: no answer from client 1: {late}" in run.log()
    assert run.rounds() == ALL_ROUNDS
    assert run.differences({1: {1: late}}) == []


def test_a_site_whose_disk_is_full_misses_the_round_and_takes_part_again(federation: RealFederation) -> None:
    federation.hold("north", "south")
    run = federation.run("full", minimum=1)
    federation.held("north")
    trainer = federation.held("south")
    before = resource.prlimit(trainer, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    federation.release("south")
    full = "client 1 does not take part"
    wait("the disk is full", lambda: full in run.log())
    resource.prlimit(trainer, resource.RLIMIT_FSIZE, before)
    federation.release("north")
    run.finish()
    assert run.rounds() == ALL_ROUNDS
    reasons = [record["missing"] for record in run.records()]
    assert re.fullmatch(
        r"the site does not take part: .*round-000001\.safetensors: cannot be written .*; the earlier .* is intact",
        reasons[1].pop("1"),
    )
    assert reasons == [{}, {}, {}]  # in the second round it took part, from the model that it had
    assert stored_model(run.store("south", 1), "last").round == 2


def test_two_sites_with_one_key_are_one(federation: RealFederation, tmp_path: Path) -> None:
    run = federation.run("twins")
    twin = tmp_path / "twin"
    shutil.copytree(federation.site("north"), twin, ignore=shutil.ignore_patterns("store", "flwr", "hold", "held"))
    said = ended_site(federation, twin)
    assert said.startswith(
        "fedl2g: SuperNode: ended with exit code 1: the coordinator answers and knows this key; a second"
    )
    run.finish()
    assert run.rounds() == ALL_ROUNDS
    assert run.differences() == []


def test_a_site_that_answers_garbage_is_refused_and_the_run_goes_on(federation: RealFederation) -> None:
    federation.stop("south")
    script = Path(__file__).with_name("garbage_site.py")
    federation.start_supernode("south", sys.executable, str(script), str(federation.site("south") / "site.toml"))
    try:
        run = federation.run("garbage", minimum=1)
        run.finish()
    finally:
        federation.stop("south")
        federation.start_supernode("south")
    assert run.rounds() == ALL_ROUNDS
    refused = [record["refused"] for record in run.records()]
    assert all(list(reasons) == ["1"] for reasons in refused)
    assert all(list(record["client_losses"]) == ["0"] for record in run.records()[1:])
    assert "the reply from client 1 is refused: message: its envelope cannot be read" in run.log()


def test_a_certificate_that_expires_in_the_middle_stops_the_run_which_goes_on_with_a_new_one(
    federation: RealFederation,
) -> None:
    certificates = federation.root / "coordinator" / "certificates"
    good = (certificates / "server.crt").read_bytes()
    seconds = 30.0 + 8.0 * federation.start_seconds()  # until the run is in its first round, however busy the machine
    write_certificate(certificates, seconds)
    expired = time.monotonic() + seconds
    federation.kill("superlink")
    federation.start_superlink()
    federation.hold("north")
    try:
        run = federation.run("expired", deadline_seconds=seconds + 5.0, below_minimum="stop")
        federation.held("north")
        assert time.monotonic() < expired, "the machine is too busy for this test"
        time.sleep(expired - time.monotonic() + 1.0)
    finally:
        federation.release("north")
    over = ("the run stopped: ", "the run is finished")
    wait("the run is over", lambda: any(words in run.log() for words in over))
    stopped = over[0] in run.log()
    assert stopped == (not (run.path / "result.json").exists())
    if stopped:  # an open connection outlives its certificate
        assert "replies, but 2 are needed" in run.log() or "SuperLink: could not be reached" in run.log()
    wait("north, which could not send its answer, ends", lambda: federation.processes["north"].poll() is not None)
    assert "its certificate has expired" in federation.log("north").splitlines()[-1]
    (certificates / "server.crt").write_bytes(good)
    federation.kill("superlink")
    federation.start_superlink()
    federation.start_again()
    if stopped:
        run.start()
    run.finish()
    assert run.rounds() == ALL_ROUNDS
    assert run.differences() == []


def watched(federation: RealFederation, path: str) -> str:
    """The page of `fedl2g watch` as it is now."""
    page = federation.root / "page.html"
    federation.command("fedl2g", "watch", path, "--once", str(page))
    return page.read_text(encoding="utf-8")


def test_a_killed_superlink_is_started_again_and_the_run_goes_on(federation: RealFederation) -> None:
    run = federation.run("link")
    wait("round 1 is over", lambda: 1 in run.rounds())
    federation.hold("north")
    federation.held("north")
    both = watched(federation, "coordinator/runs/link")
    assert all(words in both for words in ("<td>running", "north (site_code:build_model", '"north"', '"south"'))
    own = watched(federation, "sites/north/site.toml")
    assert "<td>running" in own
    assert "north (site_code:build_model" in own
    assert "south" not in own
    federation.kill("superlink")
    federation.release("north")
    wait("the server gives up", lambda: "the run stopped: Flower: ended the run" in run.log())
    federation.start_superlink()
    run.start()
    run.finish()
    assert "the run continues after round 1" in run.log()
    assert run.rounds() == ALL_ROUNDS
    assert run.differences() == []
    as_any_other_run(run.path, run.path.with_name("link-inline") / "run")
    before = (run.path / "metrics.jsonl").read_bytes()
    run.start()  # over already: nothing is run again
    assert (run.path / "metrics.jsonl").read_bytes() == before


def as_any_other_run(deployed: Path, inline: Path) -> None:
    """The run directory has the files, the page and the numbers of an inline run."""
    command = str(Path(sys.executable).parent / "fedl2g")

    def files(path: Path) -> set[str]:
        found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
        return {name for name in found if not name.startswith("checkpoints/")} - {"log.txt", "lock", "sites.json"}

    assert files(deployed) == files(inline)
    shown = []
    for path in (deployed, inline):
        page = path.parent / f"{path.name}.html"
        subprocess.run([command, "report", str(path), "-o", str(page), "--trust"], check=True, capture_output=True)
        done = subprocess.run(
            [command, "show", str(path), "--json", "--trust"], check=True, capture_output=True, text=True
        )
        shown.append(json.loads(done.stdout))
        best, text = shown[-1]["best_accuracy"], page.read_text(encoding="utf-8")
        assert f'<td data-value="{best:.9g}"><strong>{100 * best:.2f}</strong></td>' in text
        assert ("Sites: north (site_code:build_model" in text) == (path == deployed)
    for name in ("method", "clients", "rounds_done", "status", "best_accuracy", "best_round"):
        assert shown[0][name] == shown[1][name]
