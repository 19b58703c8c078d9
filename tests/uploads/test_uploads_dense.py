"""Dense uploads: a row for every class, which hides what is there and changes no number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedl2g.errors import PayloadError
from fedl2g.experiment import Experiment
from fedl2g.experiment.policies import Noise, Privacy
from fedl2g.methods.base import Report
from fedl2g.payload import Payload, check_payload, class_vector_spec
from fedl2g.rng import torch_stream
from fedl2g.uploads.dense import Dense, Densify
from fedl2g.uploads.noise import add_noise
from fedl2g.uploads.stage import Upload
from puppets import puppet_federation

CLASSES = 3
SENT: Payload = {"ids": torch.tensor([0, 2]), "rows": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}


def _same(one: Payload, other: Payload) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _dense(**settings: Any) -> Dense:
    dense = Dense.of(Privacy(**settings), CLASSES)
    assert dense is not None
    return dense


def test_dense_uploads_hide_no_row_and_change_no_number() -> None:
    dense = _dense(dense_uploads=True)
    sent = dense.pack(SENT)
    assert sent["ids"].tolist() == [0, 1, 2]
    assert sent["present"].tolist() == [1, 0, 1]
    assert sent["rows"].tolist() == [[3.0, 0.0], [0.0, 0.0], [0.0, 4.0]]
    assert _same(dense.unpack(sent), SENT)
    noisy = add_noise(sent, Noise(std=0.01), torch_stream(0, "noise", 0, 1))
    assert noisy["rows"][1].abs().min() > 0  # the row of an absent class is hidden among the others,
    assert dense.unpack(noisy)["ids"].tolist() == [0, 2]  # and is still known to be absent, as long as noise is small
    much = add_noise(sent, Noise(coefficient=0.9), torch_stream(0, "noise", 0, 1))
    assert dense.unpack(much)["ids"].tolist() == [0, 2]  # shrunken vectors are still there
    torch.testing.assert_close(dense.unpack(much)["rows"], 0.1 * SENT["rows"])


def test_all_uploads_look_alike() -> None:
    dense = _dense(dense_uploads=True)
    expected = dense.specification(class_vector_spec(CLASSES, 8, torch.float32))
    for ids in ([1], [0, 1, 2], []):
        wide = {"ids": torch.tensor(ids, dtype=torch.int64), "rows": torch.ones(len(ids), 8)}
        check_payload(dense.pack(wide), expected)
        if len(ids) < CLASSES:
            with pytest.raises(PayloadError):
                check_payload(wide, expected)


def test_networks_stay_as_they_are() -> None:
    dense = _dense(dense_uploads=True)
    network = {"weight": torch.ones(2, 2)}
    assert dense.pack(network) is network
    assert dense.unpack(network) is network
    spec = {"weight": class_vector_spec(2, 2, torch.float32)["rows"]}
    assert dense.specification(spec) == spec


def test_who_has_a_class_is_sent_under_the_guarantee_only_if_it_is_asked_for() -> None:
    guarantee = {"clip": 1.0, "noise_multiplier": 1.0}
    assert Dense.of(Privacy(), CLASSES) is None
    assert "present" not in _dense(**guarantee).pack(SENT)
    assert "present" not in _dense(**guarantee, dense_uploads=True).pack(SENT)
    assert "present" in _dense(**guarantee, denominator="counted").pack(SENT)


def test_the_stage_packs() -> None:
    dense = _dense(dense_uploads=True)
    upload = Upload(0, 1, SENT, Report(5), {}, lambda payload: payload)
    assert _same(Densify(dense).apply(upload).payload, dense.pack(SENT))
    assert _same(upload.payload, SENT)


@pytest.mark.parametrize("settings", [{}, {"aggregation": "median"}, {"noise": {"coefficient": 0.5}}])
def test_a_run_has_the_same_numbers_and_sends_more(settings: dict[str, Any]) -> None:
    def say(client: int, round: int, received: Payload) -> Payload:
        return {"ids": torch.tensor([client % 3]), "rows": torch.full((1, 4), float(client * round))}

    found = []
    for dense in (False, True):
        experiment = Experiment(
            method="feddistill", clients=5, rounds=3, evaluate_every=9, privacy={"dense_uploads": dense}, **settings
        )
        federation, _ = puppet_federation(experiment, say, classes=4)
        federation.run()
        found.append((federation.server.state_dict(), [r.up_bytes for r in federation.history[1:]]))
    assert _same(found[0][0], found[1][0])
    assert found[0][1] == [5 * (8 + 16)] * 3
    assert found[1][1] == [5 * (4 * 8 + 4 * 16 + 4 * 4)] * 3
