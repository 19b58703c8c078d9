"""Extends a run: more rounds in the same directory, with the same bits as a run that had them from the start."""

from __future__ import annotations

from fedl2g.experiment import Experiment
from fedl2g.experiment.extension import check_extension
from fedl2g.runs.checkpoint import checkpoints
from fedl2g.runs.directory import RunDirectory


def extend(directory: RunDirectory, experiment: Experiment) -> None:
    """Give a run the rounds of this experiment, if they are more; the caller holds the directory's lock.

    The order of the steps matters: a run killed between two of them can continue, either as it was or as extended.
    """
    about = directory.about()
    if about["fingerprint"] == experiment.fingerprint:
        if directory.settings().get("rounds") != experiment.rounds:  # killed in the last step below
            directory.write_rounds(experiment)
        return
    check_extension(directory.path, about, experiment)
    directory.reopen()
    if about["rounds"] % experiment.evaluate_every:
        # The last round is always evaluated, but this one would not have been in a longer run: repeat the rounds since
        # the checkpoint before it.
        for checkpoint in checkpoints(directory.checkpoints):
            if checkpoint.round == about["rounds"]:
                directory.folder.remove(f"checkpoints/{checkpoint.path.name}")
    directory.write_rounds(experiment)
