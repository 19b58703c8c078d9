"""A naive engine, typical of public code in this field: models on disk, data through a DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import bare
import torch
from timing import pause
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def naive_round(clients: list[bare.BareClient], method: str, folder: Path, lr: float = 0.01) -> Callable[[], None]:
    """A function that runs one round of `local` or `fedl2g-f`."""
    for number, client in enumerate(clients):
        torch.save(client.model, folder / f"{number}.pt")

    def play() -> None:
        for number, client in enumerate(clients):
            path = folder / f"{number}.pt"
            model = torch.load(path, weights_only=False)
            _train(client, model, method, lr)
            torch.save(model, path)
            if method == "fedl2g-f":
                model = torch.load(path, weights_only=False)
                bare.double_backward(model, client.study, client.quiz, client.targets, lr, wide=True)
        for number, client in enumerate(clients):
            model = torch.load(folder / f"{number}.pt", weights_only=False)
            _evaluate(client, model)

    return play


def _train(client: bare.BareClient, model: nn.Module, method: str, lr: float) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in DataLoader(_samples(client.batches), batch_size=10, shuffle=True, drop_last=True):
        pause()
        h, o = model(x)
        objective = F.cross_entropy(o, y)
        if method == "fedl2g-f":
            objective = objective + F.mse_loss(h, client.targets[y])
        optimizer.zero_grad()
        objective.backward()
        if method == "fedl2g-f":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()


@torch.no_grad()
def _evaluate(client: bare.BareClient, model: nn.Module) -> None:
    model.eval()
    correct = 0
    for x, y in DataLoader(_samples(client.test), batch_size=10):
        pause()
        correct += (model(x)[1].argmax(1) == y).sum().item()


def _samples(batches: bare.Batches) -> TensorDataset:
    return TensorDataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
