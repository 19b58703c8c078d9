"""Samplers: which clients take part in a round."""

from __future__ import annotations

import operator

from fedl2g import rng
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.privacy.mechanism import with_key
from fedl2g.registry import samplers
from fedl2g.round.policy import Policy


class Sampler(Policy):
    """Draws the participants of a round; deterministic in the round."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def draw(self, round: int) -> list[int]:
        """The clients that take part in a round, ascending."""
        raise NotImplementedError

    def plan(self, round: int) -> list[int]:
        """The clients that were drawn; SettingError if they cannot be, since anybody may write a sampler."""
        drawn = self.draw(round)
        try:
            clients = [operator.index(client) for client in drawn]
        except TypeError:
            clients = [-1]
        if clients != sorted(set(clients)) or (
            clients and not 0 <= clients[0] <= clients[-1] < self.experiment.clients
        ):
            raise SettingError(
                f"sampler: {self.experiment.sampler_name!r} drew {str(drawn)[:200]} for round {round}; expected "
                f"numbers from 0 to {self.experiment.clients - 1}, ascending and each once; correct its `draw`"
            )
        return clients


class Uniform(Sampler):
    """A fixed number of clients, drawn without replacement."""

    def draw(self, round: int) -> list[int]:
        e = self.experiment
        stream = rng.numpy_stream(e.seed, "participants", round)
        return sorted(stream.choice(e.clients, size=e.participants_per_round, replace=False).tolist())


class Poisson(Sampler):
    """Each client independently with probability `participation`, as privacy amplification by sampling assumes."""

    def draw(self, round: int) -> list[int]:
        e = self.experiment
        draws = rng.numpy_stream(e.seed, with_key("poisson"), round).random(e.clients)
        return (draws < e.participation).nonzero()[0].tolist()


def register_sampler(name: str, sampler: type[Sampler]) -> None:
    """Register a sampler under a name for the setting `sampler`."""
    samplers.register(name, sampler, sampler)


register_sampler("uniform", Uniform)
register_sampler("poisson", Poisson)
