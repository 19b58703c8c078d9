"""The installed release of Flower is checked before anything starts: one sentence says what is wrong and what to do."""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fedl2g.engines import flower
from fedl2g.errors import SettingError

ADVICE = r'expected 1\.41 to 1\.42; install one of them with pip install "flwr>=1\.41,<1\.43"$'


@pytest.fixture(autouse=True)
def _unknown() -> Iterator[None]:
    flower._check_release.cache_clear()
    yield
    flower._check_release.cache_clear()


def installed(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "version", lambda name: release)


def test_what_pip_installs_is_what_was_tested() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    (oldest, newest) = flower.OLDEST, flower.NEWEST
    bound = f"flwr>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    assert bound in project["project"]["optional-dependencies"]["flower"]


@pytest.mark.parametrize("release", ["1.41.0", "1.42.0", "1.42.0.dev20261001"])
def test_a_tested_release_is_taken_in_silence(
    release: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(release, monkeypatch)
    flower.require_flower()
    assert caplog.messages == []


@pytest.mark.parametrize("release", ["1.40.9", "0.19.0"])
def test_a_release_that_is_too_old_is_refused(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(release, monkeypatch)
    with pytest.raises(SettingError, match=rf"^flwr: release {release} is too old; {ADVICE}"):
        flower.require_flower()


def test_a_newer_release_is_tried_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed("2.0.0", monkeypatch)
    with caplog.at_level(logging.WARNING):
        flower.require_flower()
        flower.require_flower()
    assert caplog.messages == ["flwr: release 2.0.0 was not tested with this fedl2g; tested are 1.41 to 1.42"]


def test_a_release_without_a_name_that_is_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed("1.43.0", monkeypatch)
    monkeypatch.setitem(sys.modules, "flwr.supercore.task_identity", None)
    monkeypatch.delitem(sys.modules, "fedl2g.engines.flower.internals", raising=False)
    with pytest.raises(SettingError, match=rf"^flwr: release 1.43.0 lacks what fedl2g needs \(.*\); {ADVICE}"):
        flower.require_flower()
