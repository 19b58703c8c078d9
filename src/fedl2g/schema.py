"""What one sample of a dataset is: its kind, its shape and, for tables and texts, what its numbers mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

Kind = Literal["image", "signal", "table", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PLURALS = {"image": "images", "signal": "signals", "table": "rows of a table", "text": "texts"}
"""What the samples of a kind are called in messages."""

VOCABULARY = 1 << 14
"""The number of ids of hashed texts, which words share at random; id 0 is padding."""

_MAX_NUMBERS = 2**27  # of one sample; a photograph of 44 megapixels
_MAX_VOCABULARY = 2**31
_MAX_NAMES = 100_000
_NUMBER = "number"
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
        if len(self.shape) != wanted or not all(type(n) is int and n > 0 for n in self.shape):
            raise ValueError(f"shape: {self.shape} is not the shape of one sample of kind {self.kind}")
        if prod(self.shape) > _MAX_NUMBERS:
            raise ValueError(f"shape: {self.shape} has too many numbers; expected at most {_MAX_NUMBERS} in a sample")
        if (self.kind == "table") != bool(self.columns) or (self.columns and len(self.columns) != self.shape[0]):
            raise ValueError(f"columns: {len(self.columns)} of them do not fit the kind {self.kind} and its shape")
        for name, times in Counter(column.name for column in self.columns).most_common(1):
            if times > 1:
                raise ValueError(f"columns: {name!r} is there {times} times; expected one name for each column")
        whole = type(self.vocabulary) is int and 0 <= self.vocabulary < _MAX_VOCABULARY
        if not whole or (self.kind == "text") != (self.vocabulary > 1):
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
        """Plain values for JSON and TOML, which `from_json` reads back."""
        values: dict[str, Any] = {"kind": self.kind, "shape": list(self.shape)}
        if self.vocabulary:
            values["vocabulary"] = self.vocabulary
        if self.columns:
            values["columns"] = {
                column.name: _NUMBER if column.categories is None else list(column.categories)
                for column in self.columns
            }
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schema:
        """A schema from plain values; ValueError for anything else.

        A table needs no shape, and texts no vocabulary: it is then the hashing tokenizer's.
        """
        try:
            if unknown := sorted(set(values) - {"kind", "shape", "vocabulary", "columns"}):
                raise ValueError(f"{unknown[0]}: unknown; expected kind, shape, vocabulary and columns")
            kind, columns = values["kind"], tuple(_columns(values.get("columns", {})))
            shape = tuple(values.get("shape", [len(columns)]))
            return cls(kind, shape, columns, values.get("vocabulary", VOCABULARY if kind == "text" else 0))
        except KeyError as error:
            raise ValueError(f"{error.args[0]}: missing") from error
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"not a schema ({error})") from error


def _columns(values: Mapping[str, Any]) -> Iterator[Column]:
    for name, meaning in values.items():
        categories = None if meaning == _NUMBER else tuple(meaning)
        texts = [name, *(categories or ())]
        if isinstance(meaning, str) != (categories is None) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"columns: {name!r} is {meaning!r}; expected {_NUMBER!r} or a list of categories")
        if len(texts) > _MAX_NAMES or len(values) > _MAX_NAMES or len(set(texts[1:])) < len(texts) - 1:
            raise ValueError(f"columns: {name!r} has too many categories, or one twice")
        yield Column(name, categories)


def image_schema(channels: int, height: int, width: int) -> Schema:
    """The schema of images of this size."""
    return Schema("image", (channels, height, width))
