"""The HTML report: what it holds, that foreign text stays text, and that a real browser draws it without errors.

The browser tests need Debian's `chromium` and `chromium-driver`; nothing is installed here. Where they are missing
those tests are skipped; the structural tests still check the page's content, its escaping and that it stands alone.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from altair.utils.schemapi import SchemaValidationError
from click.testing import CliRunner

import fedl2g
from browser import Browser, show, started_browser
from fedl2g.cli import app
from fedl2g.cli.report import FIGURES
from fedl2g.errors import FedL2GError
from fedl2g.methods.registry import get_method
from fedl2g.report.cards import sections
from fedl2g.report.charts.render import runtime
from fedl2g.report.charts.theme import styles_of
from fedl2g.report.clients import compare_groups
from fedl2g.report.collect import group_runs, read_runs
from fedl2g.report.content import byte_notes, collect
from fedl2g.report.embedding import embed, embeddable
from fedl2g.report.figures import write_figure
from fedl2g.report.increase import loss_increase
from fedl2g.report.page import embed_json, fragment, page, write_report
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.result import aggregate
from forging import reseal
from method_settings import BUILT_IN

SVG = "{http://www.w3.org/2000/svg}"
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
def report(folder: Path) -> Path:
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
    return reader, json.loads(reader.texts["content"])


def rows(data: dict[str, Any], card: str, choice: int = 0) -> list[dict[str, Any]]:
    """The data of a card's chart."""
    spec = data["charts"][card][choice]["spec"]
    found: list[dict[str, Any]] = spec["data"].get("values") or spec["datasets"][spec["data"]["name"]]
    return found


def test_every_chart_keeps_to_the_schema(folder: Path) -> None:
    """A page leaves this check out, which would take half of the time that it needs."""
    content = collect(read_runs([folder]), title="charts", tsne=True)
    charts = [chart for section in sections(content) for card in section.cards for _, chart in card.charts]
    assert len(charts) > 10
    for chart in charts:
        chart.to_dict(validate=True)
    charts[0].title = {"text": 3}
    with pytest.raises(SchemaValidationError):
        charts[0].to_dict(validate=True)


def test_the_page_needs_nothing_from_outside(report: Path) -> None:
    reader, _ = read(report)
    for tag, attributes in reader.tags:
        for name in ("src", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), f"<{tag} {name}={value}>"
    text = report.read_text(encoding="utf-8")
    urls = set(re.findall(r"https?://[^\s\"')]+", text))
    assert {url.split("/")[2] for url in urls} == {"www.w3.org"}  # names of vocabularies, nothing that is fetched
    assert "default-src 'none'" in text
    assert "connect-src" not in text
    assert "unsafe-eval" not in text


def test_the_page_stays_below_two_megabytes(report: Path) -> None:
    assert report.stat().st_size < 1_100_000  # most of it the library that draws, whatever the runs
    assert len(runtime()) < 1_000_000


def test_foreign_text_stays_text(report: Path) -> None:
    reader, _ = read(report)
    assert [tag for tag, _ in reader.tags].count("script") == 3
    assert "img" not in [tag for tag, _ in reader.tags]
    assert reader.texts["notes"] == HOSTILE if "notes" in reader.texts else HOSTILE in reader.texts["li"]
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
    reseal(tmp_path / "s1")
    (group,) = group_runs(read_runs([tmp_path]))
    assert (group.label, [run.seed for run in group.runs]) == ("local", [0, 1])
    (tmp_path / "s1" / "experiment.toml").write_text(f"{words}[replies]\nminimum = 2\n[execution]\nworkers = 7\n")
    reseal(tmp_path / "s1")
    assert [group.label for group in group_runs(read_runs([tmp_path]))] == ["local", "local, replies.minimum=2"]


