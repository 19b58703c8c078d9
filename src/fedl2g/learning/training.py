"""The local training loop, used by every method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.learning.profiling import DATA, GRADIENT, OPTIMIZER, watch

# (objective to minimise, cross entropy of the client's own model alone: the paper's "original local loss")
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class ImageView:
    """A client's samples: indices into the shared uint8 array, converted to normalised batches on demand."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        indices: Tensor,
        *,
        device: torch.device,
        dtype: torch.dtype,
        layout: torch.memory_format = torch.preserve_format,
    ) -> None:
        self.images, self.labels, self.indices = images, labels, indices
        self.device, self.dtype, self.layout = device, dtype, layout

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The images (scaled to -1..1) and labels at these positions of the view."""
        where = self.indices[positions]
        x, y = self.images.index_select(0, where), self.labels.index_select(0, where)  # five times as fast as `[where]`
        if self.device.type == "cuda":
            x, y = x.pin_memory(), y.pin_memory()
        x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        # The layout last: changing it together with the number format would take three times as long.
        return x.to(self.dtype).div_(127.5).sub_(1.0).to(memory_format=self.layout), y

    def subset(self, positions: Tensor) -> ImageView:
        """A view of the samples at these positions."""
        return ImageView(
            self.images,
            self.labels,
            self.indices[positions],
            device=self.device,
            dtype=self.dtype,
            layout=self.layout,
        )

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples in order, in batches of at most `size`."""
        for positions in torch.arange(len(self)).split(size):  # type: ignore[no-untyped-call]
            yield self.batch(positions)


@dataclass
class TrainingLog:
    """Summary of a client's training in one round."""

    steps: int = 0
    cross_entropy: float | None = None  # mean over the batches; None when nothing was trained
    metrics: dict[str, float] = field(default_factory=dict)  # the method's own numbers, declared in its traits


def training_batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split an order into full batches; fewer samples than one batch give a single smaller one."""
    full = len(order) // size
    return order[: full * size].split(size) if full else (order,)  # type: ignore[no-untyped-call]


def train(
    view: ImageView, loss: Loss, optimizers: Iterable[ClippedSGD], orders: Iterable[Tensor], batch_size: int
) -> TrainingLog:
    """Train for one epoch per order: for each batch one backward pass and one step of every optimizer."""
    every = list(optimizers)
    losses: list[Tensor] = []  # kept on the device to avoid a sync per step
    watch.start()
    for order in orders:
        for positions in training_batches(order, batch_size):
            x, y = at_least_two(*view.batch(positions))
            watch.lap(DATA)
            objective, cross_entropy = loss(x, y)
            objective.backward()  # type: ignore[no-untyped-call]
            watch.lap(GRADIENT)
            for optimizer in every:
                optimizer.step()
            losses.append(cross_entropy.detach())
            watch.lap(OPTIMIZER)
    return TrainingLog(len(losses), torch.stack(losses).cpu().double().mean().item() if losses else None)


def at_least_two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat a single sample: BatchNorm rejects one value per channel, and the mean loss stays the same."""
    return (x.repeat(2, 1, 1, 1), y.repeat(2)) if len(y) == 1 else (x, y)
