"""What one sample of a dataset is: its kind, its shape and, for tables and texts, what its numbers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Kind = Literal["image", "signal", "table", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PLURALS = {"image": "images", "signal": "signals", "table": "rows of a table", "text": "texts"}
"""What the samples of a kind are called in messages."""

_MAX_SIZE = 2**31
_MAX_NAMES = 100_000
_DIMENSIONS = {"image": 3, "signal": 2, "table": 1, "text": 1}


@dataclass(frozen=True)
class Column:
    """A column of a table: its name and its categories; None for a column of numbers.

    Category number 0 means missing or unknown; the named ones count from 1.
    """

    name: str
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Schema:
    """The form of one sample, on which networks and the sites of a deployment must agree."""

    kind: Kind
    shape: tuple[int, ...]
    """Image: channels, height, width. Signal: channels, time. Table: columns. Text: the most tokens."""
    columns: tuple[Column, ...] = ()
    """Of a table, in the order of the stored numbers."""
    vocabulary: int = 0
    """Of texts: token ids are below it, and 0 is padding."""

    def __post_init__(self) -> None:
        """Refuse a schema that no dataset has: it may come from a file or a message."""
        if self.kind not in KINDS:
            raise ValueError(f"kind: {self.kind!r} is not known; expected one of {', '.join(KINDS)}")
        wanted = _DIMENSIONS[self.kind]
        if len(self.shape) != wanted or not all(type(n) is int and 0 < n < _MAX_SIZE for n in self.shape):
            raise ValueError(f"shape: {self.shape} is not the shape of one sample of kind {self.kind}")
        if (self.kind == "table") != bool(self.columns) or (self.columns and len(self.columns) != self.shape[0]):
            raise ValueError(f"columns: {len(self.columns)} of them do not fit the kind {self.kind} and its shape")
        if (self.kind == "text") != (self.vocabulary > 1) or self.vocabulary >= _MAX_SIZE:
            raise ValueError(f"vocabulary: {self.vocabulary} does not fit the kind {self.kind}")

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.shape))
        if self.kind == "table":
            categorical = sum(column.categories is not None for column in self.columns)
            return f"rows of {sizes} columns ({categorical} of them categories)"
        return f"texts of up to {sizes} tokens" if self.kind == "text" else f"{PLURALS[self.kind]} of {sizes}"

    @property
    def categories(self) -> tuple[int, ...]:
        """The number of categories of each column, 0 for numbers."""
        return tuple(0 if column.categories is None else len(column.categories) + 1 for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        """Plain values, which `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schema:
        """A schema from plain values; ValueError for anything else."""
        try:
            columns = tuple(_column(**column) for column in values.get("columns", ()))
            return cls(values["kind"], tuple(values["shape"]), columns, int(values.get("vocabulary", 0)))
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"not a schema ({error})") from error


def _column(name: str, categories: list[str] | None = None) -> Column:
    names = [name, *(categories or ())]
    if not all(isinstance(text, str) for text in names) or len(names) > _MAX_NAMES:
        raise ValueError(f"columns: the column {name!r} has names that are not text, or too many")
    return Column(name, None if categories is None else tuple(categories))


def image_schema(channels: int, height: int, width: int) -> Schema:
    """The schema of images of this size."""
    return Schema("image", (channels, height, width))
