"""What is specific to a deployed run: how it is continued, and which sites took part."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fedl2g.errors import RunError
from fedl2g.files import quoted
from fedl2g.folder import Folder
from fedl2g.seals import read_sealed, write_sealed

SITES_FILE = "sites.json"
_log = logging.getLogger(__name__)
_FEDERATION = "federation.json"  # beside the records of a site, in its store
RUNS = "runs"
"""The folder of the runs in the coordinator's folder."""


@dataclass(frozen=True)
class SiteRecord:
    """What is recorded about a site: its name, and what its own file allows."""

    name: str
    model: str | None = None
    train_samples: int | None = None
    test_samples: int | None = None


def write_sites(run: Path, sites: Mapping[int, SiteRecord]) -> None:
    """Write the sites of a run, by client."""
    write_sealed(Folder(run), SITES_FILE, as_json(sites))


def as_json(sites: Mapping[int, SiteRecord]) -> dict[str, dict[str, object]]:
    """Plain values for JSON."""
    return {str(client): asdict(site) for client, site in sorted(sites.items())}


def read_sites(run: Path) -> dict[int, SiteRecord]:
    """The sites of a run, by client; empty for a run that was not deployed, or if the file cannot be read."""
    if Folder(run).status(SITES_FILE) is None:
        return {}
    try:
        found = read_sealed(Folder(run), SITES_FILE)
        return {int(client): _site(values) for client, values in found.items()}
    except (RunError, ValueError, TypeError, AttributeError) as error:  # no number depends on the names of the sites
        _log.warning("%s: the sites are not named (%s)", run, error)
        return {}


def _site(values: Mapping[str, object]) -> SiteRecord:
    site = SiteRecord(**values)  # type: ignore[arg-type]
    texts = [text for text in (site.name, site.model) if text is not None]
    counts = [count for count in (site.train_samples, site.test_samples) if count is not None]
    if not all(type(text) is str for text in texts) or not all(type(count) is int for count in counts):
        raise ValueError("not a site")
    return site


def in_words(sites: Mapping[int, SiteRecord]) -> str:
    """The sites in one line, for tables: their names and, where known, their networks."""
    return ", ".join(site.name if site.model is None else f"{site.name}={site.model}" for site in sites.values())


def how_to_continue(run: Path) -> str:
    """The advice to continue a deployed run."""
    if (run / ".." / _FEDERATION).is_file():
        return "the coordinator of the federation continues it"
    folder = run.resolve().parent
    if folder.name == RUNS and (folder.parent / "experiment.toml").is_file():
        return f"continue it with `fedl2g deploy run {quoted(run.parent.parent)} --name {quoted(Path(run.name))}`"
    return "continue it with `fedl2g deploy run COORDINATOR --name NAME`, as it was started"
