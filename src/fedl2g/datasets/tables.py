"""Tables from CSV and parquet files: their columns as numbers and categories, or one column as text."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.arrays import FILLED, LARGEST, numbered, text_content
from fedl2g.datasets.dataset import Content
from fedl2g.datasets.sides import sides_of, tells_sides
from fedl2g.errors import DataError, choices
from fedl2g.files import reason_of
from fedl2g.schema import Column, Schema

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_log = logging.getLogger(__name__)
MAX_CATEGORIES = 1000
_FEW = 20  # different values that are classes or categories whatever they look like
SPLIT = "split"
"""A column of this name that says train, test or validation in every row is a given split."""


@dataclass(frozen=True)
class Roles:
    """Which column of a table is what; every other column is an input."""

    label: str | None = None
    text: tuple[str, ...] = ()
    """The columns that are joined to one text; empty: the inputs are a table."""
    ignore: tuple[str, ...] = ()
    group: str | None = None
    inputs: Schema | None = None
    """The schema that the inputs must have in a deployment: its columns, categories and number of tokens are used."""

    @property
    def named(self) -> tuple[str, ...]:
        """The settings that name columns, among those which have no use where there are no columns."""
        return tuple(setting for setting in ("label", "text", "ignore") if getattr(self, setting))

    def to_json(self) -> list[Any]:
        """Plain values, for the cache identity."""
        return [self.label, self.text, self.ignore, self.group, self.inputs and self.inputs.to_json()]


def listed(names: str | None) -> tuple[str, ...]:
    """The names in a setting that separates them by commas."""
    return tuple(name.strip() for name in (names or "").split(",") if name.strip())


def read_table(path: Path, roles: Roles) -> Content:
    """Read a CSV file (comma-separated, with a line of names) or a parquet file."""
    return content_of_frame(read_frame(path), roles, str(path))


def read_frame(path: Path) -> DataFrame:
    """Read the CSV or parquet file of a table."""
    import pandas

    try:
        if path.suffix.lower() == ".parquet":
            return named_by_text(pandas.read_parquet(path), str(path))
        frame = pandas.read_csv(path)
    except ImportError as error:
        raise DataError(f"{path}: parquet files need the package pyarrow; pip install 'fedl2g[parquet]'") from error
    except (OSError, ValueError, UnicodeDecodeError, pandas.errors.ParserError) as error:
        raise DataError(
            f"{path}: cannot be read as a table ({reason_of(error)}); expected a CSV file whose first line names the "
            "columns, or a parquet file"
        ) from error
    if len(frame.columns) == 1 and (other := next((mark for mark in ";\t|" if mark in frame.columns[0]), None)):
        raise DataError(
            f"{path}: its columns are separated by {other!r}; expected commas; convert it "
            f"(pandas.read_csv(path, sep={other!r}).to_csv(path, index=False))"
        )
    return frame


def named_by_text(frame: DataFrame, origin: str) -> DataFrame:
    """The table with text as the names of its columns, as settings name them: pandas also has numbers there."""
    names = [str(name) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{origin}: it has more than one column {twice[0]!r}; expected a different name for each")
    return frame.set_axis(names, axis=1)


def content_of_frame(frame: DataFrame, roles: Roles, origin: str) -> Content:
    """The samples of a table: one for each row."""
    if not len(frame):
        raise DataError(f"{origin}: it has no rows; expected at least two")
    if roles.label is None:
        raise DataError(
            f"label: {origin} is a table, and no column is named as its label; choose one of "
            f"{', '.join(map(str, frame.columns))} (--label COLUMN)"
        )
    group = (roles.group,) if roles.group else ()
    wanted = (("label", (roles.label,)), ("partition", group), ("text", roles.text), ("ignore", roles.ignore))
    for setting, columns in wanted:
        for name in columns:
            column(frame, name, setting, origin)
    if roles.label in roles.text:
        raise DataError(f"text: the column {roles.label!r} of {origin} holds the labels; expected other columns")
    if roles.text:
        warn_of_missing(frame, roles.text, origin, "a missing text is empty")
        return labelled(text_content(joined_texts(frame, roles.text), roles.inputs), frame, roles, origin)
    others = {roles.label, roles.group, *roles.ignore, *((SPLIT,) if _has_split(frame, roles) else ())}
    names = [str(name) for name in frame.columns if name not in others]
    return labelled(_table(frame, names, roles, origin), frame, roles, origin)


def labelled(content: Content, frame: DataFrame, roles: Roles, origin: str) -> Content:
    """Samples with the labels, groups and split that the columns of a table give them."""
    assert roles.label is not None
    classes = column(frame, roles.label, "label", origin)
    _check_classes(classes, origin)
    labels, class_names = _numbers_of(classes, "labels", origin)
    split = sides_of(frame[SPLIT].astype(str), origin) if _has_split(frame, roles) else None
    content = replace(content, labels=labels, class_names=class_names, split=split)
    if roles.group is None:
        return content
    groups, names = _numbers_of(column(frame, roles.group, "partition", origin), "groups", origin)
    return replace(content, groups=groups, group_names=names, group_column=roles.group)


def _has_split(frame: DataFrame, roles: Roles) -> bool:
    """Whether a column is a given split, by its name and content, unless it has another role."""
    others = (roles.label, roles.group, *roles.ignore, *roles.text)
    return SPLIT in frame.columns and SPLIT not in others and tells_sides(frame[SPLIT].astype(str).unique())


def joined_texts(frame: DataFrame, columns: Sequence[str]) -> list[str]:
    """The texts of some columns, joined row by row; a missing one is empty."""
    texts: list[str] = frame[list(columns)].astype("string").fillna("").agg(" ".join, axis=1).tolist()
    return texts


def column(frame: DataFrame, name: str, setting: str, origin: str) -> Series[Any]:
    """The column of this name; the DataError without it names the setting that asked for it."""
    if name not in frame.columns:
        raise DataError(f"{setting}: {origin} has no column {name!r}; {choices(name, list(map(str, frame.columns)))}")
    return frame[name]


def _check_classes(values: Series[Any], origin: str) -> None:
    """Refuse labels that measure something, or name each row, instead of classes."""
    from pandas.api import types

    count = int(values.nunique())
    measured = types.is_float_dtype(values) and bool((values.dropna() % 1 != 0).any())
    if count > _FEW and (measured or count == len(values)):
        raise DataError(
            f"label: the column {values.name!r} of {origin} has {count} different values in {len(values)} rows; "
            "expected classes, each with several rows; choose another column, or make classes of its values"
        )


def _numbers_of(column: Series[Any], what: str, origin: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    import pandas

    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise DataError(
            f"{origin}: {what} are missing in {len(missing)} of its {len(column)} rows (the first is row "
            f"{missing[0] + 1} below the names, in the column {column.name!r}); fill them in or remove the rows"
        )
    if isinstance(column.dtype, pandas.CategoricalDtype):  # its own order of names
        names = column.cat.categories.astype(str).to_numpy().astype(np.str_)
        return numbered(column.cat.codes.to_numpy(), names, what, len(column), origin)
    values = column.to_numpy()
    if values.dtype.kind == "f" and (values == np.rint(values)).all():
        values = values.astype(np.int64)
    whole = values.dtype.kind in "iu" and values.min() >= 0
    return numbered(values if whole else column.astype(str).to_numpy().astype(np.str_), None, what, len(values), origin)


def _table(frame: DataFrame, names: Sequence[str], roles: Roles, origin: str) -> Content:
    if not names:
        raise DataError(f"{origin}: it has no column left as an input; expected at least one beside the label")
    inputs = (
        roles.inputs
        if roles.inputs is not None
        else Schema("table", (len(names),), tuple(column_of(frame[name], origin) for name in names))
    )
    warn_of_missing(frame, [column.name for column in inputs.columns], origin, FILLED)
    rows = encode_rows(frame, inputs, origin)
    return Content(inputs, [rows], np.empty(0, dtype=np.int64), (), dtype="float32")


def column_of(values: Series[Any], origin: str) -> Column:
    """What a column is: numbers, or categories by their names in alphabetical order."""
    from pandas.api import types

    name = str(values.name)
    if _is_numeric(values):
        return Column(name)
    if types.is_datetime64_any_dtype(values):
        raise DataError(
            f"{origin}: the column {name!r} holds dates; convert it to a number, or leave it out (--ignore {name})"
        )
    found = sorted(set(values.dropna().astype(str)))
    if len(found) > MAX_CATEGORIES or (len(found) == len(values) > _FEW):
        raise DataError(
            f"{origin}: the column {name!r} has {len(found)} different texts in {len(values)} rows, too many for "
            f"categories; leave it out (--ignore {name}), or read it as text (--text {name})"
        )
    _warn_of_numbers(found, name, origin)
    return Column(name, tuple(found))


def _warn_of_numbers(categories: Sequence[str], name: str, origin: str) -> None:
    """Warn of a column that looks like numbers but for a few texts, such as "?" for a missing one."""
    import pandas

    texts = pandas.Series(categories, dtype=object)
    others = texts[pandas.to_numeric(texts, errors="coerce").isna()]
    if len(categories) > _FEW and 0 < len(others) < len(categories) / 10:
        _log.warning(
            "%s: the column %r is read as %d categories, because it has %r among its numbers; leave such values empty "
            "if it should be numbers",
            *(origin, name, len(categories), others.iloc[0]),
        )


def warn_of_missing(frame: DataFrame, names: Sequence[str], origin: str, filled: str) -> None:
    """Warn of these columns' missing values, and say what replaces them."""
    counts = {name: int(frame[name].isna().sum()) for name in names if name in frame}
    if found := [f"{name} {count}" for name, count in counts.items() if count]:
        _log.warning("%s: values are missing (%s); %s", origin, ", ".join(found), filled)


