"""The names of the files and folders of a run directory."""

from __future__ import annotations

from pathlib import Path

ABOUT = "run.json"
"""What the run is; a folder that holds it is a run directory."""
EXPERIMENT = "experiment.toml"
PARTITION = "partition.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
SCORES = "scores.json"
LOCK = "lock"
CHECKPOINTS = "checkpoints"
FIGURES = "figures"


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return (path / ABOUT).is_file()
