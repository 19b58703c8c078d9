"""Rules by which the server combines replies; all except the mean limit the influence of a few hostile clients.

Class vectors are combined class by class over the clients that sent one; networks over all clients. Only the mean uses
the dataset sizes that clients report: a hostile client could report any size. The weights here are the server's own
(the staleness of a reply).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedl2g.errors import SettingError
from fedl2g.experiment.policies import Aggregation
from fedl2g.payload import Payload, mean_by_class, mean_payload
from fedl2g.registry import rules

Combine = Callable[[Tensor, Tensor, Aggregation], Tensor]
"""Combine (values, weights, settings) to one row: values n x d with a row per client, weights n, all float64."""


@dataclass(frozen=True)
class Rule:
    """Combines many vectors to one; with `whole_update` a network's change is one vector, not one per tensor."""

    combine: Combine
    whole_update: bool = False

    def class_vectors(
        self, payloads: Sequence[Payload], weights: Sequence[float] | None, settings: Aggregation
    ) -> Payload:
        """Combine the rows of each class that was sent."""
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
            rows[position] = self._row(all_rows[chosen].double(), all_weights[chosen], settings).to(rows.dtype)
        return {"ids": ids, "rows": rows}

    def networks(
        self,
        payloads: Sequence[Payload],
        reference: Payload,
        weights: Sequence[float] | None,
        sizes: Sequence[float] | None,
        settings: Aggregation,
    ) -> Payload:
        """Combine networks; `reference` is where the clients started, `sizes` are used by the mean only."""
        given = torch.tensor([1.0] * len(payloads) if weights is None else list(weights), dtype=torch.float64)
        if self.whole_update:
            start = _flat(reference)
            stacked = torch.stack([_flat(payload) - start for payload in payloads])
            return _unflat(start + self._row(stacked, given, settings), reference)
        return {
            name: self._row(torch.stack([p[name] for p in payloads]).flatten(1).double(), given, settings)
            .reshape(tensor.shape)
            .to(tensor.dtype)
            for name, tensor in reference.items()
        }

    def _row(self, values: Tensor, weights: Tensor, settings: Aggregation) -> Tensor:
        row: object = self.combine(values, weights, settings)
        if not isinstance(row, Tensor) or row.shape != values.shape[1:]:  # anybody may write a rule
            found = f"a tensor of shape {tuple(row.shape)}" if isinstance(row, Tensor) else f"a {type(row).__name__}"
            raise SettingError(
                f"aggregation.rule: {settings.rule!r} returned {found}; expected one row, a tensor of shape "
                f"{tuple(values.shape[1:])}; correct the function"
            )
        return row


class Mean(Rule):
    """The mean, with cheaper sums than the general rule."""

    def class_vectors(
        self, payloads: Sequence[Payload], weights: Sequence[float] | None, settings: Aggregation
    ) -> Payload:
        if weights is not None:
            return super().class_vectors(payloads, weights, settings)
        ids, rows = mean_by_class(payloads)
        return {"ids": ids, "rows": rows}

    def networks(
        self,
        payloads: Sequence[Payload],
        reference: Payload,
        weights: Sequence[float] | None,
        sizes: Sequence[float] | None,
        settings: Aggregation,
    ) -> Payload:
        if weights is not None:
            sizes = [size * w for size, w in zip(sizes or [1.0] * len(payloads), weights, strict=True)]
        return mean_payload(payloads, sizes)


def weighted_mean(values: Tensor, weights: Tensor, settings: Aggregation) -> Tensor:
    """The mean of the rows."""
    return (values * weights[:, None]).sum(0) / weights.sum()


def weighted_median(values: Tensor, weights: Tensor, settings: Aggregation) -> Tensor:
    """The coordinate median; with equal weights and an even count, the mean of the two middle values."""
    ordered, order = values.sort(dim=0)
    reached = weights[order].cumsum(0)
    half = weights.sum() / 2
    lower = (reached < half * (1 - 1e-12)).sum(0, keepdim=True)
    upper = (reached <= half * (1 + 1e-12)).sum(0, keepdim=True).clamp(max=len(values) - 1)
    return (ordered.gather(0, lower) / 2 + ordered.gather(0, upper) / 2).squeeze(0)


def trimmed_mean(values: Tensor, weights: Tensor, settings: Aggregation) -> Tensor:
    """The mean of each coordinate without the share `trim` of the values at either end (rounded down)."""
    cut = int(len(values) * settings.trim + 1e-9)
    ordered, order = values.sort(dim=0)
    kept, kept_weights = ordered[cut : len(values) - cut], weights[order][cut : len(values) - cut]
    return (kept * kept_weights).sum(0) / kept_weights.sum(0)


def norm_clipped_mean(values: Tensor, weights: Tensor, settings: Aggregation) -> Tensor:
    """The mean of the rows clipped to norm `clip`, or to the median of the rows' norms."""
    norms = _norms(values)
    # The lower median: with two senders, the longer vector must not set the bound.
    bound = norms.quantile(0.5, interpolation="lower") if settings.clip is None else norms.new_tensor(settings.clip)
    values = values * (bound / norms.clamp(min=torch.finfo(torch.float64).tiny)).clamp(max=1.0)[:, None]
    return weighted_mean(values, weights, settings)


def register_rule(name: str, combine: Combine, *, whole_update: bool = False) -> None:
    """Register a rule under a name for the setting `aggregation.rule`."""
    rules.register(name, Rule(combine, whole_update), combine)


rules.register("mean", Mean(weighted_mean), weighted_mean)
register_rule("median", weighted_median)
register_rule("trimmed_mean", trimmed_mean)
register_rule("norm_clip", norm_clipped_mean, whole_update=True)


def _norms(values: Tensor) -> Tensor:
    """The norm of each row, scaled so that squares of huge values do not overflow."""
    largest = values.abs().amax(1).clamp(min=torch.finfo(torch.float64).tiny)
    norms: Tensor = torch.linalg.vector_norm(values / largest[:, None], dim=1)
    return largest * norms


def _flat(payload: Payload) -> Tensor:
    return torch.cat([payload[name].double().flatten() for name in sorted(payload)])


def _unflat(values: Tensor, like: Payload) -> Payload:
    parts = values.split([like[name].numel() for name in sorted(like)])  # type: ignore[no-untyped-call]
    shaped = {name: part.reshape(like[name].shape) for name, part in zip(sorted(like), parts, strict=True)}
    return {name: shaped[name].to(tensor.dtype) for name, tensor in like.items()}
