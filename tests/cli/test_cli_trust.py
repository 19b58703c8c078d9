"""Code that somebody else's files name is imported by no command, unless the user says --trust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import TINY

from forging import reseal

READING = {
    "resume": ("resume", "run", "--quiet"),
    "show": ("show", "run"),
    "report": ("report", "run", "--quiet", "--no-tsne"),
    "plot": ("plot", "run"),
    "export": ("export", "run", "--client", "0", "--out", "model"),
}
SITE = 'client-id = 0\nname = "north"\nmodel = "stranger:network"\ndata = "data"\n'


@pytest.fixture
def stranger(fedl2g: Any, tmp_path: Path) -> Path:
    """A run directory that names a network of its own, whose module tells when it is imported."""
    assert fedl2g("run", *TINY, "--method", "local", "--out", "run").code == 0
    file = tmp_path / "run" / "experiment.toml"
    file.write_text(file.read_text().replace('"small_cnn"', '"stranger:network"'))
    reseal(tmp_path / "run")
    (tmp_path / "stranger.py").write_text("open('imported', 'w').close()\n")
    return tmp_path


@pytest.mark.parametrize("command", READING)
def test_a_run_directory_that_names_code_is_refused(command: str, fedl2g: Any, stranger: Path) -> None:
    refused = fedl2g(*READING[command])
    assert (refused.code, refused.out) == (2, "")
    assert "stranger:network" in refused.sentence
    assert "--trust" in refused.sentence
    assert not (stranger / "imported").exists()


@pytest.mark.parametrize("command", ["show", "report", "plot"])
def test_reading_a_trusted_run_directory_works(command: str, fedl2g: Any, stranger: Path) -> None:
    assert fedl2g(*READING[command], "--trust").code == 0


def test_listing_runs_imports_nothing_and_needs_no_trust(fedl2g: Any, stranger: Path) -> None:
    assert "finished" in fedl2g("list", ".").out
    assert not (stranger / "imported").exists()


@pytest.mark.parametrize(
    ("site", "experiment"),
    [(SITE, ""), (SITE.replace("stranger:network", "small_cnn"), 'method = "stranger:network"\n')],
    ids=["model of the site", "method of the coordinator"],
)
def test_a_site_is_checked_without_importing_code(site: str, experiment: str, fedl2g: Any, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")
    (tmp_path / "site.toml").write_text(site)
    (tmp_path / "experiment.toml").write_text(
        f'{experiment}[federation]\nsites = ["north", "south"]\nclasses = ["a", "b"]\nimage-shape = [1, 8, 8]\n'
    )
    (tmp_path / "stranger.py").write_text("open('imported', 'w').close()\n")
    outcome = fedl2g("deploy", "check", "site.toml", "--experiment", "experiment.toml", "--offline")
    (line,) = outcome.out.splitlines()
    assert outcome.code == 1
    assert line.startswith("FAIL  files: ")
    assert "stranger:network" in line
    assert ("--trust" in line) == (not experiment)  # a coordinator may not name code at all
    assert not (tmp_path / "imported").exists()


def test_a_site_file_that_names_code_is_not_exported(fedl2g: Any, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")
    (tmp_path / "site.toml").write_text(SITE)
    refused = fedl2g("export", "site.toml", "--out", "model")
    assert refused.code == 2
    assert "--trust" in refused.sentence
