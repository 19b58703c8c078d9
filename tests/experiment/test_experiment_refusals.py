"""Names from registries, and settings that do not go together: refused before anything runs."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest

from fedl2g import registry
from fedl2g.engines.base import register_engine
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment, checks, explain
from fedl2g.registry import Registry, engines, rules, samplers
from fedl2g.round.rules import Rule, register_rule
from fedl2g.round.sampler import register_sampler

GUARANTEE = {"clip": 1.0, "epsilon": 3.0}
KINDS = [
    (engines, register_engine, lambda name: {"execution": {"engine": name}}, "execution.engine"),
    (samplers, register_sampler, lambda name: {"sampler": name}, "sampler"),
    (rules, register_rule, lambda name: {"aggregation": name}, "aggregation.rule"),
]
Settings = Callable[[str], dict[str, Any]]


def thing(*_: object) -> str:
    """What is registered."""
    return "thing"


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for one, *_ in KINDS:
        monkeypatch.setattr(one, "_registered", dict(one._registered))


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("kind", "register", "settings", "field"), KINDS)
def test_what_a_user_registers_may_be_named(
    kind: Registry[Any], register: Callable[..., None], settings: Settings, field: str
) -> None:
    with pytest.raises(SettingError, match=f"{field}: 'mine' is not known"):
        Experiment(**settings("mine"))
    register("mine", thing)
    assert Experiment(**settings("mine")).fingerprint
    assert kind.get("mine") in (thing, Rule(thing))
    assert "mine" in kind.names()
    assert "mine" in explain(field)


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("kind", "register", "settings", "field"), KINDS)
def test_a_built_in_name_cannot_be_taken(
    kind: Registry[Any], register: Callable[..., None], settings: Settings, field: str
) -> None:
    kind._registered.clear()
    with pytest.raises(SettingError, match=f"{field}: .* is built in"):
        register(kind.names()[0], thing)


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("kind", "register", "settings", "field"), KINDS)
def test_what_an_installed_package_offers_may_be_named(
    kind: Registry[Any],
    register: Callable[..., None],
    settings: Settings,
    field: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint("theirs", "their_package", kind.group)

    def installed(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [point] if group == kind.group and name in (None, point.name) else []

    monkeypatch.setattr(registry, "entry_points", installed)
    assert Experiment(**settings("theirs")).fingerprint
    assert "their_package" not in sys.modules, "a name is checked without importing what it names"
    with pytest.raises(SettingError, match="did you mean 'theirs'"):
        Experiment(**settings("their"))
    with pytest.raises(SettingError, match=r"cannot be imported from their_package \(ModuleNotFoundError"):
        kind.get("theirs")
    monkeypatch.setitem(sys.modules, "their_package", types.ModuleType("their_package"))
    with pytest.raises(SettingError, match="was not registered by the module"):
        kind.get("theirs")
    register("theirs", thing)
    assert kind.get("theirs") in (thing, Rule(thing))


def test_the_registries_know_what_is_built_in() -> None:
    assert set(engines.names()) >= {"inline", "workers", "flower"}
    assert set(samplers.names()) >= {"uniform", "poisson"}
    assert set(rules.names()) >= {"mean", "median", "trimmed_mean", "norm_clip"}


@pytest.fixture
def traits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give every method these traits."""

    def give(**given: bool) -> None:
        values = {"raw_replies": False, "compressed": False, "shares_head": False, **given}
        monkeypatch.setattr(
            checks,
            "get_method",
            lambda name: SimpleNamespace(traits=SimpleNamespace(**values), warmup_rounds=lambda options: 0),
        )

    return give


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("raw_replies", {"privacy": GUARANTEE}, "privacy.clip: local reads individual replies, so one client's influence"),
    (
        "compressed",
        {"privacy": GUARANTEE},
        "privacy.clip: local compresses its uploads, and clipping factors does not",
    ),
    (
        "raw_replies",
        {"aggregation": "median"},
        "aggregation.rule: local reads individual replies, so median would not be",
    ),
    ("raw_replies", {"privacy": {"dense_uploads": True}}, "privacy.dense_uploads: local reads individual replies"),
    ("shares_head", {"models": "cnn4,vit_b_16"}, "models: 'cnn4,vit_b_16' mixes different heads, but local shares"),
]


@pytest.mark.parametrize(("trait", "settings", "sentence"), REFUSED)
def test_what_a_method_does_not_allow_is_refused(
    trait: str, settings: dict[str, Any], sentence: str, traits: Callable[..., None]
) -> None:
    traits()
    Experiment(method="local", **settings)
    traits(**{trait: True})
    Experiment(method="local")
    with pytest.raises(SettingError) as caught:
        Experiment(method="local", **settings)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_compressing_method_may_be_combined_by_any_rule_and_send_every_row(traits: Callable[..., None]) -> None:
    traits(compressed=True)
    Experiment(method="local", aggregation="median", privacy={"dense_uploads": True})


def test_the_methods_that_exist_say_what_they_are() -> None:
    Experiment(method="fedproto", privacy=GUARANTEE)
    with pytest.raises(SettingError, match="fedkd compresses its uploads"):
        Experiment(method="fedkd", privacy=GUARANTEE)
    with pytest.raises(SettingError, match="lg-fedavg shares one head"):
        Experiment(method="lg-fedavg", models="cnn4,vit_b_16")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"aggregation": "median"}, "aggregation.rule: median is not covered by the privacy guarantee"),
        ({"sampler": "uniform"}, "sampler: uniform is not covered by the privacy guarantee"),
        ({"availability": {"deadline": 1, "late": "use"}}, "availability.late: replies used in a later round are not"),
    ],
)
def test_what_the_guarantee_does_not_cover_is_refused(settings: dict[str, Any], sentence: str) -> None:
    Experiment(**settings)
    with pytest.raises(SettingError) as caught:
        Experiment(privacy=GUARANTEE, **settings)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("sampler", [None, "poisson"])
def test_the_guarantee_draws_each_client_independently(sampler: str | None) -> None:
    assert Experiment(privacy=GUARANTEE, sampler=sampler).sampler_name == "poisson"


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        ({"epsilon": 1.0}, "privacy.epsilon: has no effect without privacy.clip"),
        ({"clip": 1.0}, "privacy.clip: neither of privacy.epsilon and privacy.noise_multiplier is given; expected one"),
        ({"clip": 1.0, "epsilon": 1.0, "noise_multiplier": 1.0}, "privacy.clip: both of privacy.epsilon and"),
    ],
)
def test_a_guarantee_is_given_whole(privacy: dict[str, float], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(privacy=privacy)
    assert str(caught.value).startswith(sentence)
