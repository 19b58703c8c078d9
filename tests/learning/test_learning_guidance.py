"""The guiding gradient: equal to the definition, without side effects, without a second-order graph."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torchvision.models import VisionTransformer

from fedl2g import guiding_gradient
from fedl2g.learning.guidance import guidance
from fedl2g.models import SplitModel, build_model
from fedl2g.models.split import FeaturePool
from fedl2g.schema import image_schema

CLASSES, WIDTH, LR = 7, 32, 0.05
SHAPE = (3, 16, 16)

Reference = Callable[..., Tensor]


def built(name: str) -> SplitModel:
    return build_model(name, classes=CLASSES, inputs=image_schema(*SHAPE), feature_dim=WIDTH)


def transformer() -> SplitModel:
    """A small ViT with dropout in its blocks and in its attention."""
    network = VisionTransformer(
        image_size=16,
        patch_size=8,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        mlp_dim=48,
        dropout=0.1,
        attention_dropout=0.1,
        num_classes=CLASSES,
    )
    network.heads = FeaturePool(WIDTH)
    return SplitModel(network, nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, CLASSES)))


class Tied(nn.Module):
    """One weight used twice: its derivative has two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x.flatten(1)[:, :WIDTH]))))


class Counting(nn.Module):
    """Keeps a running mean of its own, as no layer of PyTorch does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        features = x.flatten(1)[:, :WIDTH]
        self.seen.mul_(0.9).add_(features.detach().mean(0))
        return features


class Remembering(nn.Module):
    """Answers by a mean that it keeps in a new tensor after every pass, unless it is forgetful."""

    forgetful = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        features = self.layer(x.flatten(1)[:, :WIDTH])
        seen = 0.5 * self.seen + features.detach().mean(0)
        if not self.forgetful:
            self.seen = seen
        return features * seen


NETWORKS: dict[str, Callable[[], SplitModel]] = {
    "small_cnn": lambda: built("small_cnn"),
    "cnn4": lambda: built("cnn4"),
    "small_resnet": lambda: built("small_resnet"),
    "resnet10": lambda: built("resnet10"),
    "small_googlenet": lambda: built("small_googlenet"),  # dropout inside the extractor
    "small_mobilenet": lambda: built("small_mobilenet"),
    "transformer": transformer,
    "counting": lambda: SplitModel(nn.Sequential(Counting(), nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES)),
    "remembering": lambda: SplitModel(Remembering(), nn.Linear(WIDTH, CLASSES)),
    "tied": lambda: SplitModel(Tied(), nn.Linear(WIDTH, CLASSES)),
}


def problem(name: str, space: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    torch.manual_seed(len(name))
    model = NETWORKS[name]().to(dtype).train()
    for _ in range(2):  # running statistics and weights that are not those of the first moment
        F.cross_entropy(model(torch.randn(6, *SHAPE, dtype=dtype))[1], torch.arange(6)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
                p.grad = None
    study = torch.randn(9, *SHAPE, dtype=dtype), torch.tensor([5, 1, 1, 3, 5, 5, 0, 3, 1])
    quiz = torch.randn(8, *SHAPE, dtype=dtype), torch.tensor([6, 1, 0, 3, 2, 5, 5, 4])
    guide = torch.randn(CLASSES, CLASSES if space == "logits" else WIDTH, dtype=dtype)
    return {"model": model, "study": study, "quiz": quiz, "guide": guide, "lr": LR, "space": space}


def scattered(ids: Tensor, rows: Tensor, guide: Tensor) -> Tensor:
    whole = torch.zeros_like(guide)
    whole[ids] = rows
    return whole


@pytest.mark.parametrize("space", ["logits", "features"])
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "remembering"])  # the reference remembers
def test_equals_the_double_backward(name: str, space: str, double_backward: Reference) -> None:
    given = problem(name, space)
    expected = double_backward(**given)
    ids, rows = guiding_gradient(**given)
    found = scattered(ids, rows, given["guide"])
    assert expected.abs().max() > 1e-7  # a reference of zeros would prove nothing
    assert (found - expected).norm() <= 1e-9 * expected.norm()
    assert (found - expected).abs().max() <= 1e-9 * expected.abs().max()


@pytest.mark.parametrize("weight", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("space", ["logits", "features"])
@pytest.mark.parametrize("name", ["small_cnn", "small_googlenet"])
def test_a_weighted_pull_equals_the_double_backward(
    name: str, space: str, weight: float, double_backward: Reference
) -> None:
    given = {**problem(name, space), "weight": weight}
    expected = double_backward(**given)
    found = scattered(*guiding_gradient(**given), given["guide"])
    assert (expected.abs().max() > 1e-7) == (weight > 0)
    assert (found - expected).norm() <= 1e-9 * expected.norm()
    if weight:  # not merely the published gradient times the weight: the pseudo-step moves by the weighted pull too
        published = scattered(*guiding_gradient(**{**given, "weight": 1.0}), given["guide"])
        assert (found - weight * published).norm() > 1e-3 * found.norm()


def cosine_by_definition(model: nn.Module, study: Any, quiz: Any, guide: Tensor, lr: float, space: str, weight: float):
    """The cosine between the quiz gradient after the pseudo-step and the gradient of the MSE, as flat vectors."""

    def flat(gradients: Any) -> Tensor:
        return torch.cat([torch.zeros(0), *(g.flatten() for g in gradients if g is not None)])

    with torch.random.fork_rng(devices=[]):
        features, logits = model(study[0])
        z = features if space == "features" else logits
        own, pull = F.cross_entropy(logits, study[1]), ((z - guide[study[1]]) ** 2).mean()
        parameters = list(model.parameters())
        alone = torch.autograd.grad(pull, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)
        step = torch.autograd.grad(own + weight * pull, parameters)
        moved = {name: p - lr * g for (name, p), g in zip(model.named_parameters(), step, strict=True)}
        quiz_loss = F.cross_entropy(functional_call(model, moved, (quiz[0],))[1], quiz[1])
        return F.cosine_similarity(flat(torch.autograd.grad(quiz_loss, list(moved.values()))), flat(alone), dim=0)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("space", ["logits", "features"])
@pytest.mark.parametrize("name", ["small_cnn", "small_resnet", "small_googlenet"])
def test_alignment_is_the_cosine_of_the_two_gradients(name: str, space: str, weight: float) -> None:
    given = {**problem(name, space), "weight": weight}
    expected = cosine_by_definition(**given).item()
    assert 1e-4 < abs(expected) < 1
    assert guidance(**given).alignment == pytest.approx(expected, rel=1e-9)


def test_alignment_is_one_for_a_pull_along_the_quiz_gradient_and_minus_one_against_it() -> None:
    """A linear head on fixed features: at guide = z - c * dCE/dz the two gradients are parallel."""
    given = problem("small_cnn", "logits")
    for p in given["model"].extractor.parameters():
        p.requires_grad_(False)
    x, _ = given["study"]
    y = torch.arange(7)  # each class once, so that each sample has a guiding vector of its own
    given |= {"study": (x[:7], y), "quiz": (x[:7], y), "lr": 0.0}
    logits = given["model"](x[:7])[1].detach()
    residual = logits.softmax(1) - F.one_hot(y, CLASSES)
    for sign in (1, -1):
        assert guidance(**{**given, "guide": logits - sign * residual}).alignment == pytest.approx(sign, abs=1e-12)


def test_alignment_of_a_vanishing_pull_is_zero() -> None:
    given = problem("small_cnn", "features")
    for p in given["model"].extractor.parameters():
        p.requires_grad_(False)
    assert guidance(**given).alignment == 0.0


@pytest.mark.parametrize("space", ["logits", "features"])
def test_equals_central_differences_of_the_quiz_loss(space: str) -> None:
    """A third opinion that uses no derivative rule at all for the guide."""
    given = problem("transformer", space)
    model, (x, y), quiz, guide = given["model"].eval(), given["study"], given["quiz"], given["guide"]

    def quiz_loss(at: Tensor) -> float:
        moved = copy.deepcopy(model)
        features, logits = moved(x)
        z = features if space == "features" else logits
        (F.cross_entropy(logits, y) + F.mse_loss(z, at[y])).backward()
        with torch.no_grad():
            for p in moved.parameters():
                p -= LR * p.grad
            return F.cross_entropy(moved(quiz[0])[1], quiz[1]).item()

    found = scattered(*guiding_gradient(**given), guide)
    for entry in [(5, 0), (1, 2), (3, 4), (6, 1)]:  # class 6 is not in the study batch
        offset = torch.zeros_like(guide)
        offset[entry] = 1e-2
        difference = (quiz_loss(guide + offset) - quiz_loss(guide - offset)) / 2e-2
        assert found[entry].item() == pytest.approx(difference, rel=1e-5, abs=1e-9)


def test_rows_are_the_classes_of_the_study_batch_in_ascending_order() -> None:
    ids, rows = guiding_gradient(**problem("small_cnn", "features"))
    assert ids.tolist() == [0, 1, 3, 5]
    assert rows.shape == (4, WIDTH)
    assert not rows.requires_grad


def test_scales_with_the_clients_rate_and_is_zero_at_rate_zero() -> None:
    given = problem("small_cnn", "logits")
    assert guiding_gradient(**{**given, "lr": 0.0})[1].abs().max() == 0
    tiny_rate, half = (guiding_gradient(**{**given, "lr": lr})[1] for lr in (2e-7, 1e-7))
    torch.testing.assert_close(tiny_rate, 2 * half, rtol=1e-4, atol=0)


def test_features_that_no_parameter_moves_get_zero_rows() -> None:
    given = problem("small_cnn", "features")
    for p in given["model"].extractor.parameters():
        p.requires_grad_(False)
    ids, rows = guiding_gradient(**given)
    assert ids.tolist() == [0, 1, 3, 5]
    assert torch.equal(rows, torch.zeros(4, WIDTH, dtype=torch.float64))


def test_frozen_parameters_do_not_take_part(double_backward: Reference) -> None:
    given = problem("small_cnn", "logits")
    model = given["model"]
    for p in model.extractor.parameters():
        p.requires_grad_(False)
    with torch.no_grad():
        features = model.extractor(given["study"][0]), model.extractor(given["quiz"][0])
    head = SplitModel(nn.Identity(), model.head)
    expected = double_backward(
        head, (features[0], given["study"][1]), (features[1], given["quiz"][1]), given["guide"], LR, "logits"
    )
    found = scattered(*guiding_gradient(**given), given["guide"])
    assert (found - expected).norm() <= 1e-9 * expected.norm()


def everything(model: nn.Module) -> dict[str, Any]:
    return {
        "tensors": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "identities": {name: (id(t), t.data_ptr()) for name, t in [*model.named_parameters(), *model.named_buffers()]},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "needs": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": {name: (m.training, getattr(m, "track_running_stats", None)) for name, m in model.named_modules()},
        "random": torch.get_rng_state(),
    }


def assert_untouched(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert torch.equal(before["random"], after["random"])
    for part in ("identities", "needs", "modes"):
        assert before[part] == after[part], part
    assert before["tensors"].keys() == after["tensors"].keys()
    for name, tensor in before["tensors"].items():
        assert torch.equal(tensor, after["tensors"][name]), name
    for name, gradient in before["gradients"].items():
        now = after["gradients"][name]
        assert (gradient is None and now is None) or torch.equal(gradient, now), name


@pytest.mark.parametrize("mixed", [False, True], ids=["train mode", "mixed modes and old gradients"])
@pytest.mark.parametrize("name", ["small_cnn", "small_resnet", "small_googlenet", "transformer", "counting"])
def test_changes_nothing(name: str, mixed: bool) -> None:
    given = problem(name, "features", torch.float32)
    model = given["model"]
    if mixed:
        for number, module in enumerate(model.modules()):
            module.training = number % 3 != 0
        for number, p in enumerate(model.parameters()):
            p.grad = torch.full_like(p, float(number)) if number % 2 else None
    before = everything(model)
    guiding_gradient(**given)
    assert_untouched(before, everything(model))


def test_no_pass_sees_what_another_one_left_in_a_buffer() -> None:
    given = problem("remembering", "features")
    network = given["model"].extractor
    before = network.seen
    found = guiding_gradient(**given)[1]
    assert network.seen is before
    network.forgetful = True
    torch.testing.assert_close(found, guiding_gradient(**given)[1], rtol=1e-12, atol=0)


def test_is_the_same_inside_no_grad() -> None:
    given = problem("small_cnn", "features")
    outside = guiding_gradient(**given)[1]
    with torch.no_grad():
        assert torch.equal(guiding_gradient(**given)[1], outside)
        assert not torch.is_grad_enabled()


def test_the_random_stream_decides_the_dropout_masks() -> None:
    given = problem("small_googlenet", "features")
    torch.manual_seed(1)
    first, again = guiding_gradient(**given)[1], guiding_gradient(**given)[1]
    torch.manual_seed(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, guiding_gradient(**given)[1])


class FailsAtCall(nn.Module):
    """Raises in one of the three passes: study, quiz, Jacobian."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.left = call

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("out of memory")
        return F.dropout(x, 0.5, self.training)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_leaves_the_model_as_it_was_when_a_pass_fails(call: int) -> None:
    given = problem("small_resnet", "features", torch.float32)
    given["model"].head = nn.Sequential(FailsAtCall(call), given["model"].head)
    before = everything(given["model"])
    with pytest.raises(RuntimeError, match="out of memory"):
        guiding_gradient(**given)
    assert_untouched(before, everything(given["model"]))