def test_a_preset_is_named_without_the_options_that_follow_from_it(tmp_path: Path) -> None:
    settings = {"samples": 60, "partition": "iid", "models": "small_cnn", "clients": 2, "rounds": 1, "image_size": 16}
    forms: list[dict[str, Any]] = [{}, {"preset": "recommended"}, {"preset": "recommended", "server_step": "sgd"}]
    for number, form in enumerate(forms):
        method = {"name": "fedl2g-l", "warmup_rounds": 0, **form}
        fedl2g.run(fedl2g.Experiment(method=method, **settings), tmp_path / str(number), quiet=True)
    runs = read_runs([tmp_path])
    assert [group.label for group in group_runs(runs[:2])] == ["fedl2g-l, preset=paper", "fedl2g-l, preset=recommended"]
    assert [group.label for group in group_runs(runs)] == [
        "fedl2g-l, preset=paper, server_step=sgd",
        "fedl2g-l, preset=recommended, server_step=rms",
        "fedl2g-l, preset=recommended, server_step=sgd",
    ]


def test_loss_increase_compares_equal_amounts_of_training(folder: Path) -> None:
    groups = group_runs(read_runs([folder]))
    local = next(g for g in groups if g.method == "local").runs[0]
    guided = next(g for g in groups if g.method == "fedl2g-f").runs[0]
    line = loss_increase(groups)["relative"]["fedl2g-f, server_lr=0.0"]
    assert line["x"] == [1, 2]  # three rounds less one of warm-up
    expected = [guided.history[2].loss - local.history[1].loss, guided.history[3].loss - local.history[2].loss]
    assert line["y"] == pytest.approx(expected, rel=1e-4)


def test_charts_show_the_numbers_of_the_records(report: Path, folder: Path) -> None:
    _, data = read(report)
    histories = {name: RunDirectory(folder / name).history() for name in ("local-s0", "local-s1", "fedl2g-f-10")}
    accuracies = [[r.accuracy.pooled for r in histories[name] if r.accuracy] for name in ("local-s0", "local-s1")]
    by_label = {row["method"]: row for row in rows(data, "accuracy")}
    local = by_label["local"]
    assert local["x"] == [0, 1, 2, 3]
    assert local["y"] == pytest.approx([(a + b) / 2 for a, b in zip(*accuracies, strict=True)], abs=1e-6)
    assert local["low"] == pytest.approx([min(pair) for pair in zip(*accuracies, strict=True)], abs=1e-6)
    assert local["high"] == pytest.approx([max(pair) for pair in zip(*accuracies, strict=True)], abs=1e-6)
    guided = histories["fedl2g-f-10"]
    line = next(row for row in rows(data, "loss") if row["method"] == "fedl2g-f, server_lr=10.0")
    assert line["y"] == pytest.approx([r.loss for r in guided if r.loss is not None], rel=1e-5)
    (alignment,) = [card for card in data["charts"] if card.startswith("metric-")]
    line = next(row for row in rows(data, alignment) if row["method"] == "fedl2g-f, server_lr=10.0")
    assert line["y"] == pytest.approx([r.metrics["alignment"] for r in guided if r.metrics], abs=1e-5)

    up = [row for row in rows(data, "communication") if row["part"] == "up"]
    sent = statistics.fmean(r.up_bytes for r in guided if r.round > 0) / 2**20
    assert {row["method"]: row["value"] for row in up} == {
        "fedl2g-f, server_lr=0.0": pytest.approx(sent, rel=1e-4),
        "fedl2g-f, server_lr=10.0": pytest.approx(sent, rel=1e-4),
        "local": 0,
    }
    parts = list(dict.fromkeys(row["part"] for row in rows(data, "computation")))
    assert parts == ["a client", "a client in a warm-up round", "server"]  # whichever method comes first
    best = max((r for r in histories["local-s0"] if r.accuracy), key=lambda r: r.accuracy.pooled)
    spread = next(row for row in rows(data, "spread") if row["method"] == "local")
    of_seed = [value for value, seed in zip(spread["accuracy"], spread["seed"], strict=True) if seed == "0"]
    assert of_seed == pytest.approx(list(best.accuracy.clients.values()), abs=1e-4)
    assert spread["architecture"][:4] == ["small_cnn", "small_resnet", "small_cnn", "small_resnet"]

    counts = rows(data, "partition")[0]["samples"]
    assert sum(counts) == 240
    kinds = set(rows(data, "embedding")[0]["kind"])
    assert {"guiding vectors", "test samples (their features or logits)"} < kinds


