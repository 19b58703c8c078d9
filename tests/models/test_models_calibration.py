"""Step times: measured once, remembered, and never in the way of anything else."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fedl2g.errors import SettingError
from fedl2g.models import calibration
from fedl2g.models.calibration import step_seconds
from fedl2g.schema import image_schema


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDL2G_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibration.json"


def measure(name: str = "small_cnn", layout: str = "contiguous", batch_size: int = 10) -> float:
    return step_seconds(name, classes=10, inputs=image_schema(1, 28, 28), layout=layout, batch_size=batch_size)


def test_measured_once_and_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = measure()
    other = measure(layout="channels_last")
    assert 0 < seconds < 5
    stored = json.loads(cache.read_text())
    assert sorted(stored.values()) == sorted([seconds, other])
    assert {path.name for path in cache.parent.iterdir()} <= {cache.name, "calibration.lock"}
    monkeypatch.setattr(calibration, "build_model", None)
    assert measure() == seconds
    assert measure(layout="channels_last") == other


def test_global_state_is_left_alone(cache: Path) -> None:
    threads, rng = torch.get_num_threads(), torch.get_rng_state()
    with torch.no_grad():
        measure()
        assert not torch.is_grad_enabled()
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), rng)


def test_one_process_measures_and_the_others_take_its_number(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[float] = []

    def slow(*_: object) -> float:
        measured.append(1.0 + len(measured))
        time.sleep(0.2)
        return measured[-1]

    monkeypatch.setattr(calibration, "_measure", slow)
    with ThreadPoolExecutor(3) as pool:  # each holds the file by itself, as processes do
        found = list(pool.map(lambda _: measure(), range(3)))
    assert found == [1.0] * 3
    assert len(measured) == 1


@pytest.mark.parametrize("content", ["", "{not json", "[1, 2]", '{"small_cnn": "fast"}', "\x00\xff"])
def test_a_broken_cache_is_made_again(cache: Path, content: str) -> None:
    cache.parent.mkdir()
    cache.write_text(content, encoding="latin-1")
    seconds = measure()
    assert list(json.loads(cache.read_text()).values()) == [seconds]


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDL2G_CACHE", str(tmp_path / "file"))
    assert measure() > 0


def test_wrong_settings_are_explained(cache: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'channels_last'"):
        measure(layout="channel_last")
    with pytest.raises(SettingError, match="at least 2"):
        measure(batch_size=1)
    with pytest.raises(SettingError, match="did you mean 'small_cnn'"):
        measure("small_cn")
