"""Two rounds of every method against slow references written from the formulas of `docs/fidelity.md`'s papers.

The references call none of the package's losses, means or training loops: plain loops, torch.optim.SGD, autograd.
"""

from __future__ import annotations

from copy import deepcopy

import method_helpers as tiny
import pytest
import torch
from method_helpers import CLASSES, FEATURES, LABELS, LR, assert_close, assert_same, batches, make_world, samples
from torch import Tensor, nn

from fedl2g.errors import PayloadError
from fedl2g.methods.base import Combined, Reply, Report
from fedl2g.methods.fedtgp import adaptive_margin
from fedl2g.rng import torch_stream

ROUNDS = (1, 2)


def ce(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy, sample by sample."""
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(logits, y, strict=True):
        total = total - (row[label] - torch.logsumexp(row, 0))
    return total / len(y)


def kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(softmax p || softmax q): sum over classes, mean over the batch."""
    p, q = torch.softmax(p_logits, 1), torch.softmax(q_logits, 1)
    return (p * (p / q).log()).sum() / len(p)


def mse(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b) ** 2).sum() / a.numel()


def class_means(vectors: list[Tensor], labels: list[Tensor]) -> dict[int, Tensor]:
    """The mean vector of each class."""
    found: dict[int, list[Tensor]] = {}
    for batch, classes in zip(vectors, labels, strict=True):
        for row, label in zip(batch, classes.tolist(), strict=True):
            found.setdefault(label, []).append(row.detach())
    return {label: sum(rows) / len(rows) for label, rows in found.items()}


def mean_over_senders(sent: list[dict[int, Tensor]]) -> dict[int, Tensor]:
    found = {}
    for label in range(CLASSES):
        rows = [means[label] for means in sent if label in means]
        if rows:
            found[label] = sum(rows) / len(rows)
    return found


def average(networks: list[nn.Module], weights: list[float]) -> dict[str, Tensor]:
    states = [network.state_dict() for network in networks]
    return {
        name: sum(w * state[name] for w, state in zip(weights, states, strict=True)) / sum(weights)
        for name in states[0]
        if "num_batches" not in name
    }


def train_with_ce(half, model: nn.Module, round: int) -> None:
    model.train()
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    for x, y in batches(half, round):
        sgd.zero_grad()
        ce(model.head(model.extractor(x)), y).backward()
        sgd.step()


def assert_class_vectors(payload: dict[str, Tensor], expected: dict[int, Tensor]) -> None:
    assert payload["ids"].tolist() == sorted(expected)
    for label, row in zip(payload["ids"].tolist(), payload["rows"], strict=True):
        assert_close(row, expected[label], f"class {label}")


def test_lg_fedavg() -> None:
    world = make_world("lg-fedavg")
    models = [deepcopy(half.model) for half in world.halves]
    head = deepcopy(world.server.shared.network)
    for round in ROUNDS:
        world.play(round)
        for half, model in zip(world.halves, models, strict=True):
            model.head.load_state_dict(head.state_dict())
            train_with_ce(half, model, round)
            assert_same(half.model, model)
        for upload, model in zip(world.uploads, models, strict=True):
            assert {n: t.tolist() for n, t in upload.items()}.keys() == {"weight", "bias"}
            assert_close(upload["weight"], model.head.weight)
        head.load_state_dict(average([model.head for model in models], [len(part) for part in LABELS]))
        assert_same(world.server.shared.network, head)
    x, _ = samples(world.halves[0])
    for scores, model in zip(world.predictions(2, x), models, strict=True):
        model.eval()
        assert_close(scores, head(model.extractor(x)).detach())


