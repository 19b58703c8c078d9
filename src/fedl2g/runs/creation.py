"""A new run directory, which appears as a whole or not at all."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.errors import RunError
from fedl2g.files import appearing, reason_of
from fedl2g.privacy.noise_key import key_fingerprint
from fedl2g.references import loaded_plugins
from fedl2g.runs.environment import describe_environment
from fedl2g.runs.layout import ABOUT, CHECKPOINTS, ENVIRONMENT, EXPERIMENT, FIGURES, METRICS, PARTITION
from fedl2g.seals import digest, sealed

if TYPE_CHECKING:
    from fedl2g.setup import Setup


def write_new(path: Path, setup: Setup, version: int) -> None:
    """Write the directory of a run that has not started; `version` is that of the format."""
    experiment = setup.experiment
    files = {
        EXPERIMENT: experiment.to_toml(),
        PARTITION: setup.partition.to_json(),
        ENVIRONMENT: json.dumps(describe_environment(), indent=2),
    }
    about = {
        "format": version,
        "id": secrets.token_hex(16),
        "method": experiment.method.name,
        "dataset": experiment.dataset,
        "partition": experiment.partition,
        "models": experiment.models,
        "clients": experiment.clients,
        "rounds": experiment.rounds,
        "seed": experiment.seed,
        "fingerprint": experiment.fingerprint,
        "dataset_fingerprint": setup.dataset.fingerprint,
        "plugins": loaded_plugins(),
        **({"noise_key": key_fingerprint()} if experiment.privacy.on else {}),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),  # sorts as text, also within a second
        "files": {name: [digest(text.encode())] for name, text in files.items()},
    }
    files |= {METRICS: "", ABOUT: sealed(about)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing(path) as partial:
            for folder in (CHECKPOINTS, FIGURES):
                (partial / folder).mkdir(parents=True)
            for name, text in files.items():
                (partial / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"{path}: the run directory cannot be created ({reason_of(error)}); choose another --out"
        ) from error
