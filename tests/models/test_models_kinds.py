"""Networks for signals, tables and texts: their shapes, their masks, and the guiding gradient through each layer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

from fedl2g.errors import SettingError
from fedl2g.learning.guidance import Space, guidance, guiding_gradient
from fedl2g.models import SplitModel, build_model
from fedl2g.models.catalog import GROUPS
from fedl2g.models.example import example_batch
from fedl2g.models.size import count
from fedl2g.schema import Column, Schema, image_schema

SIGNAL = Schema("signal", (3, 40))
TABLE = Schema("table", (4,), (Column("a"), Column("b", ("x", "y", "z")), Column("c"), Column("d", ("p", "q"))))
TEXT = Schema("text", (12,), vocabulary=50)
OF_GROUP = {"sensor": SIGNAL, "table": TABLE, "text": TEXT}
ALL = [(name, inputs) for group, inputs in OF_GROUP.items() for name in GROUPS[group]]


@pytest.mark.parametrize(("name", "inputs"), ALL)
def test_features_have_the_common_width(name: str, inputs: Schema) -> None:
    for width in (512, 96):
        with torch.device("meta"):
            model = build_model(name, classes=5, inputs=inputs, feature_dim=width)
        features, logits = model(example_batch(inputs, 3, device="meta"))
        assert (tuple(features.shape), tuple(logits.shape)) == ((3, width), (3, 5))


@pytest.mark.parametrize("group", OF_GROUP)
def test_the_networks_of_a_group_differ_in_size(group: str) -> None:
    sizes = [count(build_model(name, classes=5, inputs=OF_GROUP[group])) for name in GROUPS[group]]
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("name", GROUPS["text"])
def test_padding_changes_nothing(name: str) -> None:
    torch.manual_seed(1)
    model = build_model(name, classes=3, inputs=TEXT).double().eval()
    short = torch.tensor([[3, 9, 4]])
    padded = torch.cat([short, torch.zeros(1, 6, dtype=torch.int64)], dim=1)
    other = torch.arange(1, 10)[None]
    with torch.no_grad():
        alone, wide, beside = model(short)[1], model(padded)[1], model(torch.cat([padded, other]))[1][:1]
    torch.testing.assert_close(wide, alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(beside, alone, rtol=0, atol=1e-12)


def test_the_last_word_counts() -> None:
    for name in GROUPS["text"]:
        torch.manual_seed(1)
        model = build_model(name, classes=3, inputs=TEXT).eval()
        with torch.no_grad():
            assert not torch.equal(model(torch.tensor([[3, 9, 4]]))[1], model(torch.tensor([[3, 9, 5]]))[1])


@pytest.mark.parametrize("name", GROUPS["sensor"])
def test_the_level_and_the_strength_of_a_signal_count(name: str) -> None:
    """Also of a single channel: what tells rest from motion must not be normalised away."""
    torch.manual_seed(1)
    model = build_model(name, classes=3, inputs=Schema("signal", (1, 64))).eval()
    x = torch.sin(torch.arange(64.0)).reshape(1, 1, 64)
    with torch.no_grad():
        plain, stronger, higher = (model(values)[1] for values in (x, 3 * x, x + 2))
    assert (plain - stronger).abs().max() > 1e-3
    assert (plain - higher).abs().max() > 1e-3


def test_a_network_for_another_kind_is_refused_with_the_group_to_choose() -> None:
    with pytest.raises(SettingError, match="small_cnn takes images, but the data are texts; choose the group text"):
        build_model("small_cnn", classes=2, inputs=TEXT)
    with pytest.raises(SettingError, match="table_mlp takes rows of a table, but the data are images"):
        build_model("table_mlp", classes=2, inputs=image_schema(3, 8, 8))


def batches(inputs: Schema) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    torch.manual_seed(7)
    x = example_batch(inputs, 9, dtype=torch.float64)
    if inputs.kind == "text":
        x = torch.randint(1, inputs.vocabulary, x.shape)
        for row, length in zip(x, (12, 1, 5, 7, 3, 12, 2, 9, 4), strict=True):
            row[length:] = 0
    y = torch.tensor([0, 1, 2, 0, 2, 2, 1, 0, 1])
    return (x[:5], y[:5]), (x[5:], y[5:])


@pytest.mark.parametrize("space", ["features", "logits"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("name", "inputs"), ALL)
def test_the_guiding_gradient_equals_double_backward(
    name: str, inputs: Schema, training: bool, space: Space, double_backward: Callable[..., Tensor]
) -> None:
    """GRU, embedding, 1-D convolution, attention with masks and LayerNorm, in float64; in train mode with dropout."""
    torch.manual_seed(3)
    model = build_model(name, classes=3, inputs=inputs, feature_dim=16).double().train(training)
    study, quiz = batches(inputs)
    guide = torch.randn(3, 16 if space == "features" else 3, dtype=torch.float64)
    ids, rows = guiding_gradient(model, study, quiz, guide, lr=0.3, space=space)
    expected = double_backward(model, study, quiz, guide, 0.3, space)
    assert expected.abs().max() > 1e-9
    torch.testing.assert_close(rows, expected[ids], rtol=1e-9, atol=1e-14)


class _Cube(Function):
    """An operation with two backward derivatives and no forward one."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class _Cubes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Cube.apply(x)  # type: ignore[no-any-return]


def test_without_a_forward_derivative_it_falls_back_once_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(2)
    extractor = nn.Sequential(nn.Linear(4, 6), _Cubes(), nn.Dropout(0.5))
    model = SplitModel(extractor, nn.Linear(6, 3)).double().eval()
    twin = SplitModel(nn.Sequential(nn.Linear(4, 6), _Power()), nn.Linear(6, 3)).double()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(9, 4, dtype=torch.float64)
    y = torch.arange(9) % 3
    study, quiz = (x[:5], y[:5]), (x[5:], y[5:])
    guide = torch.randn(3, 3, dtype=torch.float64)
    with caplog.at_level(logging.WARNING):
        found = [guidance(model, study, quiz, guide, lr=0.3, space="logits") for _ in range(3)]
        other = SplitModel(nn.Sequential(nn.Linear(4, 6), _Cubes(), nn.Dropout(0.5)), nn.Linear(6, 3)).double()
        guidance(other, study, quiz, guide, lr=0.3, space="logits")  # another client's
    assert [record.message.count("double backward") for record in caplog.records] == [1]
    wanted = guidance(twin, study, quiz, guide, lr=0.3, space="logits")
    for one in found:
        torch.testing.assert_close(one.rows, wanted.rows, rtol=1e-10, atol=1e-14)
        assert one.alignment == pytest.approx(wanted.alignment, rel=1e-9)
    model.train()  # the study pass's dropout mask is drawn again, whichever way
    masked = [_rows_with_seed(model, study, quiz, guide) for _ in range(2)]
    for one, other in pairwise(masked):
        assert torch.equal(one, other)


def _rows_with_seed(
    model: nn.Module, study: tuple[Tensor, Tensor], quiz: tuple[Tensor, Tensor], guide: Tensor
) -> Tensor:
    torch.manual_seed(11)
    return guidance(model, study, quiz, guide, lr=0.3, space="logits").rows


class _Power(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3
