"""Natural partitions: the groups of a column as clients, and the split that data come with."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.dataset import SIDES
from fedl2g.errors import DataError

Indices: TypeAlias = NDArray[np.int64]
_log = logging.getLogger(__name__)


def by_group(
    groups: NDArray[Any] | None, wanted: str | None, column: str, clients: int, random: np.random.RandomState
) -> list[Indices]:
    """Give client i the group i mod G."""
    if groups is None and wanted is None:
        raise DataError(
            "partition: 'domain' needs domains, but this dataset has none; expected one such as domainnet or a folder "
            "of domains; choose another dataset or another partition"
        )
    if groups is None or wanted not in (None, column):
        has = "no groups" if groups is None else f"the groups {column!r}"
        raise DataError(
            f"partition: 'by:{wanted}' needs the column {wanted!r}, but this dataset has {has}; choose "
            f"{'another partition' if groups is None else f'by:{column}'}"
        )
    present = np.unique(groups)
    if wanted is not None and len(present) > clients:
        _log.warning(
            "partition: by:%s has %d groups for %d clients: only the first %d are used; set clients = %d to use all",
            *(wanted, len(present), clients, clients, len(present)),
        )
    if wanted is not None and len(present) < clients:
        _log.warning(
            "partition: by:%s has %d groups for %d clients: some of these share a group, cut at random; set clients = "
            "%d for one client per group",
            *(wanted, len(present), clients, len(present)),
        )
    held: list[Indices] = [np.empty(0, np.int64)] * clients
    for position, group in enumerate(present[:clients]):
        sharers = range(position, clients, len(present))
        shuffled = random.permutation(np.flatnonzero(groups == group))
        for client, piece in zip(sharers, np.array_split(shuffled, len(sharers)), strict=True):
            held[client] = piece
    return held


def given_split(held: Iterable[Indices], spec: str, split: NDArray[Any]) -> list[tuple[Indices, ...]]:
    """Every client's samples on the sides that the data give them."""
    sides: list[list[Indices]] = [[], [], []]
    has_validation = bool((split == SIDES.index("validation")).any())
    for client, indices in enumerate(held):
        ordered = np.sort(np.asarray(indices, dtype=np.int64))
        for number, side in enumerate(SIDES[: 3 if has_validation else 2]):
            part = ordered[split[ordered] == number]
            if not len(part):
                raise DataError(
                    f"partition: {spec!r} leaves client {client} without {side} samples of the split that the data "
                    "give; use fewer clients, another partition, or data without a split"
                )
            sides[number].append(part)
    return [tuple(side) for side in sides]