def test_fedgh() -> None:
    world = make_world("fedgh", server_batch_size=2, server_lr=0.1, server_epochs=2)
    models = [deepcopy(half.model) for half in world.halves]
    head = deepcopy(world.server.shared.network)
    for round in ROUNDS:
        world.play(round)
        pairs = []
        for half, model, upload in zip(world.halves, models, world.uploads, strict=True):
            model.head.load_state_dict(head.state_dict())
            train_with_ce(half, model, round)
            model.eval()
            x, y = samples(half)
            means = class_means([model.extractor(x)], [y])
            assert_class_vectors(upload, means)
            pairs += [(means[label], label) for label in sorted(means)]
            assert_same(half.model, model)
        sgd = torch.optim.SGD(head.parameters(), lr=0.1)
        stream = torch_stream(tiny.SEED, "fedgh", round)
        for _ in range(2):
            order = torch.randperm(len(pairs), generator=stream).tolist()
            for start in range(0, len(order), 2):
                chosen = [pairs[i] for i in order[start : start + 2]]
                sgd.zero_grad()
                ce(head(torch.stack([p for p, _ in chosen])), torch.tensor([c for _, c in chosen])).backward()
                sgd.step()
        assert_same(world.server.shared.network, head)
    x, _ = samples(world.halves[1])
    for scores, model in zip(world.predictions(2, x), models, strict=True):
        model.eval()
        assert_close(scores, head(model.extractor(x)).detach())


@pytest.mark.parametrize("scale", [1.0, 200.0])  # 200: gradients beyond the clipping norm of 10
def test_fml(scale: float) -> None:
    alpha, beta = 0.3, 0.6
    world = make_world("fml", scale=scale, alpha=alpha, beta=beta)
    models = [deepcopy(half.model) for half in world.halves]
    shared = deepcopy(world.server.shared.network)
    norms = []
    for round in ROUNDS:
        world.play(round)
        received = [deepcopy(shared) for _ in models]
        for half, model, auxiliary in zip(world.halves, models, received, strict=True):
            model.train(), auxiliary.train()
            for x, y in batches(half, round):
                o, u = model(x)[1], auxiliary(x)[1]
                own = alpha * ce(o, y) + (1 - alpha) * kl(u.detach(), o)
                other = beta * ce(u, y) + (1 - beta) * kl(o.detach(), u)
                norms += [step(model, own, LR), step(auxiliary, other, LR)]
            assert_same(half.model, model)
        load_mean(shared, received)
        assert_same_shared(world.server.shared.network, shared)
    assert (max(norms) > 10) == (scale > 1)
    x, _ = samples(world.halves[2])
    for scores, model in zip(world.predictions(2, x), models, strict=True):
        assert_close(scores, model.eval()(x)[1].detach())


@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_fedkd(scale: float) -> None:
    world = make_world("fedkd", scale=scale, auxiliary_lr=0.02, energy_start=0.5, energy_end=0.9)
    models = [deepcopy(half.model) for half in world.halves]
    maps = [half.feature_map.weight.detach().clone().requires_grad_() for half in world.halves]
    shared = deepcopy(world.server.shared.network)
    norms = []
    for round in ROUNDS:
        energy = 0.5 + (round - 1) / 4 * 0.4  # over the task's 5 rounds
        world.play(round)
        received = []
        for half, model, w in zip(world.halves, models, maps, strict=True):
            auxiliary = deepcopy(shared)
            auxiliary.load_state_dict(low_rank(shared.state_dict(), energy))
            model.train(), auxiliary.train()
            for x, y in batches(half, round):
                (h, o), (a, u) = model(x), auxiliary(x)
                s = (ce(o, y) + ce(u, y)).item()
                w_only = mse(h.detach(), a.detach() @ w.T) / s
                own = ce(o, y) + kl(u.detach(), o) / s + mse(h, (a @ w.T).detach()) / s
                other = ce(u, y) + kl(o.detach(), u) / s + mse(h.detach(), a @ w.detach().T) / s
                (w_gradient,) = torch.autograd.grad(2 * w_only, w)  # it stands in both losses
                norms += [step(model, own, LR), step(auxiliary, other, 0.02)]
                with torch.no_grad():
                    w -= LR * w_gradient * min(1.0, 10.0 / (w_gradient.norm().item() + 1e-6))
            assert_same(half.model, model)
            assert_close(half.feature_map.weight.detach(), w.detach())
            sent = deepcopy(auxiliary)
            sent.load_state_dict(low_rank(auxiliary.state_dict(), energy))
            received.append(sent)
        load_mean(shared, received)
        assert_same_shared(world.server.shared.network, shared)
    assert (max(norms) > 10) == (scale > 1)
    assert any(name.endswith(".left") for name in world.uploads[0])


