"""Who holds which samples: label-skewed, feature-shifted, even and user-given partitions of one pooled dataset.

All randomness comes from one `numpy.random.RandomState(seed)`: first the partition, then each client's train/test
split, in client order. Numpy guarantees that the streams of `RandomState` never change, and the paper's public code
uses the same ones, so seed 1 gives the paper's own split.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.groups import Indices, by_group, given_split
from fedl2g.datasets.partition_spec import parse_partition
from fedl2g.errors import DataError, SettingError

DIRICHLET_CUTS = 200_000
DIRICHLET_SHUFFLED = 100_000_000
"""Bounds on the search for a feasible Dirichlet partition: seconds of work on any dataset, and 20,000 attempts on
digits, which with 20 clients and beta 0.1 can need 4,000 (the paper's settings need one)."""
_log = logging.getLogger(__name__)
_SIDES = ({"train", "test"}, {"train", "test", "validation"})
LEAST_SAMPLES = 40
"""Minimum samples of a label-skewed client, so that its test quarter holds a batch of 10."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client, as index arrays into one dataset."""

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    validation: tuple[Indices, ...] = ()  # empty: the best round is chosen on the test samples

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.train)

    @property
    def sizes(self) -> Indices:
        """The number of samples of each client, (clients,)."""
        return np.array([sum(map(len, held)) for held in zip(*self._sides.values(), strict=True)], dtype=np.int64)

    @property
    def holdings(self) -> list[Indices]:
        """The sorted samples of each client, on whichever side they are."""
        return [np.sort(np.concatenate(held)) for held in zip(*self._sides.values(), strict=True)]

    @property
    def _sides(self) -> dict[str, tuple[Indices, ...]]:
        sides = {"train": self.train, "test": self.test}
        return {**sides, "validation": self.validation} if self.validation else sides

    def counts(self, labels: NDArray[Any], classes: int) -> Indices:
        """The number of samples per client and class, (clients, classes)."""
        table = np.zeros((self.clients, classes), dtype=np.int64)
        for row, held in enumerate(zip(*self._sides.values(), strict=True)):
            table[row] = np.bincount(labels[np.concatenate(held)], minlength=classes)
        return table

    def outside(self, samples: int | None) -> int | None:
        """An index that no sample has, if there is one; without the number of samples, a negative one."""
        for indices in chain(*self._sides.values()):
            if len(indices) and (indices.min() < 0 or (samples is not None and indices.max() >= samples)):
                return int(indices.min() if indices.min() < 0 else indices.max())
        return None

    def to_json(self) -> str:
        """The partition as text; `from_json` and the `file:` partition read it back."""
        sides = {name: [indices.tolist() for indices in side] for name, side in self._sides.items()}
        return json.dumps(sides, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Partition:
        """Read a partition written by `to_json`."""
        found = _parse_json(text, "partition: the JSON")
        if not isinstance(found, dict) or set(found) not in _SIDES:
            raise DataError(
                'partition: the JSON has the wrong form; expected an object with the keys "train" and "test" (and '
                'perhaps "validation")'
            )
        return _split_already(found, "partition: the JSON")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        ours, theirs = self.train + self.test + self.validation, other.train + other.test + other.validation
        return (self.clients, len(ours)) == (other.clients, len(theirs)) and all(
            np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays do not hash


def make_partition(
    spec: str,
    labels: NDArray[Any],
    groups: NDArray[Any] | None,
    *,
    clients: int,
    classes: int,
    seed: int,
    test_fraction: float = 0.25,
    column: str = "domain",
    split: NDArray[Any] | None = None,
) -> Partition:
    """Distribute a dataset's samples among clients according to `spec`, and split each client into train and test.

    `iid`               all samples, shuffled, in equal shares.
    `dirichlet:BETA`    label skew: each class is cut in shares drawn from a Dirichlet distribution.
    `pathological:K`    label skew: each client holds at most K classes, in unequal amounts. The last classes are left
                        out, with a warning, where the clients are full before them.
    `domain`            feature shift: client i holds domain i mod D. Clients that share a domain split it evenly at
                        random; with fewer clients than domains only the first domains are used.
    `by:COLUMN`         the same for the groups of any column: subjects, hospitals, cameras as clients.
    `file:PATH`         a JSON file: client -> indices (then split here), or what `Partition.to_json` writes.

    `groups` are the values of `column`. Where the data come with a split (numbers of `dataset.SIDES`), each client's
    samples keep their sides; else they are split at random.
    """
    setting = parse_partition(spec)
    labels = np.asarray(labels)
    if clients < 1:
        raise SettingError(f"clients: {clients} is not allowed; expected at least 1")
    if not 0 < test_fraction < 1:
        raise SettingError(f"test_fraction: {test_fraction} is not allowed; expected a number between 0 and 1")
    if not 0 <= seed < 2**32:
        raise SettingError(f"seed: {seed} is not allowed; expected a whole number from 0 to {2**32 - 1}")
    if setting.kind != "file" and len(labels) < 2 * clients:
        raise DataError(
            f"clients: {len(labels)} samples are too few for {clients} clients; expected at least 2 per client, one "
            "for training and one for testing; use fewer clients or more samples"
        )

    random = np.random.RandomState(seed)
    if setting.path is not None:
        given = _read_file(setting.path, total=len(labels), clients=clients)
        if isinstance(given, Partition):
            return given
        held = given
    elif setting.beta is not None:
        held = _dirichlet(labels, clients, classes, setting.beta, random)
    elif setting.classes_per_client is not None:
        held = _pathological(labels, clients, classes, setting.classes_per_client, random)
    elif setting.kind in ("domain", "by"):
        held = by_group(groups, setting.column, column, clients, random)
    else:
        held = np.array_split(random.permutation(len(labels)), clients)
    if split is not None:
        return Partition(*given_split(held, spec, np.asarray(split)))
    return _split(held, spec, test_fraction, random)


def _least_samples(total: int, clients: int) -> float:
    return min(LEAST_SAMPLES, total / clients / 2)


def _dirichlet(
    labels: NDArray[Any], clients: int, classes: int, beta: float, random: np.random.RandomState
) -> list[Indices]:
    """Split each class by Dirichlet shares, with no share for clients that hold total / clients samples already.

    Repeated until every client has enough samples.
    """
    total = len(labels)
    least = _least_samples(total, clients)
    even_share = total / clients
    concentration = np.full(clients, beta)
    members = [np.flatnonzero(labels == k) for k in range(classes)]
    tries = max(min(DIRICHLET_CUTS // classes, DIRICHLET_SHUFFLED // total), 1000)
    for _ in range(tries):
        sizes = np.zeros(clients, dtype=np.int64)
        pieces = []
        for of_class in members:
            shuffled = of_class.copy()
            random.shuffle(shuffled)
            shares = random.dirichlet(concentration)
            shares *= sizes < even_share
            whole = shares.sum()
            # If no share is left (or a tiny beta underflowed to NaN), the last client takes the whole class.
            shares = shares / whole if whole > 0 else np.zeros(clients)
            ends = (shares.cumsum() * len(shuffled)).astype(np.int64)
            ends[-1] = len(shuffled)
            sizes += ends
            sizes[1:] -= ends[:-1]
            pieces.append((shuffled, ends[:-1]))
        if sizes.min() >= least:
            by_class = [np.split(shuffled, cuts) for shuffled, cuts in pieces]
            return [np.concatenate(of_client) for of_client in zip(*by_class, strict=True)]
    raise DataError(
        f"partition: dirichlet:{beta:g} of {total} samples over {clients} clients did not give each client at least "
        f"{math.ceil(least)} samples in {tries} attempts; use fewer clients, a larger beta or more samples"
    )


def _pathological(
    labels: NDArray[Any], clients: int, classes: int, held: int, random: np.random.RandomState
) -> list[Indices]:
    """Give each class to the first clients below their quota, in random unequal amounts; the last gets the rest."""
    setting = f"partition: pathological:{held} with {clients} clients and {classes} classes"
    if held > classes:
        raise DataError(f"{setting} is impossible; expected at most {classes} classes per client; lower {held}")
    if clients * held < classes:
        raise DataError(
            f"{setting} leaves classes without a client ({clients} x {held} < {classes}); "
            f"use at least {math.ceil(classes / clients)} classes per client or more clients"
        )
    least = _least_samples(len(labels), clients)
    takers = -(-clients * held // classes)  # rounded up, without the rounding errors of a float
    quota = [held] * clients
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for k in range(classes):
        members = np.flatnonzero(labels == k)
        chosen = [client for client in range(clients) if quota[client] > 0][:takers]
        if not chosen:  # takers is rounded up, so the clients' quotas can be used up before the classes
            left_out = np.count_nonzero(labels >= k)
            _log.warning(
                "%s leaves %s without a client: %d of %d samples are not used; %d clients share each earlier class; "
                "choose clients such that clients x %d is a multiple of %d to use all",
                setting,
                f"class {k}" if k == classes - 1 else f"classes {k} to {classes - 1}",
                left_out,
                len(labels),
                takers,
                held,
                classes,
            )
            break
        if len(members) < len(chosen):
            raise DataError(
                f"{setting} shares class {k} between {len(chosen)} clients, but it has only {len(members)} samples; "
                "use fewer clients, fewer classes per client or more samples"
            )
        even = len(members) / len(chosen)
        low, high = int(max(even / 10, least / classes)), int(even)
        others = len(chosen) - 1
        # A class too small for unequal amounts is shared evenly.
        amounts = random.randint(low, high, others) if low < high else np.full(others, high)
        for client, piece in zip(chosen, np.split(members, np.cumsum(amounts)), strict=True):
            parts[client].append(piece)
            quota[client] -= 1
    return [np.concatenate(pieces) if pieces else np.empty(0, np.int64) for pieces in parts]


def _split(held: Iterable[Indices], spec: str, test_fraction: float, random: np.random.RandomState) -> Partition:
    """Split every client at random like scikit-learn's `train_test_split`: the head of a permutation is for testing."""
    train, test = [], []
    for client, indices in enumerate(held):
        if len(indices) < 2:
            raise DataError(
                f"partition: {spec!r} leaves client {client} with {len(indices)} samples; expected at least 2, one for "
                "training and one for testing; use fewer clients or more samples"
            )
        to_train = min(max(math.floor((1 - test_fraction) * len(indices)), 1), len(indices) - 1)
        order = random.permutation(len(indices))
        to_test = len(indices) - to_train
        test.append(indices[order[:to_test]].astype(np.int64))
        train.append(indices[order[to_test:]].astype(np.int64))
    return Partition(tuple(train), tuple(test))


def _read_file(path: Path, *, total: int, clients: int) -> Partition | list[Indices]:
    """Read and check a user's partition: a complete one, or index lists still to be split."""
    name = f"partition: the file {path}"
    try:
        found = _parse_json(path.read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{name} cannot be read ({error}); check the path after 'file:'") from error
    given: Partition | list[Indices]
    if isinstance(found, dict) and set(found) in _SIDES:
        given = _split_already(found, name)
        arrays = given.train + given.test + given.validation
        count = given.clients
    else:
        given = _index_lists(_client_lists(found, name), name)
        arrays = tuple(given)
        count = len(given)
    if count != clients:
        raise DataError(f"{name} has {count} clients, but the setting is clients = {clients}; make the two agree")
    everything = np.concatenate(arrays)
    if len(everything) and (everything.min() < 0 or everything.max() >= total):
        wrong = everything[(everything < 0) | (everything >= total)][0]
        raise DataError(f"{name} has the index {wrong}; expected indices from 0 to {total - 1}")
    values, times = np.unique(everything, return_counts=True)
    if len(values) < len(everything):
        raise DataError(f"{name} has the index {values[times > 1][0]} more than once; give each sample to one client")
    return given


def _client_lists(found: Any, name: str) -> list[Any]:
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        wanted = [str(client) for client in range(len(found))]
        if set(found) == set(wanted):
            return [found[key] for key in wanted]
    raise DataError(
        f'{name} has the wrong form; expected a list of index lists, {{"0": [indices], "1": [indices], ...}} without '
        'gaps, or {"train": [[...], ...], "test": [[...], ...]}'
    )


def _split_already(found: dict[str, Any], name: str) -> Partition:
    sides = {side: tuple(_index_lists(found[side], name)) for side in ("train", "test", "validation") if side in found}
    train = sides["train"]
    for side, lists in sides.items():
        if len(lists) != len(train):
            raise DataError(
                f"{name} has {len(train)} train lists but {len(lists)} {side} lists; give one of each per client"
            )
    for client, held in enumerate(zip(*sides.values(), strict=True)):
        if not all(map(len, held)):
            raise DataError(
                f"{name} leaves client {client} without {' or '.join(sides)} samples; give it at least one of each"
            )
    return Partition(**sides)


def _index_lists(found: Any, name: str) -> list[Indices]:
    if not isinstance(found, list) or not found:
        raise DataError(f"{name} has no index lists; expected one list of indices for each client")
    return [_index_array(indices, client, name) for client, indices in enumerate(found)]


def _index_array(indices: Any, client: int, name: str) -> Indices:
    if isinstance(indices, list) and all(type(index) is int and abs(index) < 2**63 for index in indices):
        return np.array(indices, dtype=np.int64)
    raise DataError(f"{name} has wrong indices for client {client}; expected a list of whole numbers")


def _parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number with thousands of digits
        raise DataError(f"{name} is not valid JSON ({error}); correct it") from error