def encode_rows(frame: DataFrame, inputs: Schema, origin: str, *, unknown: bool = False) -> NDArray[np.float32]:
    """The rows as numbers in the order of the schema; NaN for a missing number, 0 for a missing category.

    A category that the schema does not name is refused or, with `unknown`, encoded as missing.
    """
    if problems := list(differences(frame, inputs).values()) if not unknown else []:
        raise DataError(f"{origin}: {problems[0]}")
    rows = np.empty((len(frame), len(inputs.columns)), dtype=np.float32)
    for position, column in enumerate(inputs.columns):
        if column.name not in frame:
            raise DataError(f"{origin}: it has no column {column.name!r}; expected {_names(inputs)}")
        values = frame[column.name]
        if column.categories is None:
            rows[:, position] = _numbers(values, origin)
        else:
            codes = {name: code for code, name in enumerate(column.categories, start=1)}
            texts = _category_names(values).where(values.notna(), None)
            rows[:, position] = [codes.get(text, 0) if text is not None else 0 for text in texts]
    return rows


def _numbers(values: Series[Any], origin: str) -> NDArray[np.float32]:
    import pandas

    numbers = pandas.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float32)
    if np.isinf(stored).any():
        raise DataError(
            f"{origin}: the column {values.name!r} has numbers that are infinite, or larger than {LARGEST:.1e}; "
            "replace them or leave them empty"
        )
    return stored


