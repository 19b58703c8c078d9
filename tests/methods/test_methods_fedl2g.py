"""FedL2G's two halves: the server step by hand, a client's round against an independent reference, what is sent."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedl2g import rng
from fedl2g.engines.host import Host
from fedl2g.errors import PayloadError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.experiment.policies import Aggregation
from fedl2g.learning.client import Task
from fedl2g.learning.training import SampleView
from fedl2g.methods.base import Reply, Report, ServerHalf
from fedl2g.methods.fedl2g import (
    FeatureOptions,
    FedL2GClient,
    FedL2GServer,
    GuideWeight,
    LogitOptions,
    initial_guide,
)
from fedl2g.methods.registry import get_method
from fedl2g.payload import PRESENT, Payload, check_payload
from fedl2g.round.aggregator import ByRule
from fedl2g.schema import image_schema
from fedl2g.setup import Setup
from fedl2g.uploads.dense import Dense

TASK = Task(
    classes=3, inputs=image_schema(1, 8, 8), seed=5, rounds=1, auxiliary="small_cnn", feature_dim=2, dtype=torch.float64
)
CPU = torch.device("cpu")
F32 = torch.float32


def server_with(guide: list[list[float]], **options: Any) -> FedL2GServer:
    server = FedL2GServer(FeatureOptions(**options), TASK)
    server.load_state_dict({**server.state_dict(), "guide": torch.tensor(guide, dtype=torch.float64)})
    return server


def reply(client: int, rows: dict[int, list[float]], dtype: torch.dtype = torch.float64) -> Reply:
    payload = {"ids": torch.tensor(list(rows)), "rows": torch.tensor(list(rows.values()), dtype=dtype)}
    return Reply(client, payload, Report(samples=10))


def update(server: FedL2GServer, round: int, replies: list[Reply]) -> None:
    """What the federation does with the replies of a round."""
    combined = ByRule(Aggregation(), get_method("fedl2g-f").traits, server.expected()).combine(round, replies, {})
    if combined is not None:
        server.update(round, combined)


def check(server: ServerHalf[Any], payload: Payload) -> None:
    check_payload(payload, server.expected())


def test_server_averages_each_class_over_those_who_sent_it() -> None:
    server = server_with([[1.0, 1.0], [7.0, -7.0], [0.0, 2.0]], server_lr=0.5)
    update(server, 1, [reply(0, {0: [1.0, 2.0], 2: [3.0, 4.0]}), reply(1, {0: [3.0, 6.0]})])
    assert server.guide.tolist() == [[0.0, -1.0], [7.0, -7.0], [-1.5, 0.0]]
    assert server.metrics() == pytest.approx({"guide_step": 0.5 * 45**0.5, "guide_distance": 0.5 * 45**0.5})


def test_distance_adds_up_over_rounds() -> None:
    server = server_with([[0.0, 0.0]] * 3, server_lr=1.0)
    update(server, 1, [reply(0, {1: [3.0, 4.0]})])
    update(server, 2, [reply(0, {1: [-3.0, -4.0]})])
    assert server.guide.tolist() == [[0.0, 0.0]] * 3
    assert server.metrics() == {"guide_step": 5.0, "guide_distance": 10.0}


def test_server_clips_the_norm_of_the_whole_gradient() -> None:
    server = server_with([[0.0, 0.0]] * 3, server_lr=2.0)
    update(server, 1, [reply(0, {0: [300.0, 0.0], 1: [0.0, 400.0]})])  # norm 500
    torch.testing.assert_close(
        server.guide, torch.tensor([[-120.0, 0.0], [0.0, -160.0], [0.0, 0.0]], dtype=torch.float64), rtol=1e-7, atol=0
    )
    assert server.metrics()["guide_step"] == pytest.approx(200.0)


def test_server_does_not_touch_a_gradient_below_the_limit() -> None:
    server = server_with([[0.0, 0.0]] * 3, server_lr=1.0)
    update(server, 1, [reply(0, {0: [60.0, 79.0]})])  # norm 99.2
    assert server.guide[0].tolist() == [-60.0, -79.0]


def test_rms_steps_have_one_size_in_every_row_that_was_sent() -> None:
    server = server_with([[1.0, 1.0], [7.0, -7.0], [0.0, 2.0]], server_step="rms", rms_step=0.5)
    update(server, 1, [reply(0, {0: [3e-9, 4e-9], 2: [6e9, -8e9]}), reply(1, {0: [3e-9, 4e-9]})])
    step = 0.5 * 2**0.5  # the norm of a row of two entries whose RMS is 0.5
    expected = [[1 - 0.6 * step, 1 - 0.8 * step], [7.0, -7.0], [-0.6 * step, 2 + 0.8 * step]]
    torch.testing.assert_close(server.guide, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-14)
    assert server.metrics() == pytest.approx({"guide_step": 1.0, "guide_distance": 1.0})


def test_rms_steps_of_zero_tiny_and_huge_rows_are_finite() -> None:
    server = FedL2GServer(FeatureOptions(server_step="rms", guide_init="zeros"), Task(**{**vars(TASK), "dtype": F32}))
    most, least = torch.finfo(F32).max, torch.finfo(F32).smallest_normal / 1024
    rows = {0: [0.0, 0.0], 1: [most, -most], 2: [least, least]}
    update(server, 1, [reply(0, rows, F32)])
    torch.testing.assert_close(server.guide, torch.tensor([[0.0, 0.0], [-0.1, 0.1], [-0.1, -0.1]]))


def test_a_frozen_guide_and_rms_steps_are_refused_together() -> None:
    with pytest.raises(ValueError, match="server_lr 0 keeps the guiding vectors"):
        LogitOptions(server_lr=0, server_step="rms")


def test_the_recommended_preset_fills_in_what_is_not_given() -> None:
    expected = {"quiz": "rotating", "guide_weight": 0.1, "server_step": "rms"}
    logits, features = LogitOptions(preset="recommended"), FeatureOptions(preset="recommended")
    assert logits.model_dump(exclude_defaults=True) == {"preset": "recommended", **expected, "guide_init": "zeros"}
    assert features.model_dump(exclude_defaults=True) == {"preset": "recommended", **expected}
    own = LogitOptions(preset="recommended", guide_weight=0.5, guide_init="normal")
    assert (own.guide_weight, own.guide_init, own.quiz) == (0.5, "normal", "rotating")
    assert LogitOptions(**logits.model_dump()) == logits  # as a file of a run is read back
    assert LogitOptions(preset="paper") == LogitOptions()


@pytest.mark.parametrize("init", ["normal", "zeros", "orthogonal"])
def test_rate_zero_keeps_the_guide_bit_for_bit(init: str) -> None:
    server = FedL2GServer(LogitOptions(server_lr=0.0, guide_init=init), TASK)
    before = server.guide.numpy().tobytes()
    update(server, 1, [reply(0, {0: [1.0, -2.0, 0.0]}), reply(1, {2: [500.0, -500.0, 1e300]})])
    assert server.guide.numpy().tobytes() == before
    assert server.metrics()["guide_distance"] == 0.0


def test_huge_finite_rows_cannot_make_the_guide_infinite() -> None:
    task = Task(**{**vars(TASK), "dtype": torch.float32})
    server = FedL2GServer(FeatureOptions(), task)
    most = torch.finfo(torch.float32).max
    sent = [reply(client, {0: [most, most], 1: [1.0, most]}, torch.float32) for client in range(3)]
    for each in sent:
        check(server, each.payload)
    update(server, 1, sent)
    assert bool(torch.isfinite(server.guide).all())


def test_guide_starts_as_the_option_says() -> None:
    task = Task(**{**vars(TASK), "classes": 20, "feature_dim": 512})
    normal = initial_guide(FeatureOptions(), task)
    assert normal.shape == (20, 512)
    assert normal.dtype == torch.float64
    assert abs(normal.mean().item()) < 0.05
    assert normal.std().item() == pytest.approx(1.0, abs=0.03)
    assert torch.equal(normal, initial_guide(FeatureOptions(server_lr=3), task))
    other = Task(**{**vars(task), "seed": 6})
    assert not torch.equal(normal, initial_guide(FeatureOptions(), other))
    assert initial_guide(LogitOptions(), task).shape == (20, 20)

    assert not initial_guide(FeatureOptions(guide_init="zeros"), task).any()
    rows = initial_guide(FeatureOptions(guide_init="orthogonal"), task)
    torch.testing.assert_close(rows @ rows.T, 512 * torch.eye(20, dtype=torch.float64))
    assert not torch.equal(rows, initial_guide(FeatureOptions(guide_init="orthogonal"), other))


def test_server_state_continues_exactly() -> None:
    first, second = (FedL2GServer(FeatureOptions(server_lr=0.3), TASK) for _ in range(2))
    update(first, 1, [reply(0, {1: [3.0, 4.0]})])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for server in (first, second):
        update(server, 2, [reply(0, {0: [0.1, 0.7]})])
    assert torch.equal(first.guide, second.guide)
    assert first.metrics() == second.metrics()


def test_server_sends_every_class_and_accepts_only_rows_of_its_width() -> None:
    server = FedL2GServer(LogitOptions(), TASK)
    sent = server.broadcast(1)
    assert sent["ids"].tolist() == [0, 1, 2]
    assert torch.equal(sent["rows"], server.guide)
    check(server, reply(0, {2: [1.0, 2.0, 3.0]}).payload)
    with pytest.raises(PayloadError, match="shape"):
        check(server, reply(0, {2: [1.0, 2.0]}).payload)


# ---- the client


@pytest.fixture
def host_of(tiny: Callable[..., Experiment], setup_of: Callable[[Experiment], Setup]) -> Callable[..., Host]:
    def make(**settings: Any) -> Host:
        return Host(setup_of(tiny(precision="float64", **settings)), CPU)

    return make


def pixels(host: Host, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Images in -1..1 and labels, straight from the dataset's array."""
    images = host.setup.dataset.inputs[indices.numpy()].astype(np.float64) / 127.5 - 1.0
    return torch.from_numpy(images), torch.from_numpy(host.setup.dataset.labels[indices.numpy()])


