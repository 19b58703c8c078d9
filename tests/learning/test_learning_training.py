"""The one training loop: which samples, which steps, which loss is recorded."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedl2g.learning.client import Client, Task
from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.learning.preparation import ImagePreparation
from fedl2g.learning.training import SampleView, at_least_two, train, training_batches
from fedl2g.models import SplitModel
from fedl2g.schema import image_schema

CPU = torch.device("cpu")


def view_of(samples: int, dtype: torch.dtype = torch.float64) -> SampleView:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (samples + 5, 1, 2, 2), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (samples + 5,), generator=generator)
    return SampleView(images, labels, torch.arange(5, samples + 5), device=CPU, prepare=ImagePreparation(dtype))


def network(dtype: torch.dtype = torch.float64) -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3)).to(dtype)


def client_with(samples: int, **settings: Any) -> Client:
    task = Task(
        classes=3,
        inputs=image_schema(1, 2, 2),
        seed=9,
        rounds=5,
        auxiliary="small_cnn",
        dtype=torch.float64,
        **settings,
    )
    return Client(4, task, network(), view_of(samples), view_of(3))


@pytest.mark.parametrize(
    ("samples", "sizes"), [(1, [1]), (9, [9]), (10, [10]), (11, [10]), (29, [10, 10]), (30, [10] * 3)]
)
def test_incomplete_batches_are_dropped_but_never_all(samples: int, sizes: list[int]) -> None:
    order = torch.randperm(samples)
    batches = training_batches(order, 10)
    assert [len(batch) for batch in batches] == sizes
    assert torch.equal(torch.cat(batches), order[: sum(sizes)])


def test_a_batch_is_scaled_to_plus_minus_one() -> None:
    images = torch.tensor([0, 51, 255, 127], dtype=torch.uint8).reshape(4, 1, 1, 1)
    view = SampleView(
        images, torch.tensor([2, 0, 1, 1]), torch.tensor([2, 0, 1]), device=CPU, prepare=ImagePreparation(torch.float64)
    )
    x, y = view.batch(torch.tensor([0, 2]))
    assert x.flatten().tolist() == pytest.approx([1.0, -0.6])
    assert y.tolist() == [1, 0]
    assert len(view.subset(torch.tensor([1]))) == 1
    assert view.subset(torch.tensor([1])).batch(torch.tensor([0]))[0].item() == -1.0
    assert [len(y) for _, y in view.batches(2)] == [2, 1]


def test_one_sample_is_repeated_and_more_are_left_alone() -> None:
    x, y = torch.randn(1, 3, 2, 2), torch.tensor([1])
    twice, labels = at_least_two(x, y)
    assert torch.equal(twice, torch.cat([x, x]))
    assert labels.tolist() == [1, 1]
    x, y = torch.randn(2, 3, 2, 2), torch.tensor([1, 0])
    assert at_least_two(x, y) == (x, y)


@pytest.mark.parametrize("clip", [0.05, 3.0, 100.0, math.inf])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_step_equals_torch_sgd_with_clipped_norm(clip: float, dtype: torch.dtype, close: float) -> None:
    ours = network(dtype)
    theirs = copy.deepcopy(ours)
    stepper = ClippedSGD(ours.parameters(), lr=0.1, clip=clip)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    norms = []
    for step in range(5):
        x, y = view_of(30, dtype).batch(torch.arange(step * 5, step * 5 + 5))
        for model in (ours, theirs):
            (20 * F.cross_entropy(model(x)[1], y)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip).item())
        stepper.step()
        optimizer.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in ours.parameters())
    assert min(norms) > 3.0  # the small limits act, the large ones do not
    assert max(norms) < 100.0
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_step_leaves_frozen_and_unused_parameters_alone(dtype: torch.dtype) -> None:
    model = network(dtype)
    model.head.bias.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    stepper = ClippedSGD(model.parameters(), lr=1.0, clip=1.0)
    stepper.step()  # no gradients at all
    model.extractor(torch.ones(2, 1, 2, 2, dtype=dtype)).sum().backward()
    stepper.step()
    after = model.state_dict()
    assert torch.equal(before["head.bias"], after["head.bias"])
    assert torch.equal(before["head.weight"], after["head.weight"])
    assert not torch.equal(before["extractor.1.weight"], after["extractor.1.weight"])


def test_the_loop_equals_plain_pytorch_and_records_cross_entropy_alone() -> None:
    view, ours = view_of(23), network()
    theirs = copy.deepcopy(ours)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(2))

    def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = ours(x)
        cross_entropy = F.cross_entropy(logits, y)
        return cross_entropy + 5 * features.square().mean(), cross_entropy

    log = train(view, loss, [ClippedSGD(ours.parameters(), 0.1, clip=1.0)], [order, order.flip(0)], 10)

    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    recorded = []
    for epoch in (order, order.flip(0)):
        for start in (0, 10):  # the last three are dropped
            x, y = view.batch(epoch[start : start + 10])
            features, logits = theirs(x)
            cross_entropy = F.cross_entropy(logits, y)
            recorded.append(cross_entropy.item())
            optimizer.zero_grad()
            (cross_entropy + 5 * features.square().mean()).backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            optimizer.step()
    assert log.steps == 4
    assert log.cross_entropy == pytest.approx(sum(recorded) / 4, rel=1e-12)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_no_epochs_train_nothing() -> None:
    log = train(view_of(10), lambda x, y: (x.sum(), x.sum()), [], [], 10)
    assert (log.steps, log.cross_entropy) == (0, None)


def orders_of(client: Client, round: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The positions of the batches that a client trains on in a round."""
    seen: list[list[int]] = []
    real = SampleView.batch
    with monkeypatch.context() as patch:
        patch.setattr(SampleView, "batch", lambda view, where: seen.append(where.tolist()) or real(view, where))
        log = client.fit(round, lambda x, y: (F.cross_entropy(client.model(x)[1], y),) * 2)
    assert log.steps == len(seen)
    return seen


def test_reshuffling_draws_a_new_order_for_each_epoch_and_round(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_with(25, local_epochs=2)
    first, second = (orders_of(client, round, monkeypatch) for round in (1, 2))
    epochs = [first[:2], first[2:], second[:2], second[2:]]
    assert len({str(epoch) for epoch in epochs}) == 4
    for epoch in epochs:
        positions = [position for batch in epoch for position in batch]
        assert len(set(positions)) == 20
        assert set(positions) <= set(range(25))
    assert orders_of(client_with(25, local_epochs=2), 1, monkeypatch) == first


def test_without_reshuffling_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_with(25, local_epochs=2, reshuffle=False)
    first, second = (orders_of(client, round, monkeypatch) for round in (1, 2))
    assert first == second
    assert first[:2] == first[2:]


def test_fit_trains_in_train_mode_and_leaves_the_global_generator_alone() -> None:
    client = client_with(25)
    client.model.eval()
    modes = []

    def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        modes.append(client.model.training)
        torch.rand(3)  # as dropout would
        return (F.cross_entropy(client.model(x)[1], y),) * 2

    state = torch.get_rng_state()
    client.fit(1, loss)
    assert modes == [True, True]
    assert torch.equal(torch.get_rng_state(), state)