def _is_numeric(values: Series[Any]) -> bool:
    """Whether these are numbers, or truth values; with missing ones pandas keeps the latter as objects."""
    from pandas.api import types

    return types.is_numeric_dtype(values) or types.infer_dtype(values, skipna=True) in ("boolean", "decimal")


def _category_names(values: Series[Any]) -> Series[Any]:
    """The names of a column's categories; whole numbers that pandas reads as 1.0 because some are missing are "1"."""
    from pandas.api import types

    if types.is_float_dtype(values) and bool((values.dropna() % 1 == 0).all()):
        values = values.astype("Int64")
    return values.astype(str)


def differences(frame: DataFrame, inputs: Schema) -> Mapping[str, str]:
    """The problems of a table that should have this schema, by column, in words; empty if there are none."""
    wrong = {}
    for column in inputs.columns:
        if column.name not in frame:
            wrong[column.name] = f"the column {column.name!r} is missing; expected {_names(inputs)}"
            continue
        values = frame[column.name]
        if column.categories is None:
            if not (_is_numeric(values) or values.isna().all()):
                example = next(text for text in values.dropna().astype(str))
                wrong[column.name] = f"the column {column.name!r} holds text such as {example!r}; expected numbers"
        elif unknown := sorted(set(_category_names(values.dropna())) - set(column.categories)):
            wrong[column.name] = (
                f"the column {column.name!r} has {unknown[0]!r}; expected one of {', '.join(column.categories)}"
            )
    return wrong


def compare_columns(frame: DataFrame, inputs: Schema, others: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
    """For each column of a schema: whether a table fits, and in words what it holds; `others` have another role."""
    wrong = differences(frame, inputs)
    for column in inputs.columns:
        what = f"column {column.name}"
        if column.name in wrong:
            yield what, False, wrong[column.name]
            continue
        values = frame[column.name]
        missing = f", {count} missing" if (count := int(values.isna().sum())) else ""
        if column.categories is None:
            numbers = _numbers(values, "the table")
            known = numbers[~np.isnan(numbers)]
            held = f"numbers from {known.min():g} to {known.max():g}" if len(known) else "numbers"
        else:
            held = f"{values.dropna().nunique()} of {len(column.categories)} categories"
        yield what, True, held + missing
    unused = [str(name) for name in frame.columns if name not in {*others, *(column.name for column in inputs.columns)}]
    if unused:
        yield "columns", True, f"not used here: {', '.join(unused)}"


def _names(inputs: Schema) -> str:
    return ", ".join(column.name for column in inputs.columns)