def doubled(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    x, y = batch
    return (torch.cat([x, x]), torch.cat([y, y])) if len(y) == 1 else batch


def reference_round(
    host: Host, client: int, round: int, guide: Tensor, gradient_of: Callable[..., Tensor], weight: float = 1.0
) -> tuple[Any, Tensor, float]:
    """A client's round after METHODS.md: the trained model, dq/dG and the mean cross entropy."""
    half, task = host.half(client), host.task
    assert isinstance(half, FedL2GClient)
    model, space = copy.deepcopy(half.model).train(), half.options.space
    quiz_set, study_set = half.quiz_set.indices, half.study_set.indices
    trained_on = study_set
    if half.options.quiz == "rotating":
        trained_on = torch.from_numpy(host.setup.partition.train[client])
        order = torch.randperm(len(trained_on), generator=rng.torch_stream(task.seed, "quiz", client, round))
        quiz_set, study_set = trained_on[order[:10]], trained_on[order[10:].sort().values]
    optimizer = torch.optim.SGD(model.parameters(), lr=task.client_lr)
    losses = []
    with rng.seeded(task.seed, "train", client, round):
        for epoch in range(task.local_epochs):
            stream = rng.torch_stream(task.seed, "order", client, round, epoch)
            order = torch.randperm(len(trained_on), generator=stream)
            full = len(order) // task.batch_size
            for batch in order[: full * task.batch_size].chunk(full) if full else [order]:
                x, y = doubled(pixels(host, trained_on[batch]))
                features, logits = model(x)
                z = features if space == "features" else logits
                cross_entropy = F.cross_entropy(logits, y)
                optimizer.zero_grad()
                (cross_entropy + weight * ((z - guide[y]) ** 2).sum() / (len(y) * z.shape[1])).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
                optimizer.step()
                losses.append(cross_entropy.item())
    stream = rng.torch_stream(task.seed, "study_batch", client, round)
    chosen = torch.randperm(len(study_set), generator=stream)[: task.batch_size]
    trained = copy.deepcopy(model)
    with rng.seeded(task.seed, "guidance", client, round):
        gradient = gradient_of(
            model,
            doubled(pixels(host, study_set[chosen])),
            doubled(pixels(host, quiz_set)),
            guide,
            lr=task.client_lr,
            space=space,
            weight=weight,
        )
    return trained, gradient, sum(losses) / len(losses)


ROUNDS = [
    pytest.param("fedl2g-f", 1, 10, {}, id="dropout-quiz10"),
    pytest.param("fedl2g-l", 1, 2, {"local_epochs": 2}, id="batchnorm-logits-quiz2"),
    pytest.param("fedl2g-f", 0, 5, {"batch_size": 7}, id="plain-quiz5"),
    pytest.param("fedl2g-l", 2, 1, {}, id="dropout-logits-quiz1"),
    pytest.param("fedl2g-f", 1, 37, {}, id="all-but-one-for-the-quiz"),
    pytest.param("fedl2g-f", 0, 3, {"batch_size": 500}, id="one-smaller-batch"),
]


@pytest.mark.parametrize(("method", "client", "quiz", "settings"), ROUNDS)
@pytest.mark.parametrize("size", [1.0, 1e4], ids=["unclipped", "clipped"])
def test_a_clients_round_equals_the_reference(
    method: str,
    client: int,
    quiz: int,
    settings: dict[str, Any],
    size: float,
    host_of: Callable[..., Host],
    double_backward: Callable[..., Tensor],
) -> None:
    options = {"name": method, "warmup_rounds": 1, "quiz_size": quiz}
    host = host_of(method=options, models="small_cnn,small_resnet,small_googlenet", **settings)
    width = 10 if method == "fedl2g-l" else 512
    guide = size * torch.randn(10, width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    model, gradient, loss = reference_round(host, client, 3, guide, double_backward)

    found = host.train(client, 3, {"ids": torch.arange(10), "rows": guide})
    state = host.half(client).model.state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-11, msg=name)
    rows = torch.zeros_like(gradient)
    rows[found.payload["ids"]] = found.payload["rows"]
    assert gradient.norm() > 0
    assert (rows - gradient).norm() <= 1e-8 * gradient.norm()  # both start from weights that differ by rounding
    assert found.report.loss == pytest.approx(loss, rel=1e-9)
    batch_size, studied = host.task.batch_size, len(host.setup.partition.train[client])
    studied -= min(quiz, studied - 1)
    assert found.report.steps == max(1, studied // batch_size) * host.task.local_epochs
    assert found.report.samples == len(host.setup.partition.train[client])


@pytest.mark.parametrize("size", [1.0, 1e4], ids=["unclipped", "clipped"])
@pytest.mark.parametrize(("method", "width"), [("fedl2g-l", 10), ("fedl2g-f", 512)])
def test_a_round_in_32_bits_is_the_same_up_to_rounding(
    method: str, width: int, size: float, tiny: Callable[..., Experiment], setup_of: Callable[[Experiment], Setup]
) -> None:
    """The compiled loss and step, which the rounds above leave to torch since they are in float64."""
    options = {"name": method, "warmup_rounds": 0}
    settings = [tiny(precision=precision, method=options, models="small_cnn") for precision in ("float32", "float64")]
    exact, quick = (Host(setup_of(experiment), CPU) for experiment in reversed(settings))
    guide = size * torch.randn(10, width, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = exact.train(0, 1, {"ids": torch.arange(10), "rows": guide})
    found = quick.train(0, 1, {"ids": torch.arange(10), "rows": guide.float()})
    assert found.report.loss == pytest.approx(expected.report.loss, rel=1e-4)
    for p, q in zip(quick.half(0).model.parameters(), exact.half(0).model.parameters(), strict=True):
        assert p.dtype == torch.float32
        torch.testing.assert_close(p.double(), q, rtol=1e-3, atol=1e-5)


def test_guidance_pulls_harder_than_the_clip_allows(host_of: Callable[..., Host]) -> None:
    """Without the clip at 100 the "clipped" rounds above would throw the weights away: the limit does act there."""
    host = host_of(method__name="fedl2g-f", clients=3)
    before = {name: p.clone() for name, p in host.half(0).model.named_parameters()}
    guide = 1e4 * torch.ones(10, 512, dtype=torch.float64)
    report = host.train(0, 3, {"ids": torch.arange(10), "rows": guide}).report
    moved = torch.stack([(p - before[n]).norm() for n, p in host.half(0).model.named_parameters()]).norm().item()
    per_step = host.task.client_lr * 100
    assert 0.5 * per_step < moved <= report.steps * per_step * (1 + 1e-9)


@pytest.mark.parametrize("client", [0, 1, 2])
def test_warm_up_leaves_the_model_bit_identical(client: int, host_of: Callable[..., Host]) -> None:
    host = host_of(method__warmup_rounds=2)
    model = host.half(client).model
    before = copy.deepcopy(model.state_dict())
    guide = torch.randn(10, 512, dtype=torch.float64)
    sent = [host.train(client, round, {"ids": torch.arange(10), "rows": guide}) for round in (1, 2)]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [(r.report.steps, r.report.loss) for r in sent] == [(0, None), (0, None)]
    assert all(r.payload["rows"].norm() > 0 for r in sent)
    assert not torch.equal(sent[0].payload["rows"], sent[1].payload["rows"])  # another study batch
    assert host.train(client, 3, {"ids": torch.arange(10), "rows": guide}).report.steps > 0
    assert not all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("quiz", [1, 2, 5, 10, 37])
def test_the_quiz_set_is_fixed_and_never_trained_on(
    quiz: int, host_of: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(method__quiz_size=quiz, models="small_cnn", method__warmup_rounds=0)
    half = host.half(1)
    train = set(host.setup.partition.train[1].tolist())
    quiz_set, study_set = set(half.quiz_set.indices.tolist()), set(half.study_set.indices.tolist())
    assert len(quiz_set) == min(quiz, len(train) - 1)
    assert quiz_set | study_set == train
    assert not quiz_set & study_set
    assert set(host_of(method__quiz_size=quiz).half(1).quiz_set.indices.tolist()) == quiz_set

    seen: list[set[int]] = []
    real = SampleView.batch
    monkeypatch.setattr(
        SampleView, "batch", lambda view, where: seen.append(set(view.indices[where].tolist())) or real(view, where)
    )
    for round in (1, 2):
        seen.clear()
        host.train(1, round, {"ids": torch.arange(10), "rows": torch.zeros(10, 512, dtype=torch.float64)})
        *studied, in_quiz = seen
        assert in_quiz == quiz_set
        assert len(studied) >= 2  # training batches and the study batch of the pseudo-step
        assert all(batch <= study_set for batch in studied)


def assert_round_equals_the_reference(host: Host, client: int, round: int, weight: float, reference: Any) -> Reply:
    """Train one round and compare the model, the upload and the loss with the reference's."""
    width = host.half(client).options.width(host.task)
    guide = torch.randn(10, width, dtype=torch.float64, generator=torch.Generator().manual_seed(round))
    model, gradient, loss = reference_round(host, client, round, guide, reference, weight)
    found = host.train(client, round, {"ids": torch.arange(10), "rows": guide})
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(host.half(client).model.state_dict()[name], tensor, rtol=1e-9, atol=1e-11, msg=name)
    rows = torch.zeros_like(gradient)
    rows[found.payload["ids"]] = found.payload["rows"]
    assert gradient.norm() > 0
    assert (rows - gradient).norm() <= 1e-8 * gradient.norm()
    assert found.report.loss == pytest.approx(loss, rel=1e-9)
    return found


@pytest.mark.parametrize(
    ("method", "options", "weight"),
    [
        ("fedl2g-f", {"quiz": "rotating"}, 1.0),
        ("fedl2g-l", {"guide_weight": 0.25}, 0.25),
        ("fedl2g-f", {"guide_weight": 3.0, "quiz": "rotating"}, 3.0),
    ],
    ids=["rotating", "weight", "both"],
)
def test_a_round_with_options_equals_the_reference(
    method: str,
    options: dict[str, Any],
    weight: float,
    host_of: Callable[..., Host],
    double_backward: Callable[..., Tensor],
) -> None:
    host = host_of(method={"name": method, "warmup_rounds": 0, **options})
    for round in (1, 2):
        assert_round_equals_the_reference(host, 1, round, weight, double_backward)


def test_an_adaptive_weight_follows_the_alignment_and_is_the_weight_of_the_next_round(
    host_of: Callable[..., Host], double_backward: Callable[..., Tensor]
) -> None:
    options = {"name": "fedl2g-l", "guide_weight": "adaptive", "adaptive_rate": 2.0, "warmup_rounds": 1}
    host = host_of(method=options)
    half = host.half(1)
    guide = {"ids": torch.arange(10), "rows": torch.randn(10, 10, dtype=torch.float64)}
    assert host.train(1, 1, guide).report.metrics["alignment"] != 0.0
    assert half.guide_weight == 1.0  # the warm-up leaves the client as it was
    weight = 1.0
    for round in (2, 3):
        alignment = assert_round_equals_the_reference(host, 1, round, weight, double_backward).report.metrics
        weight = min(4.0, weight * math.exp(2.0 * alignment["alignment"]))
        assert half.guide_weight == pytest.approx(weight, rel=1e-12)
    assert weight != 1.0
    assert half.state.state_dict()["guide_weight.value"].item() == half.guide_weight  # saved with the client


def test_an_adaptive_weight_stays_between_zero_and_four() -> None:
    weight = GuideWeight()
    seen = []
    for alignment in (0.5, 1.0, 1.0, -1.0, -1.0, 0.0):
        weight.adapt(1.0, alignment)
        seen.append(weight.value.item())
    assert seen == pytest.approx([math.e**0.5, 4.0, 4.0, 4 / math.e, 4 / math.e**2, 4 / math.e**2])


def test_a_rotating_quiz_is_new_each_round_and_everything_trains(
    host_of: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = host_of(
        method={"name": "fedl2g-l", "quiz": "rotating", "warmup_rounds": 0}, models="small_cnn", batch_size=2
    )
    train = set(host.setup.partition.train[1].tolist())
    assert len(train) % 2 == 0  # so that an epoch drops nothing
    seen: list[set[int]] = []
    real = SampleView.batch
    monkeypatch.setattr(
        SampleView, "batch", lambda view, where: seen.append(set(view.indices[where].tolist())) or real(view, where)
    )
    quizzes = []
    for round in (1, 2, 3):
        seen.clear()
        host.train(1, round, {"ids": torch.arange(10), "rows": torch.zeros(10, 10, dtype=torch.float64)})
        *trained, studied, quiz = seen
        assert set().union(*trained) == train
        assert len(studied) == len(quiz) == 2
        assert not studied & quiz
        quizzes.append(quiz)
    assert len({frozenset(quiz) for quiz in quizzes}) == 3
    other = host_of(
        method={"name": "fedl2g-l", "quiz": "rotating", "warmup_rounds": 0}, models="small_cnn", batch_size=2
    ).half(1)
    other.study_batch(3)  # a function of the round, not of the rounds before it
    assert set(other.quiz_set.indices.tolist()) == quizzes[2]


def test_zero_rows_are_not_sent_and_do_not_count_in_the_mean(host_of: Callable[..., Host]) -> None:
    host = host_of(method__name="fedl2g-f", models="small_cnn")
    for p in host.half(0).model.extractor.parameters():
        p.requires_grad_(False)  # no pull can move its features: its guiding gradient is zero
    guide = {"ids": torch.arange(10), "rows": torch.ones(10, 512, dtype=torch.float64)}
    dead, alive = (host.train(client, 1, guide) for client in (0, 1))
    assert dead.payload["ids"].tolist() == []
    assert dead.payload["rows"].shape == (0, 512)
    assert len(alive.payload["ids"]) > 1
    server = FedL2GServer(FeatureOptions(server_lr=1.0, guide_init="zeros"), host.task)
    check(server, dead.payload)
    rows = torch.ones_like(alive.payload["rows"])
    update(server, 1, [dead, Reply(1, {"ids": alive.payload["ids"], "rows": rows}, Report(samples=10))])
    assert server.guide[alive.payload["ids"]].unique().tolist() == [-1.0]  # -0.5 if zero rows counted
    packed = Dense(10, counted=True).pack(dead.payload)
    assert packed["rows"].shape == (10, 512)
    assert not packed[PRESENT].any()


def test_the_quiz_is_one_batch_and_at_most_half_of_a_clients_samples(host_of: Callable[..., Host]) -> None:
    assert [len(host_of(batch_size=size).half(1).quiz_set) for size in (3, 10, 64)] == [3, 10, 19]  # of 38
    host = host_of()
    client = host.half(0).client
    for samples, expected in {2: 1, 3: 1, 9: 4, 19: 9, 20: 10, 21: 10}.items():
        client.train_set = host.half(1).client.train_set.subset(torch.arange(samples))
        half = FedL2GClient(host.setup.experiment.method, client)
        assert (len(half.quiz_set), len(half.study_set)) == (expected, samples - expected)


def test_a_quiz_that_leaves_nothing_to_study_is_refused(host_of: Callable[..., Host]) -> None:
    assert len(host_of(method__quiz_size=37).half(1).study_set) == 1
    with pytest.raises(
        SettingError, match=r"method.quiz_size: 38 leaves nothing .* the 38 training samples of client 1"
    ):
        host_of(method__quiz_size=38).half(1)


def test_a_client_with_one_sample_is_refused_with_a_sentence(host_of: Callable[..., Host]) -> None:
    host = host_of()
    client = host.half(0).client
    client.train_set = client.train_set.subset(torch.tensor([0]))
    with pytest.raises(SettingError, match="client 0 has 1 training sample"):
        FedL2GClient(host.setup.experiment.method, client)


# ---- what crosses


@pytest.mark.parametrize("method", ["local", "fedl2g-l", "fedl2g-f"])
def test_no_payload_holds_a_tensor_of_the_clients_network(method: str, host_of: Callable[..., Host]) -> None:
    host = host_of(method=method if method == "local" else {"name": method, "warmup_rounds": 0})
    server = host.method.server(host.setup.experiment.method, host.task)
    for round in (1, 2):
        replies = []
        for client in range(3):
            model = host.half(client).model
            before = copy.deepcopy(model.state_dict())
            found = host.train(client, round, server.broadcast(round))
            check(server, found.payload)
            replies.append(found)
            own = [*before.values(), *model.state_dict().values()]
            storages = {tensor.untyped_storage().data_ptr() for tensor in own}
            values = torch.cat([t.double().flatten() for t in own if t.is_floating_point()]).unique()
            for name, tensor in found.payload.items():
                assert tensor.untyped_storage().data_ptr() not in storages
                if tensor.is_floating_point():
                    sent = tensor.double().flatten()
                    assert not torch.isin(sent[sent != 0], values).any(), (name, "repeats values of the network")
            width = {"fedl2g-l": 10, "fedl2g-f": 512}.get(method)
            if width is None:
                assert found.payload == {}
            else:
                ids, rows = found.payload["ids"], found.payload["rows"]
                assert found.payload.keys() == {"ids", "rows"}
                assert rows.shape == (len(ids), width)
                assert len(ids) <= host.task.batch_size
        if method != "local":
            update(server, round, replies)