def test_differences_are_those_of_the_verdicts(report: Path, folder: Path) -> None:
    _, data = read(report)
    groups = group_runs(read_runs([folder]))
    (compared,) = compare_groups(groups)
    assert compared.reference.label == "local"
    for one in compared.differences:
        row = next(row for row in rows(data, "difference") if row["method"] == one.method)
        assert [row["mean"], row["low"], row["high"]] == pytest.approx(
            [100 * one.difference, 100 * one.low, 100 * one.high], rel=1e-5
        )
        assert row["text"] == one.sentence
        clients = next(row for row in rows(data, "changes") if row["method"] == one.method)
        assert clients["difference"] == pytest.approx([100 * c.difference for c in one.clients], abs=0.01)
        assert clients["change"] == [c.change for c in one.clients]
        held = [len(part) for part in RunDirectory(folder / "local-s0").partition().train]
        assert clients["samples"] == [held[c.client] for c in one.clients]
    by_kind = [row for row in rows(data, "architectures") if row["method"] == compared.differences[0].method]
    ours = [100 * c.difference for c in compared.differences[0].clients]
    assert {row["group"]: row["difference"] for row in by_kind} == {
        "small_cnn": pytest.approx((ours[0] + ours[2]) / 2, abs=0.02),
        "small_resnet": pytest.approx((ours[1] + ours[3]) / 2, abs=0.02),
    }


def test_the_table_is_in_the_given_order_and_honest_about_seeds(folder: Path, tmp_path: Path) -> None:
    given = [folder / "fedl2g-f-10", folder / "local-s1", folder / "local-s0"]
    text = write_report(given, tmp_path / "page.html", tsne=False).read_text(encoding="utf-8")
    order = re.findall(r'<tr data-label="(.*?)">(.*?)</tr>', text)
    assert [label for label, _ in order] == ["fedl2g-f", "local"]
    assert "±" not in order[0][1]  # one seed has no spread
    assert order[1][1].count("±") == 2
    assert [re.findall(r">(\d+)</td>$", cells) for _, cells in order] == [["1"], ["2"]]


def test_a_comparison_is_shown_in_the_order_of_its_methods(tmp_path: Path) -> None:
    options = ["--samples", "60", "-c", "2", "-r", "1", "--models", "small_cnn", "-o", str(tmp_path / "c"), "-q"]
    result = CliRunner().invoke(app, ["compare", "-m", "local,fedproto,fedgh", *options])
    assert result.exit_code == 0, result.output
    assert [group.label for group in group_runs(read_runs([tmp_path / "c"]))] == ["local", "fedproto", "fedgh"]
    assert (tmp_path / "c" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_twice_is_one_seed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "local-s0", tmp_path / "copy")
    (group,) = group_runs(read_runs([folder / "local-s0", tmp_path / "copy", folder / "local-s1"]))
    assert group.seeds == [0, 1]


def test_a_run_that_goes_on_is_a_page_too(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedl2g-f-10", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    sizes = []
    for known in (0, 1, 2):  # before the first evaluation, after it, after a round
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:known]))
        content = collect(read_runs([tmp_path / "run"]), tsne=False)
        assert "unfinished" in page(content)
        sizes.append(sorted(fragment(content)["charts"]))
    assert sizes[0] == ["partition"]  # no empty cards
    assert sizes[1] == ["accuracy", "best", "partition", "spread"]
    assert {"communication", "computation", "megabytes"} < set(sizes[2])
    live = page(content, live="events")
    assert "connect-src 'self'" in live
    assert json.loads(re.search(r'id="content">(.*?)</script>', live)[1])["live"] == "events"