def test_fedmrl() -> None:
    width = 3
    world = make_world("fedmrl", sub_feature_dim=width)
    models = [deepcopy(half.model) for half in world.halves]
    projectors = [deepcopy(half.projector) for half in world.halves]
    shared = deepcopy(world.server.shared.network)
    assert projectors[0].weight.shape == (FEATURES, width + FEATURES)
    for round in ROUNDS:
        world.play(round)
        received = [deepcopy(shared) for _ in models]
        for half, model, projector, auxiliary in zip(world.halves, models, projectors, received, strict=True):
            model.train(), auxiliary.train()
            optimizers = [torch.optim.SGD(m.parameters(), lr=LR) for m in (model, projector, auxiliary)]
            for x, y in batches(half, round):
                a, r = auxiliary.extractor(x), model.extractor(x)
                q = torch.cat([a, r], 1) @ projector.weight.T + projector.bias
                for sgd in optimizers:
                    sgd.zero_grad()
                (ce(model.head(q), y) + ce(auxiliary.head(q[:, :width]), y)).backward()
                for sgd in optimizers:
                    sgd.step()
            assert_same(half.model, model)
            assert_same(half.projector, projector)
        load_mean(shared, received)
        assert_same_shared(world.server.shared.network, shared)
    x, _ = samples(world.halves[0])
    shared.eval()
    for scores, model, projector in zip(world.predictions(2, x), models, projectors, strict=True):
        model.eval()
        q = projector(torch.cat([shared.extractor(x), model.extractor(x)], 1))
        assert_close(scores, model.head(q).detach())


@pytest.mark.parametrize("distance", ["cross_entropy", "mse"])
def test_feddistill(distance: str) -> None:
    world = make_world("feddistill", weight=0.7, distance=distance)
    models = [deepcopy(half.model) for half in world.halves]
    targets: dict[int, Tensor] = {}
    for round in (1, 2, 3):
        if round == 3:
            del targets[0]  # a class without a vector
            world.server.known[0] = False
        world.play(round)
        sent = []
        for half, model, upload in zip(world.halves, models, world.uploads, strict=True):
            model.train()
            sgd = torch.optim.SGD(model.parameters(), lr=LR)
            seen, labels = [], []
            for x, y in batches(half, round):
                o = model(x)[1]
                seen.append(o), labels.append(y)
                extra = torch.zeros((), dtype=torch.float64)
                for row, label in zip(o, y.tolist(), strict=True):
                    if label in targets and distance == "mse":
                        extra = extra + ((row - targets[label]) ** 2).sum() / CLASSES
                    elif label in targets:
                        teacher = targets[label].exp() / targets[label].exp().sum()
                        extra = extra - (teacher * (row - torch.logsumexp(row, 0))).sum()
                sgd.zero_grad()
                (ce(o, y) + 0.7 * extra / len(y)).backward()
                sgd.step()
            assert_same(half.model, model)
            sent.append(class_means(seen, labels))
            assert_class_vectors(upload, sent[-1])
        targets = mean_over_senders(sent)
        assert_class_vectors(world.server.broadcast(round + 1), targets)
    x, _ = samples(world.halves[0])
    for scores, model in zip(world.predictions(3, x), models, strict=True):
        assert_close(scores, model.eval()(x)[1].detach())


