"""The HTML report: what it holds, that foreign text stays text, and that a real browser draws it without errors.

The browser tests need Debian's `chromium` and `chromium-driver`; nothing is installed here. Where they are missing
those tests are skipped; the structural tests still check the page's content, its escaping and that it stands alone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import fedl2g
from fedl2g.cli import app
from fedl2g.cli.report import FIGURES
from fedl2g.errors import FedL2GError
from fedl2g.methods.registry import get_method
from fedl2g.report.collect import group_runs, read_runs
from fedl2g.report.embedding import embed, embeddable
from fedl2g.report.increase import loss_increase
from fedl2g.report.page import embed_json, write_report

HOSTILE = "</script><script>window.attacked=1</script><img src=x onerror=window.attacked=1>@DATA@"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    common = {"samples": 240, "clients": 4, "partition": "dirichlet:1", "rounds": 3, "models": "small_cnn,small_resnet"}
    fedl2g.run(fedl2g.Experiment(method="local", **common), root / "local-s0")
    fedl2g.run(fedl2g.Experiment(method="local", seed=1, **common), root / "local-s1")
    for lr in (0.0, 10.0):
        method = {"name": "fedl2g-f", "warmup_rounds": 1, "server_lr": lr}
        fedl2g.run(fedl2g.Experiment(method=method, **common), root / f"fedl2g-f-{lr:.0f}")
    return root


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return write_report([folder], folder / "report.html", title=f"A title {HOSTILE}", notes=[HOSTILE])


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(dict(attrs).get("id") or tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]] = self.texts.get(self._open[-1], "") + data


def read(page: Path) -> tuple[Reader, dict[str, Any]]:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader, json.loads(reader.texts["data"])


def test_the_page_needs_nothing_from_outside(page: Path) -> None:
    reader, _ = read(page)
    for tag, attributes in reader.tags:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), f"<{tag} {name}={value}>"
    text = page.read_text(encoding="utf-8")
    style_and_script = re.sub(r'<script type="application/json".*?</script>', "", text, flags=re.S)
    urls = set(re.findall(r"https?://[^\s\"')]+", style_and_script))
    assert urls == {"http://www.w3.org/2000/svg"}  # the name of a vocabulary, nothing that is fetched
    assert "default-src 'none'" in text


def test_foreign_text_stays_text(page: Path) -> None:
    reader, data = read(page)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in reader.tags]
    assert data["notes"] == [HOSTILE]  # and it survives unharmed
    assert json.loads(embed_json({"a": "\u2028<!--&"})) == {"a": "\u2028<!--&"}
    assert not set("<>&\u2028") & set(embed_json("\u2028<!--&"))


def test_groups_are_seeds_and_labels_tell_them_apart(folder: Path) -> None:
    groups = group_runs(read_runs([folder]))
    assert {g.label: [r.seed for r in g.runs] for g in groups} == {
        "local": [0, 1],
        "fedl2g-f, server_lr=0.0": [0],
        "fedl2g-f, server_lr=10.0": [0],
    }


def test_a_file_with_all_settings_and_one_with_few_words_are_one_group(tmp_path: Path) -> None:
    """Files that a run writes hold every setting; one that a person wrote, or cut down, leaves out the defaults."""
    for seed in (0, 1):
        experiment = fedl2g.Experiment(method="local", seed=seed, samples=60, clients=2, rounds=1, models="small_cnn")
        fedl2g.run(experiment, tmp_path / f"s{seed}")
    words = 'method = "local"\nseed = 1\nsamples = 60\nclients = 2\nrounds = 1\nmodels = "small_cnn"\n'
    (tmp_path / "s1" / "experiment.toml").write_text(f'{words}sampler = "uniform"\naggregation = "mean"\n')
    (group,) = group_runs(read_runs([tmp_path]))
    assert (group.label, [run.seed for run in group.runs]) == ("local", [0, 1])
    (tmp_path / "s1" / "experiment.toml").write_text(f"{words}[replies]\nminimum = 2\n[execution]\nworkers = 7\n")
    assert [group.label for group in group_runs(read_runs([tmp_path]))] == ["local", "local, replies.minimum=2"]


def test_loss_increase_compares_equal_amounts_of_training(folder: Path) -> None:
    groups = group_runs(read_runs([folder]))
    local = next(g for g in groups if g.method == "local").runs[0]
    guided = next(g for g in groups if g.method == "fedl2g-f").runs[0]
    line = loss_increase(groups)["relative"]["fedl2g-f, server_lr=0.0"]
    assert line["x"] == [1, 2]  # three rounds less one of warm-up
    expected = [guided.history[2].loss - local.history[1].loss, guided.history[3].loss - local.history[2].loss]
    assert line["y"] == pytest.approx(expected, rel=1e-4)


def test_the_page_holds_what_was_measured(page: Path, folder: Path) -> None:
    reader, data = read(page)
    result = json.loads((folder / "local-s0" / "result.json").read_text())
    local = next(g for g in data["groups"] if g["label"] == "local")
    assert local["accuracy"]["x"] == [0, 1, 2, 3]
    assert len(local["spread"]) == 2
    assert len(local["spread"][0]["clients"]) == 4
    assert max(local["accuracy"]["high"]) >= result["best_accuracy"] - 1e-5
    guided = next(g for g in data["groups"] if g["method"] == "fedl2g-f")
    assert guided["cost"]["up_mb"] > 0
    assert guided["cost"]["warmup_client_s"] is not None
    assert data["settings"]["common"]["dataset"] == "digits"
    assert set(data["settings"]["differing"]) >= {"method.server_lr", "method.name"}
    assert sum(count for _, _, count in data["partitions"][0]["counts"]) == 240
    assert {p[2] for p in data["embeddings"][0]["points"]} == {"guide", "prototype", "feature"}
    assert data["environments"][0]["values"]["torch"]
    assert "fedl2g-f, server_lr=10.0" in page.read_text(encoding="utf-8")
    assert "th" in [tag for tag, _ in reader.tags]


def test_the_page_says_what_must_be_known_to_read_megabytes(page: Path, folder: Path, tmp_path: Path) -> None:
    (guided,) = read(page)[1]["byte_notes"]  # once, for two groups of the method
    assert guided == get_method("fedl2g-f").traits.communication_note
    runs = [folder / "local-s0", folder / "local-s1"]
    only_local = write_report(runs, tmp_path / "local.html", tsne=False)
    assert read(only_local)[1]["byte_notes"] == []


@pytest.mark.parametrize(("method", "noted"), [("fedl2g-l", False), ("fedmrl", True), ("fedproto", False)])
def test_a_note_about_rows_is_left_out_where_every_row_is_sent(method: str, noted: bool, tmp_path: Path) -> None:
    dense = fedl2g.Experiment(
        method=method, samples=60, clients=2, partition="iid", rounds=1, models="small_cnn",
        privacy={"dense_uploads": True},
    )  # fmt: skip
    fedl2g.run(dense, tmp_path / "run")
    notes = read(write_report([tmp_path / "run"], tmp_path / "page.html", tsne=False))[1]["byte_notes"]
    assert bool(notes) is noted


def test_a_run_of_a_method_that_is_not_here_is_reported_without_its_traits(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedl2g-f-10", tmp_path / "elsewhere")
    settings = tmp_path / "elsewhere" / "experiment.toml"
    settings.write_text(settings.read_text().replace('"fedl2g-f"', '"of-somebody-else"'))
    data = read(write_report([tmp_path / "elsewhere"], tmp_path / "page.html"))[1]
    assert data["byte_notes"] == data["embeddings"] == []
    assert data["groups"][0]["colour"] == -1


def test_guiding_vectors_are_drawn_first(folder: Path, tmp_path: Path) -> None:
    """Which methods can be drawn, and in what order, follows from their traits."""
    common: dict[str, Any] = {"samples": 80, "clients": 2, "partition": "iid", "rounds": 1, "models": "small_cnn"}
    for name in ("fedproto", "fml"):
        fedl2g.run(fedl2g.Experiment(method=name, **common), tmp_path / name)
    found = embeddable(group_runs(read_runs([tmp_path / "fedproto", tmp_path / "fml", folder])))
    assert [group.method for group in found] == ["fedl2g-f", "fedl2g-f", "fedproto"]


def test_drawing_leaves_no_states_of_clients_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("fedl2g.engines.host.memory_budget", lambda *_, **__: 1)  # every client but one is on disk
    (run,) = read_runs([folder / "fedl2g-f-10"])
    assert embed(run) is not None
    assert list(tmp_path.iterdir()) == []


def test_methods_whose_clients_came_and_went_alike_share_a_picture(tmp_path: Path) -> None:
    common: dict[str, Any] = {"samples": 120, "clients": 3, "partition": "iid", "rounds": 3, "models": "small_cnn"}
    for name, chance in (("local", 0.5), ("fedproto", 0.5), ("feddistill", 0.9), ("fml", 0.0)):
        settings = fedl2g.Experiment(method=name, availability={"dropout_before": chance}, **common)
        fedl2g.run(settings, tmp_path / name)
    text = write_report([tmp_path], tmp_path / "report.html", tsne=False).read_text(encoding="utf-8")
    (section,) = re.findall(r'<section id="presence">.*?</section>', text, flags=re.S)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", section)
    chance = "availability.dropout_before"  # the only setting that tells them apart: defaults are not in a label
    half = [f"{name}, {chance}=0.5" for name in ("fedproto", "local")]
    assert captions == [f"feddistill, {chance}=0.9 (seed 0)", f"{'; '.join(half)} (seed 0)"]
    assert section.count("data:image/png;base64,") == 2


@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png"])
@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn_in_every_format(figure: str, suffix: str, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / f"figure{suffix}"
    runs = [str(folder / "local-s0"), str(folder / "fedl2g-f-10")]
    result = CliRunner().invoke(app, ["plot", *reversed(runs), "--figure", figure, "-o", str(target)])
    assert result.exit_code == 0, result.output
    content = target.read_bytes()
    assert content.startswith({".pdf": b"%PDF-", ".svg": b"<?xml", ".png": b"\x89PNG"}[suffix])
    assert len(content) > 4000
    if suffix == ".svg":  # everything that the figure is about is there: a panel for each part, and marks in it
        drawn = ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}g")
        panels = [group for group in drawn if (group.get("id") or "").startswith("axes_")]
        assert len(panels) == (1 if figure in ("tsne", "bubbles") else 2)
        assert all(len(list(panel.iter())) > 40 for panel in panels)


def test_no_runs_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FedL2GError, match="not a run directory"):
        write_report([tmp_path], tmp_path / "report.html")


class Browser:
    """A few calls of the W3C WebDriver protocol: enough to look at a page in headless chromium."""

    def __init__(self, address: str, profile: Path) -> None:
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            f"--disable-component-update --disable-sync --window-size=1200,900 --user-data-dir={profile}"
        )
        self.address = address
        options = {"args": flags.split(), "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.address = f"{address}/session/{session['sessionId']}"

    def _call(self, path: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        self._call("/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        return self._call("/execute/sync", {"script": script, "args": []})

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self._call("/se/log", {"type": "browser"})]

    def move_mouse(self, x: int, y: int) -> None:
        self._mouse(_move(x, y))

    def drag_mouse(self, x: int, y: int, to: int) -> None:
        """Press the button at (x, y), move sideways in steps and let go."""
        steps = [_move(x + (to - x) * step // 4, y) for step in range(1, 5)]
        self._mouse(_move(x, y), {"type": "pointerDown", "button": 0}, *steps, {"type": "pointerUp", "button": 0})

    def double_click(self, x: int, y: int) -> None:
        click = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._mouse(_move(x, y), *click, *click)

    def _mouse(self, *actions: dict[str, Any]) -> None:
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self._call("/actions", {"actions": [pointer]})

    def close(self) -> None:
        self._call("", None, "DELETE")


def _move(x: int, y: int) -> dict[str, Any]:
    return {"type": "pointerMove", "x": x, "y": y, "duration": 0}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("needs Debian's chromium and chromium-driver")
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = None
        for line in process.stdout:
            if match := re.search(r"started successfully on port (\d+)", line):
                port = match[1]
                break
        assert port is not None, "chromedriver did not start"
        try:
            found = Browser(f"http://127.0.0.1:{port}", tmp_path / "profile")
            yield found
            found.close()
        finally:
            process.terminate()


def show(browser: Browser, page: Path) -> None:
    browser.open(page)
    deadline = time.monotonic() + 60
    while browser.run("return document.body.dataset.ready") != "yes":
        assert time.monotonic() < deadline, browser.messages()
        time.sleep(0.2)


def test_a_browser_draws_the_page(browser: Browser, page: Path) -> None:
    show(browser, page)
    assert browser.messages() == []
    assert browser.run("return window.attacked") is None
    assert "</script>" in browser.run("return document.querySelector('h1').textContent")
    figures = browser.run("return [...document.querySelectorAll('figure')].map(f => f.id)")
    wanted = "accuracy loss loss-increase loss-rise bytes communication computation spread partition embedding-0"
    assert figures[:10] == wanted.split()
    for figure in figures:
        assert browser.run(f"return document.querySelectorAll('#{figure} svg *').length") > 5, figure
    assert browser.run("return document.querySelectorAll('#accuracy polyline').length") == 3
    assert browser.run("return document.querySelectorAll('#accuracy polygon.band').length") == 1  # local has two seeds
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"

    browser.run("document.querySelector('.chip[data-label=local]').click()")
    assert browser.run("return document.querySelectorAll('#accuracy polyline').length") == 2
    browser.run("document.querySelector('.chip[data-label=local]').click()")

    browser.run("document.querySelector('#accuracy').scrollIntoView({block: 'center'})")
    box = browser.run(
        "const b = document.querySelector('#accuracy svg').getBoundingClientRect(); return [b.left, b.top, b.width]"
    )
    browser.move_mouse(int(box[0] + box[2] / 2), int(box[1] + 60))
    tip = browser.run("const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent")
    assert tip.startswith("round")
    assert "local" in tip

    browser.run("document.querySelectorAll('#table thead th')[1].click()")
    cells = "[...document.querySelectorAll('#table tbody td:nth-child(2)')]"
    rows = browser.run(f"return {cells}.map(c => parseFloat(c.textContent))")
    assert len(rows) == 3
    assert rows == sorted(rows, reverse=True)
    assert browser.messages() == []


def test_the_page_shows_the_privacy_that_was_spent(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    privacy = {"clip": 1.0, "noise_multiplier": 2.0}
    experiment = fedl2g.Experiment(method="feddistill", samples=240, clients=4, rounds=2, privacy=privacy)
    result = fedl2g.run(experiment, tmp_path / "run")
    show(browser, write_report([tmp_path], tmp_path / "report.html"))
    assert browser.messages() == []
    text = browser.run("return document.getElementById('settings').innerText")
    assert "Differential privacy of uploads, by client" in text
    assert result.epsilon is not None
    assert f"{float(f'{result.epsilon:.3g}')}" in text


def test_dragging_zooms_into_the_rounds_and_a_double_click_shows_all_again(browser: Browser, page: Path) -> None:
    show(browser, page)
    browser.run("document.querySelector('#accuracy').scrollIntoView({block: 'center'})")
    left, top, width = browser.run(
        "const b = document.querySelector('#accuracy svg').getBoundingClientRect(); return [b.left, b.top, b.width]"
    )
    scale = width / browser.run("return document.querySelector('#accuracy svg').viewBox.baseVal.width")

    def at(round: float) -> int:  # rounds 0 to 3 lie between the margins of 46 and 12
        return int(left + scale * 46 + round / 3 * (width - scale * 58))

    def axis() -> list[str]:
        found = browser.run(
            "const s = document.querySelector('#accuracy svg'), h = s.viewBox.baseVal.height; return "
            "[...s.querySelectorAll('text')].filter(t => t.getAttribute('y') == h - 18).map(t => t.textContent)"
        )
        return [str(text) for text in found]

    def points() -> str:
        return str(browser.run("return document.querySelector('#accuracy polyline').getAttribute('points')"))

    whole, hidden = points(), "return document.querySelector('#accuracy .tools button').hidden"
    assert axis() == ["0", "1", "2", "3"]  # rounds have no halves
    assert browser.run(hidden)
    y = int(top + 80)
    browser.drag_mouse(at(0.8), y, at(2.2))
    assert axis() == ["1", "2"]
    assert not browser.run(hidden)
    browser.move_mouse(at(1.0), y)  # what was round 1 is now left of the middle
    browser.move_mouse(at(0.6), y)
    assert browser.run("return document.getElementById('tip').textContent").startswith("round 1")
    browser.run("document.querySelector('.chip[data-label=local]').click()")
    assert axis() == ["1", "2"]  # a method switched off leaves the zoom as it is
    browser.run("document.querySelector('.chip[data-label=local]').click()")
    browser.double_click(at(1.5), y)
    assert axis() == ["0", "1", "2", "3"]
    assert points() == whole
    browser.drag_mouse(at(2.0), y, at(2.0) + 5)  # a click that trembled is no zoom
    assert points() == whole
    browser.drag_mouse(at(2.9), y, at(1.9))  # from right to left
    assert axis() == ["2"]
    browser.run("document.querySelector('#accuracy .tools button').click()")
    assert points() == whole
    assert browser.messages() == []