def test_the_page_says_what_must_be_known_to_read_megabytes(folder: Path) -> None:
    groups = group_runs(read_runs([folder]))
    (guided,) = byte_notes(groups)  # once, for two groups of the method
    assert guided == get_method("fedl2g-f").traits.communication_note
    assert byte_notes([group for group in groups if group.method == "local"]) == []


@pytest.mark.parametrize(("method", "noted"), [("fedl2g-l", False), ("fedmrl", True), ("fedproto", False)])
def test_a_note_about_rows_is_left_out_where_every_row_is_sent(method: str, noted: bool, tmp_path: Path) -> None:
    options = {"name": method, "warmup_rounds": 0} if method == "fedl2g-l" else method
    dense = fedl2g.Experiment(
        method=options, samples=60, clients=2, partition="iid", rounds=1, models="small_cnn",
        privacy={"dense_uploads": True},
    )  # fmt: skip
    fedl2g.run(dense, tmp_path / "run")
    assert bool(byte_notes(group_runs(read_runs([tmp_path / "run"])))) is noted


def test_a_run_of_a_method_that_is_not_here_is_reported_without_its_traits(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "fedl2g-f-10", tmp_path / "elsewhere")
    settings = tmp_path / "elsewhere" / "experiment.toml"
    settings.write_text(settings.read_text().replace('"fedl2g-f"', '"of-somebody-else"'))
    reseal(tmp_path / "elsewhere")
    data = read(write_report([tmp_path / "elsewhere"], tmp_path / "page.html"))[1]
    assert byte_notes(group_runs(read_runs([tmp_path / "elsewhere"]))) == []
    assert "embedding" not in data["charts"]
    assert data["methods"][0]["label"] == "of-somebody-else"


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


def test_methods_whose_clients_came_and_went_alike_share_a_chart(tmp_path: Path) -> None:
    common: dict[str, Any] = {"samples": 120, "clients": 3, "partition": "iid", "rounds": 3, "models": "small_cnn"}
    chances = {"local": 0.5, "fedproto": 0.5, "feddistill": 0.9, "fml": 0.0}
    for name, chance in chances.items():
        settings = fedl2g.Experiment(method=name, availability={"dropout_before": chance}, **common)
        fedl2g.run(settings, tmp_path / name)
    data = read(write_report([tmp_path / name for name in chances], tmp_path / "report.html", tsne=False))[1]
    chance = "availability.dropout_before"  # the only setting that tells them apart: defaults are not in a label
    half = [f"{name}, {chance}=0.5" for name in ("local", "fedproto")]  # as they were given
    names = [chart["name"] for chart in data["charts"]["presence"]]
    assert names == [f"{'; '.join(half)} (seed 0)", f"feddistill, {chance}=0.9 (seed 0)"]


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn(figure: str, folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "figure.svg"
    runs = [str(folder / "local-s0"), str(folder / "fedl2g-f-10")]
    result = CliRunner().invoke(app, ["plot", *reversed(runs), "--figure", figure, "-o", str(target)])
    assert result.exit_code == 0, result.output
    # Everything that the figure is about is there: a panel for each part, and marks in it.
    drawn = ElementTree.fromstring(target.read_bytes())
    texts = {text.text for text in drawn.iter(f"{SVG}text")}
    titles = {
        "curves": {"Test accuracy (pooled over clients)", "Original local loss (cross entropy)", "Alignment"},
        "verdicts": {"Test accuracy", "Difference to local"},
        "clients": {"Accuracy of individual clients", "Clients helped and harmed", "By architecture", "By size"},
        "loss-increase": {"Original local loss minus local training's"},
        "communication": {"Communication per round", "Computation per round"},
        "bubbles": {"digits, dirichlet:1, seed 0"},
        "availability": {"Client availability, fedl2g-f, seed 0"},
    }
    assert titles.get(figure, set()) <= texts
    assert len(list(drawn.iter(f"{SVG}path"))) > 15


@pytest.mark.parametrize(("suffix", "magic"), [(".pdf", b"%PDF-"), (".png", b"\x89PNG")])
def test_a_figure_is_drawn_in_every_format(suffix: str, magic: bytes, folder: Path, tmp_path: Path) -> None:
    groups = group_runs(read_runs([folder]))
    content = write_figure("curves", groups, tmp_path / f"curves{suffix}").read_bytes()
    assert content.startswith(magic)
    assert len(content) > 10_000


def test_a_figure_that_cannot_be_drawn_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    groups = group_runs(read_runs([folder / "local-s0"]))
    with pytest.raises(FedL2GError, match="verdicts: nothing to compare; expected runs of two methods"):
        write_figure("verdicts", groups, tmp_path / "a.png")
    with pytest.raises(FedL2GError, match="tsne: nothing to draw; expected a run whose server sends"):
        write_figure("tsne", groups, tmp_path / "a.png")
    with pytest.raises(FedL2GError, match=r"a\.bmp: not a figure file; expected a name that ends in"):
        write_figure("curves", groups, tmp_path / "a.bmp")


def test_no_runs_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FedL2GError, match="not a run directory"):
        write_report([tmp_path], tmp_path / "report.html")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with started_browser(tmp_path / "profile") as found:
        yield found


