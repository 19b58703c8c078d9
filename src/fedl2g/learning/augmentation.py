"""Random changes of training images, drawn from a stream of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from fedl2g.learning.settings import Augment


class Augmentation:
    """Flips and crops each image of a batch by itself; `black` (1 x C x 1 x 1) is a prepared black pixel."""

    def __init__(self, settings: Augment, stream: torch.Generator, black: Tensor) -> None:
        self.settings = settings
        self.stream = stream
        self.black = black

    def __call__(self, x: Tensor) -> Tensor:
        """A batch of the same form, N x C x H x W, in the same memory layout."""
        if self.settings.flip:
            chosen = torch.rand(len(x), generator=self.stream) < 0.5
            x = torch.where(chosen.to(x.device)[:, None, None, None], x.flip(3), x)
        if self.settings.crop:
            corners = torch.randint(2 * self.settings.crop + 1, (2, len(x)), generator=self.stream)
            x = self._cropped(x, corners.to(x.device))
        return x

    def _cropped(self, x: Tensor, corners: Tensor) -> Tensor:
        margin, (count, channels, height, width) = self.settings.crop, x.shape
        padded = self.black.expand(count, channels, height + 2 * margin, width + 2 * margin).clone()
        padded[:, :, margin : margin + height, margin : margin + width] = x
        rows = corners[0][:, None] + torch.arange(height, device=x.device)
        columns = corners[1][:, None] + torch.arange(width, device=x.device)
        images = torch.arange(count, device=x.device)[:, None, None]
        cut = padded[images, :, rows[:, :, None], columns[:, None, :]]  # N x H x W x C
        return torch.empty_like(x).copy_(cut.permute(0, 3, 1, 2))
