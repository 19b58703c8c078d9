"""One sentence for whatever is wrong with a setting, and words for what it may be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError, field_validator, model_validator

from fedl2g.errors import SettingError
from fedl2g.experiment import Execution, Experiment, documented_fields, explain
from fedl2g.experiment.words import RENAMED, expectation, one_sentence
from fedl2g.methods.options import Options

UNKNOWN = [
    ({"round": 5}, "'round'", "'rounds'"),
    ({"clints": 5}, "'clints'", "'clients'"),
    ({"execution": {"worker": 2}}, "'execution.worker'", "'workers'"),
    ({"method": {"name": "fedl2g-f", "server_rl": 1}}, "'method.server_rl'", "'server_lr'"),
    ({"method": {"name": "local", "server_lr": 1}}, "'method.server_lr'", ""),
    ({"method": "fedl2f-l"}, "'fedl2f-l'", "'fedl2g-l'"),
    ({"engine": "workers"}, "'engine'", "'execution.engine'"),
    ({"execution": {"deadline": 3}}, "'execution.deadline'", "'availability.deadline'"),
    ({"clip": 3}, "'clip'", "'aggregation.clip' or 'privacy.clip'"),
    ({"execution": {"engine": "worker"}}, "'worker'", "'workers'"),
    ({"aggregation": "medain"}, "'medain'", "'median'"),
    ({"sampler": "unifrom"}, "'unifrom'", "'uniform'"),
    ({"models": "smal"}, "'smal'", "'small'"),
    ({"partition": "dirichle:0.1"}, "'dirichle:0.1'", "'dirichlet'"),
]


@pytest.mark.parametrize(("wrong", "named", "hint"), UNKNOWN)
def test_an_unknown_name_is_one_sentence_with_the_nearest_known(wrong: dict[str, Any], named: str, hint: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(**wrong)
    assert named in str(caught.value)
    assert hint in str(caught.value)
    assert str(caught.value).lower().count("did you mean") == bool(hint)
    assert "\n" not in str(caught.value)


WRONG = [
    ({"rounds": 0}, "rounds"),
    ({"rounds": "many"}, "rounds"),
    ({"rounds": None}, "rounds"),
    ({"rounds": 2.5}, "rounds"),
    ({"clients": -1}, "clients"),
    ({"participation": 0}, "participation"),
    ({"participation": 1.01}, "participation"),
    ({"participation": float("nan")}, "participation"),
    ({"client_lr": float("inf")}, "client_lr"),
    ({"client_lr": 0}, "client_lr"),
    ({"test_fraction": 1}, "test_fraction"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**32}, "seed"),
    ({"batch_size": 0}, "batch_size"),
    ({"precision": "float16"}, "precision"),
    ({"device": "gpu"}, "device"),
    ({"models": ""}, "models"),
    ({"models": [1]}, "models"),
    ({"dataset": ""}, "dataset"),
    ({"image_size": 4}, "image_size"),
    ({"samples": 1}, "samples"),
    ({"method": 3}, "method"),
    ({"method": {"name": 3}}, "method.name"),
    ({"method": {"name": "fedl2g-f", "server_lr": -1}}, "method.server_lr"),
    ({"method": {"name": "fedl2g-f", "server_lr": float("inf")}}, "method.server_lr"),
    ({"method": {"name": "fedl2g-f", "guide_init": "ones"}}, "method.guide_init"),
    ({"method": {"name": "fedl2g-f", "quiz_size": 0}}, "method.quiz_size"),
    ({"execution": {"engine": "cloud"}}, "execution.engine"),
    ({"execution": {"workers": 0}}, "execution.workers"),
    ({"execution": "workers"}, "execution"),
    ({"partition": "dirichlet:-1"}, "partition"),
]


@pytest.mark.parametrize(("wrong", "field"), WRONG)
def test_a_wrong_value_is_one_sentence_that_names_the_field_and_the_value(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(**wrong)
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert "\n" not in message
    value = next(iter(wrong.values()))
    if isinstance(value, int | float):
        assert repr(value) in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (
            "chanels_last",
            "did you mean 'channels_last'? known: contiguous, channels_last, preset, auto, or a list such as",
        ),
        ("cnn4=auto", "'auto' is not known; known: contiguous, channels_last, or a list"),
        ("channels_last,contiguous", "does not say which architecture is channels_last; expected each"),
        (
            "cnn5=channels_last",
            "no client has the architecture 'cnn5'; did you mean 'cnn4'? known: cnn4, resnet18",
        ),
        ("cnn4=channels_last,small_cnn=contiguous", "no client has the architecture 'small_cnn'"),
        ("cnn4=channels_last,cnn4=contiguous", "names 'cnn4' twice"),
    ],
)
def test_a_layout_that_would_do_nothing_is_refused(layout: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(models="cnn4,resnet18", layout=layout)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


SENTENCES = [
    ({"rounds": 0}, "rounds: 0 is not allowed; expected a whole number of at least 1"),
    ({"rounds": "many"}, "rounds: 'many' is not allowed; expected a whole number of at least 1"),
    ({"participation": 2}, "participation: 2 is not allowed; expected a number above 0 and at most 1"),
    ({"reshuffle": 3}, "reshuffle: 3 is not allowed; expected true or false"),
    ({"dataset": ""}, "dataset: '' is not allowed; expected text that is not empty"),
    ({"precision": "f"}, "precision: 'f' is not allowed; expected one of float32, float64"),
    ({"execution": 3}, "execution: 3 is not allowed; expected a table of settings"),
    ({"aggregation": 3}, "aggregation: 3 is not allowed; expected a name or a table of settings"),
    ({"method": 3}, "method: 3 is not allowed; expected a name or a table of settings"),
    ({"sampler": 3}, "sampler: 3 is not allowed; expected one of uniform, poisson"),
    ({"noise": {"coefficient": 2}}, "noise.coefficient: 2 is not allowed; expected a number from 0 to 1"),
    ({"evaluate_clients": "x"}, "evaluate_clients: 'x' is not allowed; expected a number above 0"),
    (
        {"evaluate_clients": 2.5},
        "evaluate_clients: 2.5 is not allowed; expected a whole number of clients, or a share up to 1",
    ),
    ({"sampler": "x"}, "sampler: 'x' is not known; known: uniform, poisson"),
    ({"nonsense": 1, "rounds": 5}, None),
    ({"execution": {"worker": 1}}, None),
    ({"rounds": "x" * 1000}, None),
]


@pytest.mark.parametrize(("wrong", "sentence"), SENTENCES)
def test_a_sentence_says_what_is_wrong_and_what_is_expected(wrong: dict[str, Any], sentence: str | None) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(**wrong)
    assert sentence is None or str(caught.value) == sentence
    assert len(str(caught.value)) < 600


def test_an_unknown_setting_is_told_with_those_there_are() -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(execution={"worker": 1})
    known = ", ".join(Execution.model_fields)
    assert str(caught.value) == f"unknown setting 'execution.worker'; did you mean 'workers'? known: {known}"


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_by_its_new_one(old: str, new: str) -> None:
    table, _, name = old.partition(".")
    with pytest.raises(SettingError) as caught:
        Experiment(**{table: {name: 1}})
    assert str(caught.value) == f"unknown setting {old!r}; it was renamed to {new!r}"
    with pytest.raises(SettingError, match="it was renamed to"):
        explain(old)
    assert explain(new)


class Own(Options):
    """A user's options, with checks of their own."""

    name: str = "own"
    depth: int = Field(description="How deep.")
    widths: list[int] = Field(default_factory=list, description="How wide.")
    share: float = Field(0.5, description="A share.")

    @field_validator("share")
    @classmethod
    def _odd(cls, value: float) -> float:
        if value == 1:
            raise ValueError("Shares of 1 are dull")
        return value

    @model_validator(mode="after")
    def _together(self) -> Own:
        assert self.depth != 7, "Depth 7 needs widths"
        return self


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "method.depth: is missing; expected a whole number"),
        ({"depth": "x"}, "method.depth: 'x' is not allowed; expected a whole number"),
        ({"depth": 1, "share": 1}, "method.share: 1 is not allowed; shares of 1 are dull"),
        (
            {"depth": 1, "widths": ["x"]},
            "method.widths: 'x' is not allowed; input should be a valid integer, unable to",
        ),
        ({"depth": 7}, "method: {'depth': 7} is not allowed; depth 7 needs widths"),
        ({"depth": 1, "dept": 1}, "unknown setting 'method.dept'; did you mean 'depth'? known: depth, widths, share"),
    ],
)
def test_options_of_users_are_refused_in_the_same_way(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Own.model_validate(given)
    assert one_sentence(caught.value, Own, "method.").startswith(sentence)


class Kinds(Options):
    """One setting of each kind of limit."""

    least: int = Field(ge=2)
    above: float = Field(gt=0)
    most: int = Field(le=3)
    below: float = Field(lt=0.5)
    both: int = Field(ge=0, le=1)
    half: float = Field(ge=0, lt=0.5)
    open: float | None = Field(None, gt=0, lt=1)
    free: int
    word: Literal["a", "b"] | None
    several: dict[str, int]
    either: Annotated[float, Field(ge=0)] | Literal["adaptive"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("least", "a whole number of at least 2"),
        ("above", "a number above 0"),
        ("most", "a whole number of at most 3"),
        ("below", "a number below 0.5"),
        ("both", "a whole number from 0 to 1"),
        ("half", "a number of at least 0 and below 0.5"),
        ("open", "a number above 0 and below 1"),
        ("free", "a whole number"),
        ("word", "one of a, b"),
        ("several", None),
        ("either", "a number of at least 0 or adaptive"),
    ],
)
def test_limits_are_told_in_words(name: str, words: str | None) -> None:
    assert expectation(Kinds.model_fields[name]) == words