def test_fedproto() -> None:
    world = make_world("fedproto", weight=3.0)
    models = [deepcopy(half.model) for half in world.halves]
    prototypes: dict[int, Tensor] = {}
    x, _ = samples(world.halves[0])
    for scores, model in zip(world.predictions(0, x), models, strict=True):
        assert_close(scores, model.eval()(x)[1].detach())  # no prototype yet: the head
    for round in (1, 2, 3):
        if round == 3:
            del prototypes[1]
            world.server.known[1] = False
        world.play(round)
        sent = []
        for half, model, upload in zip(world.halves, models, world.uploads, strict=True):
            model.train()
            sgd = torch.optim.SGD(model.parameters(), lr=LR)
            seen, labels = [], []
            for images, y in batches(half, round):
                h, o = model(images)
                seen.append(h), labels.append(y)
                extra = torch.zeros((), dtype=torch.float64)
                for row, label in zip(h, y.tolist(), strict=True):
                    if label in prototypes:
                        extra = extra + ((row - prototypes[label]) ** 2).sum()
                sgd.zero_grad()
                (ce(o, y) + 3.0 * extra / (len(y) * FEATURES)).backward()
                sgd.step()
            assert_same(half.model, model)
            sent.append(class_means(seen, labels))
            assert_class_vectors(upload, sent[-1])
        prototypes = mean_over_senders(sent)
        assert_class_vectors(world.server.broadcast(round + 1), prototypes)
    for half, scores, model in zip(world.halves, world.predictions(3, x), models, strict=True):
        h, o = model.eval()(x)
        for row, score in zip(h, scores, strict=True):
            for label in range(CLASSES):
                if label in prototypes:
                    assert_close(score[label], -((row - prototypes[label]) ** 2).sum().sqrt().detach())
                else:
                    assert score[label] == -torch.inf
        assert_close(half.other_predictions(x)["head"].detach(), o.detach())


@pytest.mark.parametrize("limit", [100.0, 0.25])  # 0.25: below the distance between the classes
def test_fedtgp(limit: float) -> None:
    epochs, batch, rate = 3, 2, 0.1
    world = make_world(
        "fedtgp", weight=3.0, server_epochs=epochs, server_batch_size=batch, server_lr=rate, max_margin=limit
    )
    models = [deepcopy(half.model) for half in world.halves]
    start = {name: t.detach().clone().requires_grad_() for name, t in world.server.trainable.named_parameters()}
    e, w1, b1, w2, b2 = (start[n] for n in ("vectors", "map.0.weight", "map.0.bias", "map.2.weight", "map.2.bias"))
    prototypes: Tensor | None = None
    margins = []
    for round in ROUNDS:
        world.play(round)
        pairs, sent = [], []
        for half, model, upload in zip(world.halves, models, world.uploads, strict=True):
            model.train()
            sgd = torch.optim.SGD(model.parameters(), lr=LR)
            for images, y in batches(half, round):
                h, o = model(images)
                pull = torch.zeros((), dtype=torch.float64) if prototypes is None else mse(h, prototypes[y])
                sgd.zero_grad()
                (ce(o, y) + 3.0 * pull).backward()
                sgd.step()
            assert_same(half.model, model)
            x, y = samples(half)
            means = class_means([model.eval().extractor(x)], [y])
            assert_class_vectors(upload, means)
            sent.append(means)
            pairs += [(means[label], label) for label in sorted(means)]
        centres = mean_over_senders(sent)
        xi = max(min(float((a - b).norm()) for j, b in centres.items() if j != i) for i, a in centres.items())
        margins.append(xi)
        sgd = torch.optim.SGD(list(start.values()), lr=rate)
        stream = torch_stream(tiny.SEED, "fedtgp", round)
        for _ in range(epochs):
            order = torch.randperm(len(pairs), generator=stream).tolist()
            for first in range(0, len(order), batch):
                chosen = [pairs[i] for i in order[first : first + batch]]
                trained = torch.relu(e @ w1.T + b1) @ w2.T + b2
                logits = []
                for p, label in chosen:
                    distances = [((p - row) ** 2).sum().sqrt() for row in trained]
                    distances[label] = distances[label] + min(xi, limit)
                    logits.append(-torch.stack(distances))
                sgd.zero_grad()
                ce(torch.stack(logits), torch.tensor([label for _, label in chosen])).backward()
                sgd.step()
        prototypes = (torch.relu(e @ w1.T + b1) @ w2.T + b2).detach()
        assert_class_vectors(world.server.broadcast(round + 1), dict(enumerate(prototypes)))
    assert all((margin > limit) == (limit < 1) for margin in margins)
    x, _ = samples(world.halves[0])
    for half, scores, model in zip(world.halves, world.predictions(2, x), models, strict=True):
        h, o = model.eval()(x)
        for row, score in zip(h, scores, strict=True):
            assert_close(score, -((row - prototypes) ** 2).sum(1).sqrt().detach())
        assert_close(half.other_predictions(x)["head"].detach(), o.detach())


