"""Bare loops: the arithmetic of a round in plain PyTorch, as the baseline for the package.

The batches are precomputed normalised float tensors; a step is forward, backward, torch's clipping where the method
clips, and `torch.optim.SGD`. Only the networks (and, for the sake of equal work, the shapes of the exchanged tensors)
come from the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from timing import pause
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn import functional as F

from fedl2g.models import SplitModel
from fedl2g.setup import Setup

EVALUATION_BATCH = 250
AUXILIARY = ("fml", "fedkd", "fedmrl")
CLIP = {"fedl2g-l": 100.0, "fedl2g-f": 100.0, "fml": 10.0, "fedkd": 10.0}  # of the gradient norm of each network
Batches = list[tuple[Tensor, Tensor]]


@dataclass
class BareClient:
    """A network and its data, nothing else."""

    model: SplitModel
    batches: Batches
    test: Batches
    study: tuple[Tensor, Tensor]
    quiz: tuple[Tensor, Tensor]
    auxiliary: SplitModel | None = None
    extra: nn.Linear | None = None  # FedKD's map, FedMRL's projector
    targets: Tensor = field(default_factory=lambda: torch.empty(0))
    sums: Tensor = field(default_factory=lambda: torch.empty(0))  # of FedDistill's logits by class

    def modules(self) -> list[nn.Module]:
        return [m for m in (self.model, self.auxiliary, self.extra) if m is not None]


def bare_clients(setup: Setup, method: str) -> list[BareClient]:
    """The clients of a setup, ready to train, each in the memory layout of the setup."""
    task, quiz_size = setup.task, 10 if method.startswith("fedl2g") else 0
    clients = []
    for number in range(setup.experiment.clients):
        architecture = setup.architecture(number)
        model, layout = task.build_client(architecture, number), task.layout(architecture)

        def tensors(indices: Tensor, layout: torch.memory_format = layout) -> tuple[Tensor, Tensor]:
            x = torch.from_numpy(setup.dataset.inputs[indices.numpy()]).float() / 127.5 - 1
            return x.to(memory_format=layout), torch.from_numpy(setup.dataset.labels[indices.numpy()])

        train, test = (torch.as_tensor(part[number]) for part in (setup.partition.train, setup.partition.test))
        quiz, study = train[:quiz_size], train[quiz_size:]
        full = len(study) // task.batch_size * task.batch_size
        client = BareClient(
            model,
            [tensors(chosen) for chosen in study[:full].split(task.batch_size)],
            [tensors(chosen) for chosen in test.split(EVALUATION_BATCH)],
            tensors(study[: task.batch_size]),
            tensors(quiz) if quiz_size else tensors(study[:2]),
        )
        width = task.classes if method in ("fedl2g-l", "feddistill") else task.feature_dim
        client.targets, client.sums = torch.randn(task.classes, width), torch.zeros(task.classes, task.classes)
        if method in AUXILIARY:
            inner = 128 if method == "fedmrl" else task.feature_dim
            client.auxiliary = task.build_auxiliary(inner)
            if method == "fedkd":
                client.extra = nn.Linear(512, 512, bias=False)
            elif method == "fedmrl":
                client.extra = nn.Linear(640, 512)
        clients.append(client)
    return clients


def bare_round(clients: list[BareClient], method: str, lr: float = 0.01) -> Callable[[], None]:
    """A function that runs one round: every client's steps, and one evaluation of all."""
    optimizers = [torch.optim.SGD([p for m in c.modules() for p in m.parameters()], lr=lr) for c in clients]

    def play() -> None:
        for client, optimizer in zip(clients, optimizers, strict=True):
            train(client, optimizer, method)
            if method.startswith("fedl2g"):
                guiding_step(client.model, client.study, client.quiz, client.targets, lr, method == "fedl2g-f")
            elif method == "fedgh":
                features(client)
        for client in clients:
            evaluate(client, method)

    return play


def train(client: BareClient, optimizer: torch.optim.Optimizer, method: str) -> None:
    """The steps of one client's round."""
    for module in client.modules():
        module.train()
    for x, y in client.batches:
        pause()
        optimizer.zero_grad()
        loss(client, method, x, y).backward()
        for module in client.modules() if method in CLIP else ():
            nn.utils.clip_grad_norm_(module.parameters(), CLIP[method])
        optimizer.step()


