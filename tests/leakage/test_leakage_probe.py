"""The leakage probe: certain where rows are sent for the own classes alone, a guess where noise hides them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedl2g.engines.host import Host
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.leakage.membership import members_of, sample_areas
from fedl2g.leakage.probe import _areas, probe
from fedl2g.learning.guidance import guiding_gradient
from fedl2g.learning.training import SampleView
from fedl2g.methods.base import ClientHalf, Vectors
from fedl2g.methods.fedl2g import FedL2GClient
from fedl2g.methods.registry import get_method
from fedl2g.models import calibration
from fedl2g.payload import Payload, class_vectors
from fedl2g.references import load_plugin
from fedl2g.setup import prepare
from method_settings import without_warmup

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedema.py"

TINY: dict[str, Any] = {
    "samples": 200,
    "image_size": 16,
    "partition": "pathological:4",
    "models": "small_cnn",
    "clients": 5,
    "rounds": 3,
    "evaluate_every": 3,
}


def test_areas_by_hand() -> None:
    has = np.array([[True, True, False, False], [True] * 4])
    seen = [(0, np.array([3.0, 1.0, 2.0, 0.0])), (0, np.array([1.0, 4.0, 1.0, 0.0])), (1, np.zeros(4))]
    one, together = _areas(seen, has)
    assert one == pytest.approx((3 / 4 + 3.5 / 4) / 2)
    assert together == 1.0


def test_layouts_are_settled_as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "faster_layout", lambda name, **_: "channels_last")
    seen: list[Experiment] = []

    class Look(Observer):
        def on_start(self, federation: Federation) -> None:
            seen.append(federation.experiment)

    probe(Experiment(**{**TINY, "rounds": 1}, method="feddistill", layout="auto"), [Look()])
    assert seen[0].channels_last == {"small_cnn"}


@pytest.mark.parametrize("method", ["fedproto", "feddistill"])
def test_means_of_classes_tell_which_classes_a_client_has(method: str) -> None:
    leak = probe(Experiment(**TINY, method=method))
    assert 0.95 < leak.one_round <= leak.all_rounds
    assert leak.all_rounds > 0.99
    dense = probe(Experiment(**TINY, method=method, privacy={"dense_uploads": True}))
    assert dense.all_rounds == leak.all_rounds  # zeros are seen as zeros: dense uploads alone hide nothing
    assert dense.up_mb_per_round > leak.up_mb_per_round
    assert dense.accuracy == leak.accuracy


def test_guiding_gradients_tell_it_too_in_time() -> None:
    """One round's study batch need not hold all classes of a client: a row sent is proof, a missing one is not."""
    leak = probe(Experiment(**{**TINY, "rounds": 6}, method=without_warmup("fedl2g-l"), batch_size=2))
    assert 0.5 < leak.one_round < 1.0
    assert leak.one_round < leak.all_rounds


def test_noise_with_a_guarantee_against_the_server_leaves_a_guess() -> None:
    privacy = {"clip": 1.0, "epsilon": 1.0, "noise": "client"}
    leak = probe(Experiment(**{**TINY, "rounds": 4}, method="feddistill", privacy=privacy))
    assert 0.3 < leak.one_round < 0.7
    assert leak.epsilon is not None
    assert leak.epsilon <= 1.0


def test_what_cannot_be_probed_is_refused() -> None:
    with pytest.raises(SettingError, match=r"fml does not upload class vectors.* fedgh, .*fedl2g-f"):
        probe(Experiment(**TINY, method="fml"))
    with pytest.raises(SettingError, match="nothing to guess"):
        probe(Experiment(**{**TINY, "partition": "iid", "samples": 400, "clients": 2}, method="feddistill"))


METHODS = [
    "fedproto",
    "fedtgp",
    "feddistill",
    "fedgh",
    "fedl2g-l",
    "fedl2g-f",
    "fedema",
]  # the last one is a user's own