def curves_of(browser: Browser, card: str) -> int:
    """How many lines a chart shows."""
    return int(browser.run(f"return document.querySelectorAll('#{card} g.mark-line path').length"))


def plot_area(browser: Browser, card: str) -> tuple[float, float, float, float]:
    """Left, top, width and height of the area between a chart's axes, in pixels of the window."""
    browser.run(f"document.querySelector('#{card}').scrollIntoView({{block: 'center'}})")
    found = browser.run(
        f"const b = document.querySelector('#{card} path.background').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height]"
    )
    return tuple(found)


def ticks(browser: Browser, card: str) -> list[str]:
    """The labels of a chart's x axis, from left to right."""
    found = browser.run(
        f"return [...document.querySelectorAll('#{card} .role-axis-label')][0].querySelectorAll('text').length ?"
        f"[...document.querySelectorAll('#{card} .role-axis-label')][0].textContent && "
        f"[...[...document.querySelectorAll('#{card} .role-axis-label')][0].querySelectorAll('text')]"
        ".filter(t => t.getAttribute('opacity') != '0').map(t => t.textContent) : []"
    )
    return sorted((str(text) for text in found), key=float)  # a zoom draws those that stay first


def test_a_browser_draws_the_page(browser: Browser, report: Path) -> None:
    show(browser, report)
    assert browser.messages() == []
    assert browser.run("return window.attacked") is None
    assert "</script>" in browser.run("return document.querySelector('h1').textContent")
    figures = browser.run("return [...document.querySelectorAll('figure')].map(f => f.id)")
    assert figures == list(read(report)[1]["charts"])
    for figure in figures:
        assert browser.run(f"return document.querySelectorAll('#{figure} svg path').length") > 5, figure
    assert curves_of(browser, "accuracy") == 3
    assert browser.run("return document.querySelectorAll('#accuracy g.mark-area path').length") == 3
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"

    browser.run("document.querySelector('.chip[data-label=local]').click()")
    time.sleep(0.3)
    assert [curves_of(browser, card) for card in ("accuracy", "loss")] == [2, 2]
    browser.run("document.querySelector('.chip[data-label=local]').click()")
    time.sleep(0.3)

    left, top, width, height = plot_area(browser, "accuracy")
    browser.move_mouse(int(left + width / 3), int(top + height / 2))
    time.sleep(0.3)
    tip = browser.run("const t = document.querySelector('#vg-tooltip-element.visible'); return t ? t.innerText : ''")
    assert tip.startswith("round 1")
    assert "local" in tip
    shown = read(report)[1]
    value = next(row for row in rows(shown, "accuracy") if row["method"] == "local")["y"][1]
    assert f"{value:.2%}" in tip
    assert browser.messages() == []