def loss(client: BareClient, method: str, x: Tensor, y: Tensor) -> Tensor:
    """A method's loss, from its formula."""
    model, targets = client.model, client.targets
    if method == "fedmrl":
        q = _matryoshka(client, x)
        return F.cross_entropy(model.head(q), y) + F.cross_entropy(client.auxiliary.head(q[:, :128]), y)
    h, o = model(x)
    own = F.cross_entropy(o, y)
    if method == "fedl2g-l":
        return own + F.mse_loss(o, targets[y])
    if method == "fedl2g-f":
        return own + F.mse_loss(h, targets[y])
    if method == "fedproto":
        return own + 10 * F.mse_loss(h, targets[y])
    if method == "feddistill":
        client.sums.index_add_(0, y, o.detach())  # what it uploads
        return own + F.cross_entropy(o, targets[y].softmax(1))
    if method not in AUXILIARY:
        return own
    a, u = client.auxiliary(x)
    other = F.cross_entropy(u, y)
    if method == "fml":
        return 0.5 * (own + _kl(u, o) + other + _kl(o, u))
    s = (own + other).detach()
    mapped = F.mse_loss(h, client.extra(a.detach())) + F.mse_loss(client.extra(a), h.detach())
    return own + other + (_kl(u, o) + _kl(o, u) + mapped) / s


def _kl(teacher: Tensor, student: Tensor) -> Tensor:
    return F.kl_div(student.log_softmax(1), teacher.detach().log_softmax(1), reduction="batchmean", log_target=True)


def _matryoshka(client: BareClient, x: Tensor) -> Tensor:
    return client.extra(torch.cat([client.auxiliary.extractor(x), client.model.extractor(x)], 1))


@torch.no_grad()
def evaluate(client: BareClient, method: str) -> int:
    """One pass over the test set, with the predictor of the method."""
    for module in client.modules():
        module.eval()
    correct = 0
    for x, y in client.test:
        pause()
        if method == "fedmrl":
            scores = client.model.head(_matryoshka(client, x))
        elif method == "fedproto":
            h, _ = client.model(x)
            scores = -torch.cdist(h, client.targets, compute_mode="donot_use_mm_for_euclid_dist")
        else:
            scores = client.model(x)[1]
        correct += int((scores.argmax(1) == y).sum())
    return correct


@torch.no_grad()
def features(client: BareClient) -> None:
    """FedGH's pass over the train set in eval mode."""
    client.model.eval()
    for start in range(0, len(client.batches), 25):
        client.model.extractor(torch.cat([x for x, _ in client.batches[start : start + 25]]))


def guiding_step(
    model: SplitModel, study: tuple[Tensor, Tensor], quiz: tuple[Tensor, Tensor], guide: Tensor, lr: float, wide: bool
) -> tuple[Tensor, Tensor]:
    """The guiding gradient and the alignment, as plain calls (statistics are not protected)."""
    model.train()
    parameters = dict(model.named_parameters())
    (x, y), (quiz_x, quiz_y) = study, quiz
    h, o = model(x)
    z = h if wide else o
    pull = F.mse_loss(z, guide[y])
    step = torch.autograd.grad(F.cross_entropy(o, y) + pull, list(parameters.values()), retain_graph=True)
    pull_step = torch.autograd.grad(pull, list(parameters.values()), allow_unused=True)
    moved = {n: (p - lr * g).detach().requires_grad_() for (n, p), g in zip(parameters.items(), step, strict=True)}
    quiz_loss = F.cross_entropy(functional_call(model, moved, (quiz_x,))[1], quiz_y)
    direction = torch.autograd.grad(quiz_loss, list(moved.values()))
    norms = [nn.utils.get_total_norm([g for g in gradients if g is not None]) for gradients in (direction, pull_step)]
    with _batch_statistics(model), torch.no_grad():
        point = {name: p.detach() for name, p in parameters.items()}
        _, tangent = jvp(
            lambda at: functional_call(model, at, (x,))[0 if wide else 1],
            (point,),
            (dict(zip(point, direction, strict=True)),),
        )
    product = 2 / z.numel() * ((z - guide[y]) * tangent).sum()
    return torch.zeros_like(guide).index_add_(0, y, tangent) * (2 * lr / z.numel()), product / norms[0] / norms[1]


def double_backward(
    model: SplitModel, study: tuple[Tensor, Tensor], quiz: tuple[Tensor, Tensor], guide: Tensor, lr: float, wide: bool
) -> Tensor:
    """The same gradient through the second-order graph, as the method is usually written."""
    model.train()
    guide = guide.clone().requires_grad_()
    parameters = dict(model.named_parameters())
    (x, y), (quiz_x, quiz_y) = study, quiz
    with _batch_statistics(model), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        h, o = model(x)
        objective = F.cross_entropy(o, y) + F.mse_loss(h if wide else o, guide[y])
        step = torch.autograd.grad(objective, list(parameters.values()), create_graph=True)
        moved = {name: p - lr * g for (name, p), g in zip(parameters.items(), step, strict=True)}
        quiz_loss = F.cross_entropy(functional_call(model, moved, (quiz_x,))[1], quiz_y)
        return torch.autograd.grad(quiz_loss, guide)[0]


class _batch_statistics:
    """BatchNorm without running statistics, which dual tensors and functional calls cannot update."""

    def __init__(self, model: nn.Module) -> None:
        self.norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]

    def __enter__(self) -> None:
        for norm in self.norms:
            norm.track_running_stats = False

    def __exit__(self, *_: object) -> None:
        for norm in self.norms:
            norm.track_running_stats = True
