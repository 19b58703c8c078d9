"""Payloads: the only data exchanged between clients and the server, and their validation.

A payload is `dict[str, Tensor]`. A set of class vectors is two entries: `ids` (int64, k) and `rows` (float, k x M).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import safetensors.torch
import torch
from torch import Tensor

from fedl2g.errors import PayloadError

Payload = dict[str, Tensor]

PRESENT = "present"  # the entry of dense class vectors that marks which of them the client has
_SHOWN = 64  # characters shown of a received name or shape


@dataclass(frozen=True)
class TensorSpec:
    """The required form of one payload entry.

    A letter in `shape` is a free size; the same letter means the same size in every entry of the payload. Entries with
    `below` hold class ids: distinct, ascending, from 0 to `below` - 1. `least` is the smallest allowed value.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype = torch.float32
    below: int | None = None
    least: int | None = None


Specification = Mapping[str, TensorSpec]


def class_vector_spec(classes: int, width: int, dtype: torch.dtype) -> Specification:
    """The specification of class vectors of this width."""
    return {
        "ids": TensorSpec(("k",), torch.int64, below=classes),
        "rows": TensorSpec(("k", width), dtype),
    }


def tensors_spec(tensors: Mapping[str, Tensor]) -> Specification:
    """A specification that requires exactly these names, shapes and dtypes."""
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def class_vectors(ids: Tensor, rows: Tensor) -> Payload:
    """Pack class vectors: row i belongs to class ids[i]."""
    return {"ids": ids.detach().cpu().contiguous(), "rows": rows.detach().cpu().contiguous()}


def mean_by_class(payloads: Iterable[Payload]) -> tuple[Tensor, Tensor]:
    """For each class, the mean of the rows sent for it over the clients that sent one: (class ids, mean rows)."""
    sent = list(payloads)
    if not sent:
        raise ValueError("mean_by_class needs at least one payload")
    ids, positions = torch.unique(torch.cat([p["ids"] for p in sent]), return_inverse=True)
    rows = torch.cat([p["rows"] for p in sent])
    # In float64: sums of huge but finite rows, which a hostile client may send, must not overflow.
    total = torch.zeros(len(ids), rows.shape[1], dtype=torch.float64).index_add_(0, positions, rows.double())
    counts = torch.bincount(positions, minlength=len(ids)).double()
    return ids, (total / counts[:, None]).to(rows.dtype)


def mean_payload(payloads: Sequence[Payload], weights: Sequence[float] | None = None) -> Payload:
    """The mean of payloads with equal entries, entry by entry; uniform unless weights are given."""
    weights = [1.0] * len(payloads) if weights is None else weights
    mean = {name: torch.zeros_like(tensor) for name, tensor in payloads[0].items()}
    for payload, weight in zip(payloads, weights, strict=True):
        for name, total in mean.items():
            total.add_(payload[name], alpha=weight / sum(weights))
    return mean


def nbytes(payload: Payload) -> int:
    """The bytes of the values and class ids in a payload."""
    return sum(tensor.nbytes for tensor in payload.values())


def root_mean_square(payload: Payload) -> float:
    """The RMS over all floating-point values of a payload; 0 when it has none.

    Of dense class vectors only the rows marked as present count: the marks and the rows of absent classes are not the
    client's values.
    """
    values = [t for name, t in payload.items() if t.is_floating_point() and name != PRESENT]
    if PRESENT in payload:
        values = [t[payload[PRESENT] > 0.5] for t in values]
    count = sum(t.numel() for t in values)
    return (sum(float(t.double().square().sum()) for t in values) / count) ** 0.5 if count else 0.0


def check_payload(payload: Payload, expected: Specification) -> None:
    """Raise PayloadError with the first violation of the specification."""
    if missing := sorted(expected.keys() - payload.keys()):
        raise PayloadError(f"payload: entry {missing[0]!r} is missing; expected the entries {sorted(expected)}")
    if unknown := sorted(payload.keys() - expected.keys()):
        name = unknown[0][:_SHOWN]
        raise PayloadError(f"payload: entry {name!r} is unknown; expected the entries {sorted(expected)}")
    sizes: dict[str, int] = {}
    for name, spec in expected.items():
        _check_tensor(name, payload[name], spec, sizes)


def _check_tensor(name: str, tensor: Tensor, spec: TensorSpec, sizes: dict[str, int]) -> None:
    if tensor.dtype != spec.dtype:
        raise PayloadError(f"payload entry {name!r}: has dtype {tensor.dtype}; expected {spec.dtype}")
    found = tuple(tensor.shape)
    if len(found) != len(spec.shape):
        raise PayloadError(f"payload entry {name!r}: has shape {str(found)[:_SHOWN]}; expected {spec.shape}")
    for size, wanted in zip(found, spec.shape, strict=True):
        required = sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        if size != required:
            raise PayloadError(f"payload entry {name!r}: has shape {found}; expected {spec.shape}")
    if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        raise PayloadError(f"payload entry {name!r}: holds NaN or infinite values; expected finite ones")
    if spec.least is not None and bool((tensor < spec.least).any()):
        raise PayloadError(f"payload entry {name!r}: holds {tensor.min().item()}; expected at least {spec.least}")
    if spec.below is not None:
        if len(tensor) > spec.below:  # checked before `tolist`, which takes far more memory
            raise PayloadError(f"payload entry {name!r}: holds {len(tensor)} class ids; expected at most {spec.below}")
        ids = tensor.tolist()
        if any(not 0 <= i < spec.below for i in ids):
            raise PayloadError(f"payload entry {name!r}: holds a class id outside 0..{spec.below - 1}")
        if any(a >= b for a, b in pairwise(ids)):
            raise PayloadError(f"payload entry {name!r}: wrong class ids; expected distinct ones in ascending order")


@dataclass(frozen=True)
class Codec:
    """How payloads are encoded for the wire: the check and the decoding of received payloads."""

    check: Callable[[Payload, Specification], None]
    decode: Callable[[Payload, Specification], Payload]


def _identity(payload: Payload, expected: Specification) -> Payload:
    return payload


PLAIN = Codec(check_payload, _identity)


def to_bytes(payload: Payload) -> bytes:
    """Serialise a payload (safetensors)."""
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in payload.items()})


def from_bytes(data: bytes) -> Payload:
    """Deserialise a payload; raises PayloadError for anything malformed."""
    try:
        return safetensors.torch.load(data)
    except Exception as error:  # the reader raises many kinds of errors on malformed bytes
        reason = str(error).partition("\n")[0][:300]
        raise PayloadError(
            f"payload: cannot be decoded ({reason or type(error).__name__}); expected safetensors"
        ) from error
