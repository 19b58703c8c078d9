"""How stored samples become the inputs of a network: one module for each kind, with a client's own statistics.

Statistics are computed by each client on its own train samples. They are part of its private state and never sent.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedl2g.datasets.dataset import Dataset, Scaling
from fedl2g.schema import Schema

_RANGE = {torch.uint8: 255.0, torch.uint16: 65535.0}  # of pixels; fractions go from 0 to 1
_CHUNK = 4096
_SMALLEST = 1e-6  # a channel that hardly varies is only centred


class Preparation(nn.Module):
    """Turns a batch of stored samples into numbers of the experiment's format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, stored: Tensor) -> Tensor:
        raise NotImplementedError

    def batch(self, stored: Tensor) -> Tensor:
        """The inputs of one batch of training or evaluation."""
        prepared: Tensor = self(stored)
        return prepared

    def fit(self, stored: Iterator[Tensor]) -> None:
        """Learn the statistics from the client's own train samples, given in chunks."""


class ImagePreparation(Preparation):
    """Pixels to [-1, 1] by the range of their type, or by a given mean and standard deviation of each channel."""

    def __init__(self, dtype: torch.dtype, pixels: torch.dtype = torch.uint8, scaling: Scaling | None = None) -> None:
        super().__init__(dtype)
        self.half_range = _RANGE.get(pixels, 1.0) / 2
        self.scaled = scaling is not None
        if scaling is not None:  # comes with the data: not part of the state
            for name, values in (("mean", scaling.mean), ("std", scaling.std)):
                self.register_buffer(name, torch.tensor(values, dtype=dtype).reshape(-1, 1, 1), persistent=False)

    def forward(self, stored: Tensor) -> Tensor:
        pixels = stored.to(self.dtype, copy=True)
        if self.scaled:
            return pixels.sub_(self.get_buffer("mean")).div_(self.get_buffer("std"))
        return pixels.div_(self.half_range).sub_(1.0)


class Standardisation(Preparation):
    """Standardises each channel of a signal or column of a table by its mean and standard deviation.

    Missing numbers (NaN) become the mean, which is 0 afterwards. Columns of categories keep their codes.
    """

    def __init__(self, dtype: torch.dtype, inputs: Schema) -> None:
        super().__init__(dtype)
        shape = (inputs.shape[0], *(1,) * (len(inputs.shape) - 1))
        self.register_buffer("mean", torch.zeros(shape, dtype=dtype))
        self.register_buffer("std", torch.ones(shape, dtype=dtype))
        self.codes = [column for column, categories in enumerate(inputs.categories) if categories]

    def forward(self, stored: Tensor) -> Tensor:
        known = stored.to(self.dtype)
        standard = (known - self.get_buffer("mean")) / self.get_buffer("std")
        return torch.where(torch.isnan(standard), torch.zeros_like(standard), standard)

    def fit(self, stored: Iterator[Tensor]) -> None:
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        sums, squares, counts = (torch.zeros(len(mean), dtype=torch.float64) for _ in range(3))
        shift: Tensor | None = None  # the first values, so that large numbers with a small spread keep their digits
        for chunk in stored:
            values = chunk.double().transpose(0, 1).flatten(1)  # channels x everything else
            known = ~torch.isnan(values)
            if shift is None:
                first = known.int().argmax(1, keepdim=True)
                shift = torch.nan_to_num(values.gather(1, first)).flatten()
            values = torch.where(known, values - shift[:, None], 0.0)
            counts += known.sum(1)
            sums += values.sum(1)
            squares += values.square().sum(1)
        if shift is None:
            return
        counts.clamp_(min=1)
        centre = sums / counts
        spread = (squares / counts - centre.square()).clamp(min=0).sqrt()
        mean.copy_((centre + shift).reshape(mean.shape))
        std.copy_(torch.where(spread > _SMALLEST, spread, 1.0).reshape(std.shape))
        mean[self.codes], std[self.codes] = 0.0, 1.0


class TextPreparation(Preparation):
    """Token ids as whole numbers; a batch is only as wide as its longest text."""

    def forward(self, stored: Tensor) -> Tensor:
        return stored.to(torch.int64)

    def batch(self, stored: Tensor) -> Tensor:
        longest = int((stored > 0).sum(1).max()) if len(stored) else 1
        return super().batch(stored[:, : max(longest, 1)])


def preparation(dataset: Dataset, stored: torch.dtype, dtype: torch.dtype) -> Preparation:
    """The preparation of a dataset's samples, stored as this type, without the statistics of a client."""
    kind = dataset.schema.kind
    if kind == "image":
        return ImagePreparation(dtype, stored, dataset.scaling)
    return TextPreparation(dtype) if kind == "text" else Standardisation(dtype, dataset.schema)


def chunks(inputs: Tensor, indices: Tensor) -> Iterator[Tensor]:
    """Samples of the shared array at these indices, a part at a time."""
    for part in indices.split(_CHUNK):  # type: ignore[no-untyped-call]
        yield inputs.index_select(0, part)