def test_no_gradient_is_taken_with_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    real = torch.autograd.grad

    def recorded(*args: Any, create_graph: bool = False, **more: Any) -> Any:
        taken.append(create_graph)
        return real(*args, create_graph=create_graph, **more)

    monkeypatch.setattr(torch.autograd, "grad", recorded)
    guiding_gradient(**problem("small_resnet", "features"))
    assert taken == [False, False, False]  # the pseudo-step, the pull alone, the quiz


class Saved:
    """A tensor that a graph keeps for its backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def peak_of_saved_bytes(work: Callable[[], object]) -> int:
    """The most bytes that graphs kept alive at one time while `work` ran."""
    now = peak = 0

    def freed(size: int) -> None:
        nonlocal now
        now -= size

    def pack(tensor: Tensor) -> Saved:
        nonlocal now, peak
        kept = Saved(tensor)
        now += tensor.nbytes
        peak = max(peak, now)
        weakref.finalize(kept, freed, tensor.nbytes)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        work()
    return peak


@pytest.mark.parametrize("name", ["small_cnn", "small_resnet", "small_googlenet"])
def test_keeps_no_more_than_a_plain_training_step_does(name: str, double_backward: Reference) -> None:
    given = problem(name, "features", torch.float32)
    model, (x, y) = given["model"], given["study"]

    def plain_step() -> None:
        features, logits = model(x)
        objective = F.cross_entropy(logits, y) + F.mse_loss(features, given["guide"][y])
        torch.autograd.grad(objective, list(model.parameters()))

    plain = peak_of_saved_bytes(plain_step)
    assert peak_of_saved_bytes(lambda: guiding_gradient(**given)) <= 1.05 * plain
    assert peak_of_saved_bytes(lambda: double_backward(**given)) > 2 * plain  # what the second order would keep