def test_every_setting_is_documented() -> None:
    documented = dict(documented_fields())
    names = set(Experiment.model_fields) | {f"execution.{name}" for name in Execution.model_fields}
    names |= {f"method.{name}" for name in ("server_lr", "warmup_rounds", "quiz_size", "guide_init")}
    assert names <= documented.keys()
    assert all(not text.startswith("None") and len(text) > 15 for text in documented.values())
    for sign in ("Ge(", "Gt(", "ge=", "Literal", "typing", "<class", "NoneType", " | ", "Validator", "Registry"):
        assert not [name for name, text in documented.items() if sign in text], sign


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("batch_size", "(a whole number of at least 1; default 10)"),
        ("samples", "(a whole number of at least 2; absent by default)"),
        ("dataset", '(text that is not empty; default "digits")'),
        ("reshuffle", "(true or false; absent by default)"),
        ("execution.profile", "(true or false; default false)"),
        ("protocol", '(one of ours, paper; default "ours")'),
        ("execution.engine", '(one of inline, workers, flower; default "inline")'),
        ("noise.scale", '(one of absolute, relative; default "absolute")'),
        ("privacy", "(a table of settings)"),
        ("method", "(a name or a table of settings)"),
    ],
)
def test_explain_ends_with_what_a_setting_may_be(name: str, end: str) -> None:
    assert explain(name).splitlines()[0].endswith(end)  # a table goes on with its settings


@pytest.mark.parametrize(
    ("name", "said"),
    [("round", "did you mean 'rounds'? `fedl2g explain` lists"), ("engine", "did you mean 'execution.engine'?")],
)
def test_explain_knows_the_nearest_setting(name: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        explain(name)
    assert said in str(caught.value)
