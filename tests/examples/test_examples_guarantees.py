"""A method of one's own gets what the experiment asks for: noise that is really added, rules that are really applied.

Or it is refused: a method that reads individual replies, or says nothing about itself, can be given neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedl2g import ClientHalf, Combined, Experiment, Options, ServerHalf, Trained, Traits, register_method
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import SettingError
from fedl2g.federation import Federation
from fedl2g.methods.registry import Method, get_method
from fedl2g.references import load_plugin
from fedl2g.setup import prepare

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedema.py"
TINY: dict[str, Any] = {
    "samples": 160,
    "partition": "iid",
    "models": "small_cnn",
    "clients": 4,
    "rounds": 1,
    "client_lr": 1e-12,  # nothing moves: what clients send is the same with and without noise
}


@pytest.fixture(autouse=True)
def _plugin() -> None:
    load_plugin(str(EXAMPLE))


def served(**settings: Any) -> torch.Tensor:
    """The prototypes that the example's server holds after one round."""
    setup = prepare(Experiment(**{**TINY, **settings}))
    engine = InlineEngine(setup)
    server = get_method("fedema").server(setup.experiment.method, setup.task)
    Federation(setup.experiment, server, engine).run()
    engine.close()
    return server.vectors.double()


@pytest.mark.parametrize("memory", [0.0, 0.9])  # of a first round nothing is older than the round itself
@pytest.mark.parametrize(("multiplier", "participation"), [(3.0, 1.0), (20.0, 0.5)])
def test_the_noise_of_the_guarantee_is_what_the_server_holds(
    multiplier: float, participation: float, memory: float
) -> None:
    pytest.importorskip("opacus")
    clip = 0.5
    privacy = {"clip": clip, "noise_multiplier": multiplier}
    method = {"name": "fedema", "memory": memory}
    noisy = served(method=method, privacy=privacy, participation=participation)
    barely = served(method=method, privacy={**privacy, "noise_multiplier": 1e-9}, participation=participation)
    noise = noisy - barely
    assert noise.numel() == 10 * 512
    assert float(noise.std()) == pytest.approx(multiplier * clip / (participation * TINY["clients"]), rel=0.05)
    assert abs(float(noise.mean())) < 0.05 * float(noise.std())


def test_memory_keeps_its_share_of_the_noise_too() -> None:
    """The second round's noise enters with 1 - memory, as everything that is combined does."""
    pytest.importorskip("opacus")
    privacy = {"clip": 0.5, "noise_multiplier": 4.0}
    method = {"name": "fedema", "memory": 0.5}
    held = served(method=method, privacy=privacy, rounds=2) - served(
        method=method, privacy={**privacy, "noise_multiplier": 1e-9}, rounds=2
    )
    single = 4.0 * 0.5 / TINY["clients"]
    assert float(held.std()) == pytest.approx(single * (0.5**2 + 0.5**2) ** 0.5, rel=0.05)


def test_a_rule_of_aggregation_changes_what_the_server_holds() -> None:
    settings = {"method": "fedema", "attack": {"share": 0.25, "kind": "constant", "strength": 1000.0}}
    honest = served(method="fedema")
    mean, median = served(**settings), served(**settings, aggregation="median")
    assert float((mean - honest).abs().max()) > 100
    assert float((median - honest).abs().max()) < 1


class RawOptions(Options):
    """Reads single replies."""

    name: str = "raw"


class LongestServer(ServerHalf[RawOptions]):
    """Keeps the longest of the vectors that it was sent."""

    def __init__(self, options: RawOptions, task: Any) -> None:
        super().__init__(options, task)
        self.register_buffer("longest", torch.zeros(1))

    def expected(self) -> dict[str, Any]:
        from fedl2g.payload import TensorSpec

        return {"length": TensorSpec((1,), torch.float32)}

    def update(self, round: int, combined: Combined) -> None:
        assert combined.payload == {}
        self.longest.copy_(torch.stack([reply.payload["length"] for reply in combined.replies]).amax(0))


class LengthClient(ClientHalf[RawOptions]):
    """Sends one number."""

    def train(self, round: int, payload: Any) -> Trained:
        log = self.client.fit(round, self.own_loss)
        return Trained({"length": torch.tensor([float(self.client.id)])}, log)


@pytest.fixture(params=["declared", "without traits"])
def raw(request: pytest.FixtureRequest, registries_as_found: None) -> Method:
    traits = Traits(uploads="network", raw_replies=True) if request.param == "declared" else None
    return register_method("raw", options=RawOptions, server=LongestServer, client=LengthClient, traits=traits)


def test_a_method_that_reads_single_replies_works(raw: Method) -> None:
    setup = prepare(Experiment(**TINY, method="raw"))
    engine = InlineEngine(setup)
    server = raw.server(setup.experiment.method, setup.task)
    federation = Federation(setup.experiment, server, engine)
    federation.run()
    engine.close()
    assert server.longest.tolist() == [3.0]
    assert federation.history[1].up_bytes == 4 * TINY["clients"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("privacy", {"clip": 1.0, "noise_multiplier": 1.0}),
        ("aggregation", "median"),
        ("aggregation", {"rule": "norm_clip"}),
    ],
)
def test_what_cannot_be_given_to_it_is_refused_before_the_run(setting: str, value: object, raw: Method) -> None:
    with pytest.raises(SettingError) as refusal:
        Experiment(**TINY, method="raw", **{setting: value})
    sentence = str(refusal.value)
    assert sentence.startswith(setting)
    assert "raw" in sentence
    assert "\n" not in sentence
