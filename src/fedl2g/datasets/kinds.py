"""What is known of a dataset's kind from its name alone, before anything is read."""

from __future__ import annotations

from pathlib import Path

from fedl2g.schema import Kind

TABLES = (".csv", ".parquet")
HUB = "hf:"
"""The prefix of datasets of the Hugging Face hub."""
NAMED: dict[str, Kind] = {
    "har": "signal",
    "pamap2": "signal",
    "ag_news": "text",
    "breast-cancer": "table",
    "wine": "table",
}
"""The named datasets that are not images."""


def expected_kind(dataset: str, text: str | None) -> Kind | None:
    """The kind of a dataset by its name; None if only its content says."""
    if dataset in NAMED:
        return NAMED[dataset]
    if Path(dataset).suffix.lower() in TABLES:
        return "text" if text else "table"
    return "text" if text and dataset.startswith(HUB) else None