def test_the_margin_of_fedtgp_by_hand() -> None:
    """Means (0, 0), (3, 4) and (3, 5): the first is 5 from the others, which are 1 apart."""
    labels, even = torch.tensor([0, 0, 1, 2]), torch.ones(4)
    rows = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [3.0, 4.0], [3.0, 5.0]])
    assert adaptive_margin(labels, rows, even) == 5.0
    late = torch.tensor([1.0, 0.0, 1.0, 1.0])  # a reply of weight 0: the first class lies at (-1, 0)
    assert adaptive_margin(labels, rows, late) == pytest.approx(32**0.5)
    assert adaptive_margin(labels[:2], rows[:2], even[:2]) == torch.inf


def test_fedgen() -> None:
    steps, size, rate, noise = 4, 3, 0.02, 5
    world = make_world(
        "fedgen", server_epochs=steps, server_batch_size=size, server_lr=rate, noise_dim=noise, hidden_dim=7
    )
    models = [deepcopy(half.model) for half in world.halves]
    head, generator = deepcopy(world.server.shared.network), deepcopy(world.server.generator.network)
    adam = torch.optim.Adam(generator.parameters(), lr=rate)  # one for all rounds
    counts: list[int] = []
    held = [[part.count(label) for label in range(CLASSES)] for part in LABELS]

    def made_up(stream: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        """What the generator makes of the stream's next draws, with its layers as they are now."""
        labels = torch.multinomial(torch.tensor(counts, dtype=torch.float64), size, True, generator=stream)
        e = torch.rand(size, noise, generator=stream, dtype=torch.float64)
        inputs = torch.cat([e, torch.eye(CLASSES, dtype=torch.float64)[labels]], 1)
        hidden = inputs @ generator.hidden.weight.T
        hidden = generator.norm(hidden).clamp(min=0)
        return hidden @ generator.features.weight.T + generator.features.bias, labels

    for round in ROUNDS:
        world.play(round)
        generator.eval()
        for half, model, upload in zip(world.halves, models, world.uploads, strict=True):
            model.head.load_state_dict(head.state_dict())
            model.train()
            sgd = torch.optim.SGD(model.parameters(), lr=LR)
            stream = torch_stream(tiny.SEED, "fedgen_client", half.client.id, round)
            for x, y in batches(half, round):
                loss = ce(model(x)[1], y)
                if round > 1:  # no label counts before
                    z, labels = made_up(stream, tiny.BATCH)
                    loss = loss + ce(model.head(z.detach()), labels)
                sgd.zero_grad()
                loss.backward()
                sgd.step()
            assert_same(half.model, model)
            assert upload.keys() == {"head.weight", "head.bias", "label_counts"}
            assert_close(upload["head.weight"], model.head.weight.detach())
            assert upload["label_counts"].tolist() == held[half.client.id]
        counts = [sum(one) for one in zip(*held, strict=True)]
        sizes = [len(part) for part in LABELS]
        head.load_state_dict(average([model.head for model in models], sizes))
        assert_same(world.server.shared.network, head)
        stream = torch_stream(tiny.SEED, "fedgen", round)
        generator.train()
        for _ in range(steps):
            z, labels = made_up(stream, size)
            logits = sum(n / sum(sizes) * model.head(z) for n, model in zip(sizes, models, strict=True))
            adam.zero_grad()
            ce(logits, labels).backward()
            adam.step()
        assert_same_shared(world.server.generator.network, generator)
        assert world.server.broadcast(round + 1)["label_counts"].tolist() == counts
    x, _ = samples(world.halves[1])
    for scores, model in zip(world.predictions(2, x), models, strict=True):
        assert_close(scores, head(model.eval().extractor(x)).detach())


def test_fedgen_uses_each_head_where_their_mean_would_not_do() -> None:
    """Of heads with a hidden layer, the weighted sum of the logits is not what the mean head gives."""
    world = make_world("fedgen", models=("method_helpers:deep_head",), server_epochs=1, hidden_dim=3, server_lr=1e-3)
    generator = deepcopy(world.server.generator.network)
    world.play(1)
    heads, sizes = [deepcopy(half.model.head) for half in world.halves], [len(part) for part in LABELS]
    stream = torch_stream(tiny.SEED, "fedgen", 1)
    counts = torch.tensor([4.0, 6.0, 4.0, 0.0], dtype=torch.float64)
    labels = torch.multinomial(counts, 10, True, generator=stream)
    generator.train()
    z = generator(generator.inputs(labels, stream))
    ce(sum(n / sum(sizes) * head(z) for n, head in zip(sizes, heads, strict=True)), labels).backward()
    for found, before in zip(world.server.generator.network.parameters(), generator.parameters(), strict=True):
        g = before.grad
        assert_close(found.detach(), (before - 1e-3 * g / (g.abs() + 1e-8)).detach())  # Adam's first step


def test_label_counts_below_zero_are_refused_and_huge_ones_do_not_overflow() -> None:
    world = make_world("fedgen", server_epochs=1)
    world.play(1)
    good = world.uploads[0]
    for value in (-1, -(2**63)):
        with pytest.raises(PayloadError, match=r"'label_counts': holds -.*; expected at least 0"):
            world.check({**good, "label_counts": torch.full((CLASSES,), value)})
    huge = {**good, "label_counts": torch.full((CLASSES,), 2**63 - 1)}
    world.check(huge)
    replies = tuple(Reply(client, huge, Report(5)) for client in range(3))
    world.server.update(2, Combined({}, replies))
    assert int(world.server.counts.min()) > 0


def step(network: nn.Module, loss: Tensor, lr: float) -> float:
    """One step of SGD with the gradient norm clipped at 10; the norm before."""
    sgd = torch.optim.SGD(network.parameters(), lr=lr)
    sgd.zero_grad()
    loss.backward(retain_graph=True)
    norm = nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    # The gradients of the other network's loss are taken from the same graph: the step may not change it in place.
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.data = parameter.data - lr * parameter.grad
    return float(norm)


def low_rank(state: dict[str, Tensor], energy: float) -> dict[str, Tensor]:
    """Every matrix at the smallest rank that holds the energy, where that is the smaller thing to send."""
    result = {}
    for name, tensor in state.items():
        result[name] = tensor
        if tensor.ndim >= 2:
            matrix = tensor.detach().reshape(tensor.shape[0], -1)
            out, rest = matrix.shape
            for rank in range(1, min(out, rest) + 1):
                u, s, v = torch.linalg.svd(matrix)
                if (s[:rank] ** 2).sum() >= energy * (matrix**2).sum():
                    break
            if rank * out + rank * rest < out * rest:
                approximation = sum(s[i] * torch.outer(u[:, i], v[i]) for i in range(rank))
                result[name] = approximation.reshape(tensor.shape)
    return result


def load_mean(shared: nn.Module, received: list[nn.Module]) -> None:
    shared.load_state_dict(average(received, [1.0] * len(received)), strict=False)


def assert_same_shared(found: nn.Module, expected: nn.Module) -> None:
    """As `assert_same`, without BatchNorm's integer counters, which do not travel."""
    for name, tensor in expected.state_dict().items():
        if tensor.is_floating_point():
            assert_close(found.state_dict()[name], tensor, name)