def _half(method: str) -> tuple[ClientHalf[Any], Vectors, Payload]:
    """A client's half, what its class vectors are, and what the server sends it first."""
    if method == "fedema":
        load_plugin(str(EXAMPLE))
    experiment = Experiment(**{**TINY, "partition": "iid", "clients": 2}, method=without_warmup(method))
    setup, known = prepare(experiment), get_method(method)
    sent = known.server(experiment.method, setup.task).broadcast(1)
    return Host(setup, torch.device("cpu")).half(0), known.traits.vectors, sent


def _alone(half: ClientHalf[Any], sample: SampleView, sent: Payload) -> Payload:
    """What the client would upload of one sample, computed without the probe's own code."""
    x, y = sample.batch(torch.arange(1))
    half.model.eval()
    if isinstance(half, FedL2GClient):
        task, guide = half.client.task, sent["rows"]
        quiz = half.quiz_set.batch(torch.arange(len(half.quiz_set)))
        ids, rows = guiding_gradient(half.model, (x, y), quiz, guide, lr=task.client_lr, space=half.options.space)
        return class_vectors(ids, 0.1 * rows)  # as one of ten samples of a study batch
    features, logits = half.model(x)
    return class_vectors(y, (logits if half.options.name == "feddistill" else features).detach())


def _in_logits(half: ClientHalf[Any]) -> bool:
    return half.options.name in ("feddistill", "fedl2g-l")


@pytest.mark.parametrize("method", METHODS)
def test_an_upload_made_of_one_sample_gives_it_away(method: str) -> None:
    half, vectors, sent = _half(method)
    train, test = half.client.train_set, half.client.test_set
    held = set(test.labels[test.indices].tolist())
    tried = 0
    for position in range(12):
        sample = train.subset(torch.tensor([position]))
        if int(sample.labels[sample.indices[0]]) in held:
            assert sample_areas(half, vectors, sample, test, sent, _alone(half, sample, sent)) == [1.0]
            tried += 1
    assert tried > 5


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.slow] * (name == "fedl2g-f")) for name in METHODS]
)
def test_an_upload_that_has_nothing_to_do_with_the_samples_is_a_guess(method: str) -> None:
    half, vectors, sent = _half(method)
    client, width = half.client, half.client.task.classes if _in_logits(half) else half.client.task.feature_dim
    draw, areas = torch.Generator().manual_seed(1), []
    for _ in range(12):  # members and others drawn from the same pool, and a row of noise for each class
        order = torch.randperm(len(client.train_set), generator=draw)
        members, others = client.train_set.subset(order[::2]), client.train_set.subset(order[1::2])
        upload = class_vectors(torch.arange(10), torch.randn(10, width, generator=draw))
        areas += sample_areas(half, vectors, members, others, sent, upload)
    assert len(areas) > 60
    assert 0.4 < float(np.mean(areas)) < 0.6


@pytest.mark.parametrize("method", ["fedproto", "fedgh", "fedl2g-l", "fedema"])
def test_looking_at_samples_changes_nothing_in_the_run(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugin(str(EXAMPLE))
    experiment = Experiment(**TINY, method={"name": method, **({"warmup_rounds": 1} if "l2g" in method else {})})
    looked = probe(experiment)
    assert looked.samples is not None
    assert 0 <= looked.samples <= 1
    monkeypatch.setattr("fedl2g.leakage.probe.members_of", lambda half, vectors, round: None)
    assert probe(experiment) == replace(looked, samples=None)


def test_members_of_a_guiding_gradient_are_its_study_batch() -> None:
    half, vectors, sent = _half("fedl2g-f")
    upload = half.train(3, sent).payload
    members = members_of(half, vectors, 3)
    assert members is not None
    assert len(members) == 10
    assert upload["ids"].tolist() == sorted(set(members.labels[members.indices].tolist()))


def test_vectors_of_which_nothing_is_known_are_not_tried() -> None:
    half, _, _ = _half("fedproto")
    assert members_of(half, "", 1) is None
    assert members_of(half, "guiding gradients", 1) is None  # it has no study batch


def test_the_engine_of_the_experiment_does_not_matter() -> None:
    experiment = Experiment(**TINY, method="feddistill")
    elsewhere = Experiment(**TINY, method="feddistill", execution={"engine": "workers"})
    assert probe(elsewhere) == probe(experiment)