def test_methods_stand_in_the_order_in_which_their_runs_were_started(browser: Browser, report: Path) -> None:
    show(browser, report)
    shown = browser.run("return [...document.querySelectorAll('.chip[data-label]')].map(chip => chip.dataset.label)")
    assert shown == ["local", "fedl2g-f, server_lr=0.0", "fedl2g-f, server_lr=10.0"]


def test_a_click_on_a_column_sorts_the_table_and_a_third_brings_the_given_order_back(
    browser: Browser, report: Path
) -> None:
    show(browser, report)
    cells = "[...document.querySelectorAll('#table tbody td:nth-child(2)')].map(c => parseFloat(c.textContent))"
    click = "document.querySelectorAll('#table thead th button')[1].click()"
    given = browser.run(f"return {cells}")
    assert len(given) == 3
    browser.run(click)
    assert browser.run(f"return {cells}") == sorted(given, reverse=True)
    browser.run(click)
    assert browser.run(f"return {cells}") == sorted(given)
    browser.run(click)
    assert browser.run(f"return {cells}") == given


def test_a_phone_shows_all_of_the_page_and_says_where_a_table_goes_on(browser: Browser, report: Path) -> None:
    browser.width(390)
    show(browser, report)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    ends = browser.run("return [...document.querySelectorAll('.card svg')].map(s => s.getBoundingClientRect().right)")
    assert len(ends) >= 5
    assert max(ends) <= 390
    cue = "return getComputedStyle(document.querySelector('.scroll'), '::after').content"
    assert "more" in browser.run(cue)
    browser.run("document.querySelector('.scroll').scrollLeft = 10000")
    browser.wait_for(f"{cue} == 'none'")


