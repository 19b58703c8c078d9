"""The pipeline of upload stages, built from the experiment and applied on every client."""

from __future__ import annotations

from collections.abc import Sequence

from fedl2g.experiment import Experiment
from fedl2g.learning.client import Client
from fedl2g.privacy.mechanism import Mechanism
from fedl2g.uploads.attack import Corrupt, hostile_clients
from fedl2g.uploads.dense import Dense, Densify
from fedl2g.uploads.noise import AddNoise
from fedl2g.uploads.protection import Protect
from fedl2g.uploads.stage import Stage, Upload


class Stages(Stage):
    """A sequence of stages, applied in order."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)

    def prepare(self, client: Client) -> None:
        for stage in self.stages:
            stage.prepare(client)

    def apply(self, upload: Upload) -> Upload:
        for stage in self.stages:
            upload = stage.apply(upload)
        return upload


def upload_stages(experiment: Experiment, classes: int) -> Stages:
    """The stages that an experiment needs, in order. A new stage is a file in this package and a line here."""
    e = experiment
    stages: list[Stage] = []
    if (dense := Dense.of(e.privacy, classes)) is not None:  # first: rows of absent classes need noise too
        stages.append(Densify(dense))
    if e.noise.on:
        stages.append(AddNoise(e.noise, e.seed))
    if (mechanism := Mechanism.of(e)) is not None:
        stages.append(Protect(mechanism))
    if hostile := hostile_clients(e.attack, e.clients, e.seed):
        stages.append(Corrupt(e.attack, hostile, e.seed))
    return Stages(stages)
