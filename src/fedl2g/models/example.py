"""Inputs as a network receives them, for trying it out without data."""

from __future__ import annotations

import torch
from torch import Tensor

from fedl2g.schema import Schema


def example_batch(
    inputs: Schema, count: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """A batch of prepared inputs with varied values: numbers from -1 to 1, categories and token ids in their range."""
    size = count * torch.Size(inputs.shape).numel()
    if inputs.kind == "text":
        ids = torch.arange(size, device=device) % (inputs.vocabulary - 1) + 1
        return ids.reshape(count, *inputs.shape)
    values = torch.linspace(-1.0, 1.0, size, device=device, dtype=dtype).reshape(count, *inputs.shape)
    for column, categories in enumerate(inputs.categories):
        if categories:
            values[:, column] = torch.arange(count, device=device, dtype=dtype) % categories
    return values
