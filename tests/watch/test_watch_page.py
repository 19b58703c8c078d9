"""The page that follows runs: its server, changing and damaged folders, and a browser with a live run."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedl2g
from browser import Browser, show, started_browser
from fedl2g.cli import main
from fedl2g.federation import Federation
from fedl2g.runs.plan import PlannedRun, note_failure, write_plan
from fedl2g.watch.follower import Follower, State
from fedl2g.watch.found import Watched
from fedl2g.watch.server import application
from fedl2g.watch.serving import PageServer

SETTINGS: dict[str, Any] = {
    "samples": 120, "clients": 2, "partition": "iid", "models": "small_cnn", "quiet": True,
}  # fmt: skip
OUTSIDE = re.compile(r"""(?:src|href|action|url)\s*[=(]\s*["']?\s*(?:https?:)?//""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("watched")
    for name in ("local", "fedproto"):
        fedl2g.run(method=name, rounds=2, out=root / f"{name}-s0", **SETTINGS)
    return root


def copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def follower_of(path: Path) -> Follower:
    return Follower(Watched(path), period=0, rest=0)


def changed(follower: Follower, before: State) -> State:
    """The state after a change of the files."""
    deadline = time.monotonic() + 180
    while (found := follower.state()).version == before.version:
        assert time.monotonic() < deadline, "the change was not seen"
        time.sleep(0.05)
    return found


def interrupt(run: Path, rounds: int) -> None:
    """Leave a run as if it had been killed after so many rounds."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[: rounds + 1]))
    (run / "result.json").unlink(missing_ok=True)


def text_of(page: str) -> str:
    body = page.partition("<main>")[2].partition("</main>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_the_server_answers_only_with_the_token_and_only_reads(folder: Path) -> None:
    pytest.importorskip("httpx", reason="needs the extra `flower`")
    from starlette.testclient import TestClient

    client = TestClient(application(follower_of(folder), "secret", lambda: True), base_url="http://127.0.0.1")
    for address in ("/", "/events", "/?token=", "/?token=Secret", "/?token=secret2", "/nothing?token=x"):
        assert client.get(address).status_code == 403, address
    for method in ("post", "put", "delete", "patch"):
        assert getattr(client, method)("/?token=secret").status_code == 405
    assert client.get("/?token=secret", headers={"host": "attacker.example"}).status_code == 400
    page = client.get("/?token=secret")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert not OUTSIDE.search(page.text)
    assert "default-src 'none'" in page.text
    assert client.get("/events?token=secret").headers["content-type"].startswith("text/event-stream")


def test_the_page_changes_when_the_files_do_and_survives_a_restart(folder: Path, tmp_path: Path) -> None:
    root = copied(folder, tmp_path / "runs")
    follower = follower_of(root)
    first = follower.state()
    assert "2 finished" in text_of(first.page())
    assert follower.state() is first
    interrupt(root / "local-s0", 1)
    stopped = changed(follower, first)
    assert "interrupted 1 of 2" in text_of(stopped.page())
    for name in ("metrics.jsonl", "result.json"):  # it went on, and ended
        shutil.copy(folder / "local-s0" / name, root / "local-s0" / name)
    assert "2 finished" in text_of(changed(follower, stopped).page())


def test_a_damaged_or_vanished_run_is_a_sentence_beside_the_others(folder: Path, tmp_path: Path) -> None:
    root = copied(folder, tmp_path / "runs")
    follower = follower_of(root)
    whole = follower.state()
    (root / "fedproto-s0" / "run.json").write_text("{")
    damaged = changed(follower, whole)
    assert damaged.runs == 1
    assert "fedproto-s0/run.json: cannot be read" in text_of(damaged.page())
    shutil.rmtree(root)
    vanished = changed(follower, damaged)
    assert "the folder no longer exists" in text_of(vanished.page())
    copied(folder, root)
    assert changed(follower, vanished).runs == 2


def test_a_folder_without_runs_is_a_page_that_waits_for_them(tmp_path: Path) -> None:
    assert "No runs yet; the page fills as soon as there is one" in text_of(follower_of(tmp_path).state().page())


def test_planned_failed_and_running_cells_and_the_coordinators_log(folder: Path, tmp_path: Path) -> None:
    root = copied(folder, tmp_path / "runs")
    planned = [PlannedRun(f"{name}-s0", name, 0, 2, "cifar10") for name in ("local", "fedproto", "fedgh", "fml")]
    write_plan(root, planned)
    note_failure(root, "fml-s0", "fml broke <here>")
    (root / "local-s0" / "log.txt").write_text("12:00 site north joined <b>\n")
    page = follower_of(root).state().page()
    text = text_of(page)
    assert "4 runs: 2 finished, 1 to come, 1 failed" in text
    assert "fml-s0 failed: fml broke &lt;here&gt;" in text
    assert "12:00 site north joined &lt;b&gt;" in text


def command(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["fedl2g", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_once_writes_the_page_and_reports_what_cannot_be(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "page.html"
    assert command("watch", str(folder), "--once", str(target), monkeypatch=monkeypatch) == 0
    assert not OUTSIDE.search(target.read_text())
    assert target.stat().st_size < 2_000_000
    (tmp_path / "empty").mkdir()
    for watched, file, said in (
        (tmp_path / "empty", target, "no runs found; start one with `fedl2g run`"),
        (tmp_path / "missing", target, "no such folder; expected a run, a comparison or a folder of runs"),
        (folder, target / "below", "cannot"),
    ):
        capsys.readouterr()
        assert command("watch", str(watched), "--once", str(file), monkeypatch=monkeypatch) == 2
        assert said in capsys.readouterr().err


@contextmanager
def served(path: Path) -> Iterator[PageServer]:
    server = PageServer(Follower(Watched(path), period=0.2))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)


class Reader(fedl2g.Observer):
    """Looks at the page in the browser after every round of the run that the page follows."""

    def __init__(self, browser: Browser, stop_after: int = 0) -> None:
        self.browser = browser
        self.stop_after = stop_after

    def on_round(self, federation: Federation, record: fedl2g.RoundRecord) -> None:
        if record.round > 0:
            wait_for(self.browser, f"running {record.round} of 3")
        if record.round == self.stop_after:
            raise KeyboardInterrupt


def wait_for(browser: Browser, text: str) -> None:
    """Wait until the row of the run says this, however the browser breaks lines."""
    browser.wait_for(
        "const row = document.querySelector('#state tbody tr');"
        f"return row && row.innerText.replace(/\\s+/g, ' ').includes({text!r})"
    )


@pytest.mark.slow
def test_a_browser_follows_a_live_run_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    with started_browser(tmp_path / "profile") as browser, served(tmp_path) as server:
        show(browser, server.address)
        assert "No runs yet" in browser.run("return document.body.innerText")
        out = tmp_path / "live"
        with pytest.raises(KeyboardInterrupt):
            fedl2g.run(method="local", rounds=3, out=out, observers=[Reader(browser, stop_after=1)], **SETTINGS)
        wait_for(browser, "interrupted 1 of 3")
        fedl2g.run(method="local", rounds=3, out=out, observers=[Reader(browser)], **SETTINGS)
        wait_for(browser, "finished 3 of 3")
        browser.wait_for("return document.querySelectorAll('#accuracy g.mark-line path').length == 1")
        assert browser.run("return performance.getEntriesByType('resource').every(e => e.name.startsWith(origin))")
        assert browser.messages() == []
