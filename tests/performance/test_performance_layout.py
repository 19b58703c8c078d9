"""Memory layouts: by a table or by measurement, kept with the run, the same on every engine, never in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import fedl2g
from endings import RaiseAfter
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import RunError
from fedl2g.experiment import Experiment, layouts
from fedl2g.models import calibration
from fedl2g.models.catalog import ARCHITECTURES, CHANNELS_LAST
from fedl2g.runs.directory import RunDirectory
from fedl2g.schema import image_schema


def clients(run: Path) -> dict[str, bytes]:
    newest = sorted((run / "checkpoints").glob("round-*"))[-1]
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_workers")
def test_channels_last_on_both_engines_and_after_an_interruption(tiny: Any, tmp_path: Path) -> None:
    settings = {"rounds": 2, "layout": "channels_last", "method": {"name": "fml"}}
    fedl2g.run(tiny(**settings), tmp_path / "inline")
    fedl2g.run(tiny(**settings, execution={"engine": "workers", "workers": 2}), tmp_path / "workers")
    with pytest.raises(KeyboardInterrupt):
        fedl2g.run(tiny(**settings, execution={"checkpoint_every": 1}), tmp_path / "again", [RaiseAfter(1)])
    fedl2g.resume(tmp_path / "again")
    assert clients(tmp_path / "inline") == clients(tmp_path / "workers") == clients(tmp_path / "again")


def test_the_layout_changes_last_digits_only_and_no_file(tiny: Any, setup_of: Any, tmp_path: Path) -> None:
    states = {}
    for layout in ("contiguous", "channels_last"):
        experiment = tiny(layout=layout, precision="float64", rounds=1, participation=1, models="small_resnet")
        engine = InlineEngine(setup_of(experiment))
        host = engine.host
        weight = next(p for p in host.half(0).model.parameters() if p.ndim == 4 and p.shape[1] > 1)
        assert weight.is_contiguous(memory_format=torch.channels_last) == (layout == "channels_last")
        payload = fedl2g.methods.registry.get_method("fedl2g-f").server(experiment.method, host.task).broadcast(1)
        reply = host.train(0, 1, payload)
        assert all(tensor.is_contiguous() for tensor in reply.payload.values())
        folder = tmp_path / layout
        folder.mkdir()
        engine.save(folder)
        states[layout] = safetensors.torch.load_file(folder / "client-000000.safetensors")
        engine.close()
    for name, tensor in states["contiguous"].items():
        torch.testing.assert_close(states["channels_last"][name], tensor, rtol=1e-9, atol=1e-12)


def test_the_default_is_the_table_of_the_catalog(tiny: Any) -> None:
    own = "tests.models:network"
    experiment = Experiment(models=f"cnn4,resnet18,vit_b_32,{own}")
    assert experiment.layout == "preset"
    assert experiment.channels_last == {"cnn4"}
    assert set(ARCHITECTURES) >= CHANNELS_LAST
    assert Experiment(models="cnn4", device="cuda").channels_last == {"cnn4"}  # the same experiment on every device
    assert Experiment(dataset="sites").channels_last == CHANNELS_LAST  # each site names its own architecture


def test_the_preset_computes_in_the_layouts_of_the_table(tiny: Any, setup_of: Any) -> None:
    engine = InlineEngine(setup_of(tiny(models="small_cnn,resnet18", clients=2)))
    for client, last in ((0, True), (1, False)):
        weight = next(p for p in engine.host.half(client).model.parameters() if p.ndim == 4 and p.shape[1] > 1)
        assert weight.is_contiguous(memory_format=torch.channels_last) == last
    engine.close()


def test_another_table_is_another_experiment_and_equal_layouts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = Experiment(models="cnn4,resnet18")
    others = [Experiment(models="cnn4,resnet18", layout=name) for name in ("cnn4=channels_last", "contiguous", "auto")]
    assert [other.fingerprint == preset.fingerprint for other in others] == [True, False, False]
    assert 'layout = "preset"' in preset.to_toml()  # the file says it, even should the default become another
    before = preset.fingerprint, Experiment(models="resnet18").fingerprint
    monkeypatch.setattr(layouts, "CHANNELS_LAST", frozenset())
    assert Experiment(models="cnn4,resnet18").fingerprint not in before
    assert Experiment(models="resnet18").fingerprint == before[1]  # whom the change does not concern


def test_a_run_is_not_continued_with_another_table(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        fedl2g.run(tiny(rounds=2, execution={"checkpoint_every": 1}), tmp_path / "run", [RaiseAfter(1)])
    monkeypatch.setattr(layouts, "CHANNELS_LAST", frozenset())
    with pytest.raises(RunError, match=r"other layouts in `preset`, started it; .* resume it with that version"):
        fedl2g.resume(tmp_path / "run")
    with pytest.raises(RunError, match="another experiment"):
        fedl2g.run(tiny(rounds=2), tmp_path / "run")


def test_auto_is_settled_once_and_stays_with_the_run(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = {"small_cnn": "channels_last", "small_resnet": "contiguous"}
    monkeypatch.setattr(calibration, "faster_layout", lambda name, **_: choice[name])
    experiment = tiny(layout="auto", rounds=2, execution={"checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        fedl2g.run(experiment, tmp_path / "run", [RaiseAfter(1)])
    settled = RunDirectory(tmp_path / "run").experiment()
    assert settled.layout == "small_cnn=channels_last,small_resnet=contiguous"
    assert settled.channels_last == {"small_cnn"}
    assert settled.fingerprint != experiment.fingerprint
    choice |= {"small_cnn": "contiguous"}  # another measurement, later
    fedl2g.run(experiment, tmp_path / "run")
    fedl2g.run(settled, tmp_path / "explicit")
    assert clients(tmp_path / "run") == clients(tmp_path / "explicit")
    with pytest.raises(RunError, match="another experiment"):
        fedl2g.run(tiny(layout="contiguous", rounds=2), tmp_path / "run")


def test_the_measurement_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDL2G_CACHE", str(tmp_path))
    ratios = iter([1.5])
    monkeypatch.setattr(calibration, "_interleaved_ratio", lambda *_: next(ratios))
    for _ in range(2):
        found = calibration.faster_layout("small_cnn", classes=10, inputs=image_schema(1, 16, 16))
        assert found == "channels_last"
    monkeypatch.setattr(calibration, "_interleaved_ratio", lambda *_: 1.01)
    assert calibration.faster_layout("small_resnet", classes=10, inputs=image_schema(1, 16, 16)) == "contiguous"


def test_a_real_measurement_gives_one_of_the_two() -> None:
    generator = torch.get_rng_state()
    found = calibration.faster_layout("small_cnn", classes=10, inputs=image_schema(1, 16, 16))
    assert found in calibration.LAYOUTS
    assert torch.equal(generator, torch.get_rng_state())
