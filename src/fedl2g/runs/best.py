"""Keeps the models of the best round: copied when a round is the best so far, written into every checkpoint.

They belong to the checkpoint, so that a resumed run has those of the round from which it continues. Between two
checkpoints they are in the run's scratch folder, mostly as hard links.
"""

from __future__ import annotations

from pathlib import Path

from fedl2g.engines.states import link
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation
from fedl2g.files import replacing
from fedl2g.round.record import RoundRecord, selected_record
from fedl2g.runs.checkpoint import SERVER_PREFIX, Checkpoint, seal, unchanged, write_tensors, writing


class BestModels:
    """The models of the best round so far, wherever they are; nothing before the first evaluation."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch / "best"
        self._stored: Path | None = None  # in a checkpoint
        self._copied: tuple[Experiment, RoundRecord] | None = None  # in the scratch folder, more recent

    def restore(self, checkpoint: Path | None) -> None:
        """Continue with the models in a checkpoint, or without any."""
        best = Checkpoint(checkpoint).best if checkpoint is not None else None
        self._stored, self._copied = best.path if best is not None else None, None

    def offer(self, federation: Federation, record: RoundRecord) -> None:
        """Copy the models after a round if it is the best so far."""
        if selected_record(federation.history) is not record:
            return
        server = federation.server.state_dict().items()
        with writing(self._scratch, self._scratch.parent.parent, "the models of the best round"):
            self._scratch.parent.mkdir(exist_ok=True)
            with replacing(self._scratch, durable=False) as partial:
                partial.mkdir()
                federation.engine.save(partial)
                write_tensors(partial, {SERVER_PREFIX + name: tensor for name, tensor in server})
        self._copied = (federation.experiment, record)

    def write(self, target: Path) -> None:
        """Write the models into the folder of a checkpoint that is being made and has its other files already."""
        source = self._stored if self._copied is None else self._scratch
        if source is None:
            return
        target.mkdir()
        for file in source.iterdir():
            link(file, target / file.name)
        if self._copied is not None:
            # Only now: most best rounds are replaced by a better one before their digests are needed.
            experiment, record = self._copied
            known = unchanged(target, Checkpoint(target.parent))
            seal(target, experiment, record.round, {"history": [record.to_dict()]}, known)
