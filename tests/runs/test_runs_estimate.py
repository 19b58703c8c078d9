"""Estimates: measured step times x the steps of a run, for any method by its traits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedl2g import ClientHalf, Options, ServerHalf, Traits, register_method
from fedl2g.errors import DataError
from fedl2g.experiment import Experiment
from fedl2g.models import calibration
from fedl2g.runs.estimate import DataSize, data_size, duration, estimate_seconds
from fedl2g.schema import image_schema

ONE: dict[str, Any] = {"dataset": "cifar100", "models": "cnn4", "rounds": 1, "clients": 20}
PLAIN = 20 * 225 * 0.01  # 60,000 images: 225 steps on each of 20 clients
EVALUATION = 1500 * 0.01 / 3  # 1,500 batches of test samples at a third of a step


@pytest.fixture(autouse=True)
def _known_step_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "step_seconds", lambda name, **_: 0.01 if name == "cnn4" else 0.02)


def test_plain_training_and_evaluation() -> None:
    assert estimate_seconds(Experiment(**ONE, method="local")) == pytest.approx(PLAIN + EVALUATION)
    half = Experiment(**{**ONE, "models": "cnn4,resnet18"}, method="local")
    assert estimate_seconds(half) == pytest.approx(1.5 * (PLAIN + EVALUATION))


@pytest.mark.parametrize("method", ["fml", "fedkd", "fedmrl"])
def test_an_auxiliary_network_is_trained_beside(method: str) -> None:
    assert estimate_seconds(Experiment(**ONE, method=method)) == pytest.approx(2 * PLAIN + EVALUATION)


def test_guiding_gradients_are_extra_passes_and_warm_up_rounds_train_nothing() -> None:
    three = {**ONE, "rounds": 3}
    guided = Experiment(**three, method={"name": "fedl2g-f", "warmup_rounds": 2})
    assert estimate_seconds(guided) == pytest.approx(PLAIN + EVALUATION + 3 * 3 * 20 * 0.01)


@pytest.mark.usefixtures("registries_as_found")
def test_a_users_method_is_estimated_by_its_traits() -> None:
    class Mine(Options):
        """A user's own."""

        name: str = "estimated"
        warmup_rounds: int = 1

    traits = Traits(uploads="network", auxiliary_network=True, extra_passes=5, warm_up=True)
    register_method("estimated", options=Mine, server=ServerHalf, client=ClientHalf, traits=traits)
    expected = 2 * PLAIN + EVALUATION + 2 * 5 * 20 * 0.01
    assert estimate_seconds(Experiment(**{**ONE, "rounds": 2}, method="estimated")) == pytest.approx(expected)


def test_sizes_of_data_of_every_kind(tmp_path: Path) -> None:
    assert data_size("cifar100") == DataSize(60000, 100, image_schema(3, 32, 32))
    assert data_size("cifar100", 16).inputs == image_schema(3, 16, 16)
    grey, colour = tmp_path / "grey.npz", tmp_path / "colour.npz"
    np.savez(grey, images=np.zeros((6, 8, 9), np.uint8), labels=np.arange(6) % 2)
    names = np.array(["a", "b", "c"])
    np.savez(colour, images=np.zeros((6, 8, 9, 4), np.uint8), labels=np.arange(6) % 2, class_names=names)
    assert data_size(str(grey)) == DataSize(6, 2, image_schema(1, 8, 9))
    assert data_size(str(colour)) == DataSize(6, 3, image_schema(4, 8, 9))
    assert data_size(str(colour), 16).inputs == image_schema(4, 16, 16)
    (tmp_path / "broken.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"broken\.npz: cannot be read"):
        data_size(str(tmp_path / "broken.npz"))


def test_a_folder_of_images_is_loaded_to_be_measured(tmp_path: Path) -> None:
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(3):
            Image.new("RGB", (20, 20)).save(tmp_path / label / f"{number}.png")
    assert data_size(str(tmp_path), 16) == DataSize(6, 2, image_schema(3, 16, 16))


def test_durations_for_people() -> None:
    assert duration(0) == "1 second"
    assert duration(40) == "40 seconds"
    assert duration(40 * 86400) == "40.0 days"