def test_the_page_follows_the_colours_of_the_screen_and_prints_dark_on_white(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    def rgb(place: str, style: str) -> list[int]:
        found = browser.run(f"return getComputedStyle(document.querySelector('{place}')).{style}")
        return [int(number) for number in re.findall(r"\d+", found)[:3]]

    def ink() -> list[int]:
        return rgb("#accuracy .role-axis-label text", "fill")

    for dark in (False, True):
        browser.emulate(dark=dark)
        show(browser, report)
        assert (max(rgb("body", "backgroundColor")) < 60) is dark
        assert (min(ink()) > 150) is dark
    browser.print_to(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    browser.emulate(dark=True, media="print")
    assert rgb("body", "backgroundColor") == [255, 255, 255]
    assert max(ink()) < 100


def test_print_breaks_neither_the_names_of_settings_nor_the_rows_of_the_table(browser: Browser, report: Path) -> None:
    browser.emulate(dark=False, media="print")
    browser.width(690)  # A4 between its margins
    show(browser, report)
    heights = browser.run(  # of the names themselves: a row is as high as its value, which may take two lines
        "return [...document.querySelectorAll('#settings tbody td:first-child')].map(cell => {"
        "const text = document.createRange(); text.selectNodeContents(cell);"
        "return text.getBoundingClientRect().height;"
        "})"
    )
    assert max(heights) < 1.5 * min(heights)
    assert browser.run("return document.documentElement.scrollWidth") <= 690
    kept = "return getComputedStyle(document.querySelector('#table')).breakInside"
    assert browser.run(kept) == "avoid"


def test_no_axis_of_the_page_is_logarithmic(report: Path) -> None:
    """The length of a bar on one says nothing."""
    charts = read(report)[1]["charts"]
    assert {"communication", "computation"} < charts.keys()
    assert '"log"' not in json.dumps(charts)


def test_a_method_that_sends_nothing_is_a_level_that_widens_no_axis(report: Path) -> None:
    """So that who hides the method that sends most sees the others closer."""
    data = read(report)[1]
    assert {row["method"] for row in rows(data, "megabytes")} == {"fedl2g-f, server_lr=0.0", "fedl2g-f, server_lr=10.0"}
    spec = data["charts"]["megabytes"][0]["spec"]
    (level,) = (layer for layer in spec["layer"] if layer["mark"]["type"] == "rule" and "color" in layer["encoding"])
    assert "x" not in level["encoding"]
    (row,) = level["data"].get("values") or spec["datasets"][level["data"]["name"]]
    assert row["method"] == "local"
    assert row["low"] < row["y"] < row["high"]


def test_the_seconds_of_a_client_are_one_number_in_table_chart_and_comparison(folder: Path, report: Path) -> None:
    drawn = {(row["method"], row["part"]): row["value"] for row in rows(read(report)[1], "computation")}
    table = re.findall(r'<tr data-label="([^"]+)">(.*?)</tr>', report.read_text(encoding="utf-8"), re.DOTALL)
    cells = {label: re.findall(r"<td(?: data-value=\"([^\"]*)\")?>", row) for label, row in table}
    for group in group_runs(read_runs([folder])):
        results = [run.directory.result() for run in group.runs]
        numbers = aggregate([result for result in results if result is not None])
        seconds, _ = numbers["client_seconds_per_round"]
        assert drawn[group.label, "a client"] == pytest.approx(seconds, rel=1e-4)
        assert float(cells[group.label][6]) == pytest.approx(seconds, rel=1e-4)
        assert float(cells[group.label][3]) == numbers["best_round"][0]  # 36.5 is neither 36 nor 37


def test_a_method_has_the_same_colour_wherever_it_is_drawn(folder: Path, tmp_path: Path) -> None:
    """Alone, among others, on the page, in a file and in the paper's figures."""
    alone, among = ([folder / "local-s0"], [folder])
    seen = []
    for paths in (alone, among):
        content = collect(read_runs(paths), title="", tsne=False)
        (own,) = (one["colour"] for one in fragment(content)["methods"] if one["label"] == "local")
        write_figure("curves", group_runs(read_runs(paths)), tmp_path / "curves.svg")
        assert own in (tmp_path / "curves.svg").read_text()
        seen.append(own)
    assert seen[0] == seen[1] == styles_of([("x", "fedproto"), ("anything", "local")])["anything"].colour
    every = styles_of([(name, name) for name in BUILT_IN])
    assert len({style.colour for style in every.values()}) == len(every) == 12
    assert len({style.dash for style in every.values()}) == 12  # for who sees no colours, and on grey paper


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


def test_dragging_zooms_all_charts_of_rounds_and_a_double_click_shows_all_again(browser: Browser, report: Path) -> None:
    show(browser, report)
    assert ticks(browser, "accuracy") == ["0", "1", "2", "3"]  # rounds have no halves
    left, top, width, height = plot_area(browser, "accuracy")

    def at(round: float) -> int:
        return int(left + round / 3 * width)

    y = int(top + height / 2)
    button = "return document.querySelectorAll('#accuracy .tools button').length"
    assert browser.run(button) == 0
    browser.drag_mouse(at(0.8), y, at(2.2))
    time.sleep(0.5)
    assert ticks(browser, "accuracy") == ["1", "2"]
    assert ticks(browser, "loss") == ["1", "2"]  # linked
    assert browser.run(button) == 1
    browser.run("document.querySelector('.chip[data-label=local]').click()")
    time.sleep(0.3)
    assert ticks(browser, "accuracy") == ["1", "2"]  # a method switched off leaves the zoom as it is
    browser.run("document.querySelector('.chip[data-label=local]').click()")
    left, top, width, height = plot_area(browser, "accuracy")
    browser.double_click(int(left + width / 2), y)
    time.sleep(0.5)
    assert ticks(browser, "accuracy") == ["0", "1", "2", "3"]
    assert browser.run(button) == 0
    browser.drag_mouse(at(2.0), y, at(2.0) + 5)  # a click that trembled is no zoom
    time.sleep(0.3)
    assert ticks(browser, "accuracy") == ["0", "1", "2", "3"]
    assert browser.messages() == []
