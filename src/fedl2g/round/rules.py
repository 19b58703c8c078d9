"""Aggregation that a few hostile or broken clients cannot steer: median, trimmed mean, norm clipping.

Class vectors are aggregated class by class over the clients that sent one; networks over all clients. The rules other
than the mean do not use the sizes that clients claim for their data sets: a client could claim any. Weights given here
are the server's own (how stale a reply is).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedl2g.experiment.policies import Aggregation
from fedl2g.payload import Payload, mean_by_class, mean_payload


def combine_by_class(
    payloads: Sequence[Payload], weights: Sequence[float] | None = None, settings: Aggregation | None = None
) -> tuple[Tensor, Tensor]:
    """For each class that was sent, one row out of the rows sent for it: (class ids, rows)."""
    settings = settings or Aggregation()
    if settings.rule == "mean" and weights is None:
        return mean_by_class(payloads)
    given = [1.0] * len(payloads) if weights is None else weights
    all_ids = torch.cat([p["ids"] for p in payloads])
    all_rows = torch.cat([p["rows"] for p in payloads])
    all_weights = torch.cat(
        [torch.full((len(p["ids"]),), w, dtype=torch.float64) for p, w in zip(payloads, given, strict=True)]
    )
    ids = torch.unique(all_ids)
    rows = torch.empty(len(ids), all_rows.shape[1], dtype=all_rows.dtype)
    for position, id_ in enumerate(ids):
        chosen = all_ids == id_
        rows[position] = _combine(all_rows[chosen].double(), all_weights[chosen], settings).to(rows.dtype)
    return ids, rows


def combine_payloads(
    payloads: Sequence[Payload],
    reference: Payload,
    *,
    sizes: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    settings: Aggregation | None = None,
) -> Payload:
    """One payload out of many with equal entries; `reference` is what the clients started from.

    `sizes`, the data-set sizes that clients claim, count in the mean alone.
    """
    settings = settings or Aggregation()
    if settings.rule == "mean":
        if weights is not None:
            sizes = [size * w for size, w in zip(sizes or [1.0] * len(payloads), weights, strict=True)]
        return mean_payload(payloads, sizes)
    given = torch.tensor([1.0] * len(payloads) if weights is None else list(weights), dtype=torch.float64)
    if settings.rule == "norm_clip":  # of the whole update: all entries together
        start = _flat(reference)
        stacked = torch.stack([_flat(payload) - start for payload in payloads])
        return _unflat(start + _combine(stacked, given, settings), reference)
    return {
        name: _combine(torch.stack([p[name] for p in payloads]).flatten(1).double(), given, settings)
        .reshape(tensor.shape)
        .to(tensor.dtype)
        for name, tensor in reference.items()
    }


def _combine(values: Tensor, weights: Tensor, settings: Aggregation) -> Tensor:
    """One row (float64) out of the rows of `values`, one for each client."""
    if settings.rule == "median":
        return weighted_median(values, weights)
    if settings.rule == "trimmed_mean":
        return trimmed_mean(values, weights, settings.trim)
    if settings.rule == "norm_clip":
        norms = _norms(values)
        # Of two middle norms the lower: of two senders, the longer vector must not set the bound.
        bound = norms.quantile(0.5, interpolation="lower") if settings.clip is None else norms.new_tensor(settings.clip)
        values = values * (bound / norms.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1.0)[:, None]
    return (values * weights[:, None]).sum(0) / weights.sum()


def _norms(values: Tensor) -> Tensor:
    """The norm of each row; squares of huge values must not overflow."""
    largest = values.abs().amax(1).clamp(min=torch.finfo(torch.float64).tiny)
    norms: Tensor = torch.linalg.vector_norm(values / largest[:, None], dim=1)
    return largest * norms


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The coordinate median; with equal weights and an even count the middle of the two middle values."""
    ordered, order = values.sort(dim=0)
    reached = weights[order].cumsum(0)
    half = weights.sum() / 2
    lower = (reached < half * (1 - 1e-12)).sum(0, keepdim=True)
    upper = (reached <= half * (1 + 1e-12)).sum(0, keepdim=True).clamp(max=len(values) - 1)
    return (ordered.gather(0, lower) / 2 + ordered.gather(0, upper) / 2).squeeze(0)


def trimmed_mean(values: Tensor, weights: Tensor, trim: float) -> Tensor:
    """The mean of each coordinate without the `trim` share of values at either end (rounded down)."""
    cut = int(len(values) * trim + 1e-9)
    ordered, order = values.sort(dim=0)
    kept, kept_weights = ordered[cut : len(values) - cut], weights[order][cut : len(values) - cut]
    return (kept * kept_weights).sum(0) / kept_weights.sum(0)


def _flat(payload: Payload) -> Tensor:
    return torch.cat([payload[name].double().flatten() for name in sorted(payload)])


def _unflat(values: Tensor, like: Payload) -> Payload:
    parts = values.split([like[name].numel() for name in sorted(like)])  # type: ignore[no-untyped-call]
    shaped = {name: part.reshape(like[name].shape) for name, part in zip(sorted(like), parts, strict=True)}
    return {name: shaped[name].to(tensor.dtype) for name, tensor in like.items()}
