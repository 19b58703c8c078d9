"""Low-rank compression of payloads, for FedKD, and the checks of compressed payloads.

A tensor of two or more dimensions, flattened to (out, rest), is sent as `name.left` (out x r) and `name.right`
(r x rest), whose product is the tensor's best approximation of rank r.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from fedl2g.errors import PayloadError
from fedl2g.payload import Codec, Payload, Specification, TensorSpec, check_payload

LEFT, RIGHT = ".left", ".right"

_log = logging.getLogger(__name__)


def compress(tensors: Payload, energy: float) -> Payload:
    """Replace each tensor by factors that hold this share of its energy, unless they would be larger."""
    packed: Payload = {}
    for name, tensor in tensors.items():
        factors = _factors(name, tensor.flatten(1), energy) if tensor.ndim >= 2 and tensor.numel() else None
        if factors is None:
            packed[name] = tensor
        else:
            packed[name + LEFT], packed[name + RIGHT] = factors
    return packed


def reconstruct(packed: Payload, whole: Specification) -> Payload:
    """Undo `compress`; `whole` gives the names and shapes of the original tensors."""
    tensors: Payload = {}
    for name, spec in whole.items():
        if name in packed:
            tensors[name] = packed[name]
        else:
            shape = [size for size in spec.shape if isinstance(size, int)]
            tensors[name] = (packed[name + LEFT] @ packed[name + RIGHT]).reshape(shape)
    return tensors


def check_packed(packed: Payload, whole: Specification) -> None:
    """Raise PayloadError unless each tensor of `whole` is present, as it is or as two matching, smaller factors."""
    expected: dict[str, TensorSpec] = {}
    for name, spec in whole.items():
        if len(spec.shape) >= 2 and (name + LEFT in packed or name + RIGHT in packed):
            out, rest = _matrix_shape(spec)
            free = f"rank of {name}"
            expected[name + LEFT] = TensorSpec((out, free), spec.dtype)
            expected[name + RIGHT] = TensorSpec((free, rest), spec.dtype)
        else:
            expected[name] = spec
    check_payload(packed, expected)
    for name, spec in whole.items():
        if name not in packed:
            rank = packed[name + LEFT].shape[1]
            if rank < 1 or not _smaller(rank, *_matrix_shape(spec)):
                raise PayloadError(
                    f"payload entry {name!r}: its factors have rank {rank}; expected a rank of at least 1 that makes "
                    "them smaller than the tensor"
                )
    for name, tensor in reconstruct(packed, whole).items():
        if not bool(torch.isfinite(tensor).all()):
            raise PayloadError(
                f"payload entry {name!r}: the product of its factors is not finite; expected finite values"
            )


def rank_for(singular_values: Tensor, energy: float) -> int:
    """The smallest rank, at least 1, whose squared singular values hold this share of their total."""
    held = singular_values.double().square().cumsum(0)
    return min(int((held < energy * held[-1]).sum()) + 1, len(held))


def _factors(name: str, matrix: Tensor, energy: float) -> tuple[Tensor, Tensor] | None:
    try:
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        _log.warning("%r: the SVD did not converge; sent uncompressed: %s", name, error)
        return None
    rank = rank_for(s, energy)
    if not _smaller(rank, *matrix.shape):
        return None
    return (u[:, :rank] * s[:rank]).contiguous(), v[:rank].contiguous()


def _smaller(rank: int, out: int, rest: int) -> bool:
    return rank * (out + rest) < out * rest


def _matrix_shape(spec: TensorSpec) -> tuple[int, int]:
    out, *others = (size for size in spec.shape if isinstance(size, int))
    return out, int(torch.Size(others).numel())


LOW_RANK = Codec(check_packed, reconstruct)
