"""An example of your own method in one file: prototypes as exponential moving averages of the class means.

    fedl2g run --plugin examples/fedema.py --method fedema --set method.memory=0.9

Client loss: CE(f(x), y) + weight * MSE(h(x), P[y]), where P[y] is the server's average for class y, if it has one.
"""

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g import ClientHalf, Options, Trained, Traits, register_method
from fedl2g.methods.class_means import ClassMeans, ClassMeanServer, ClassTargets
from fedl2g.payload import class_vector_spec


class FedEMAOptions(Options):
    """Prototypes with a memory, as an example of a method of your own."""

    name: str = "fedema"
    memory: float = Field(0.9, ge=0, lt=1, description="Share of the old prototype that is kept in each round.")
    weight: float = Field(1.0, ge=0, description="Weight of the distance to the prototypes.")


class FedEMAServer(ClassMeanServer[FedEMAOptions]):
    width = property(lambda self: self.task.feature_dim)

    def update(self, round, combined):
        ids, means = combined.payload["ids"], combined.payload["rows"]
        keep = torch.where(self.known[ids], self.options.memory, 0.0)[:, None].to(means.dtype)
        self.vectors[ids] = keep * self.vectors[ids] + (1 - keep) * means
        self.known[ids] = True


class FedEMAClient(ClientHalf[FedEMAOptions]):
    def expected(self):
        task = self.client.task
        return class_vector_spec(task.classes, task.feature_dim, task.dtype)

    def train(self, round, payload):
        targets, means = ClassTargets(payload, self.client), ClassMeans(self.client, self.client.task.feature_dim)

        def loss(x, y):
            features, logits = self.model(x)
            means.add(features, y)
            own = cross_entropy(logits, y)
            target = torch.where(targets.known[y, None], targets.vectors[y], features.detach())
            return own + self.options.weight * mse_loss(features, target), own

        log = self.client.fit(round, loss)
        return Trained(means.pack(), log)


traits = Traits(uploads="class vectors", vectors="features")
register_method("fedema", options=FedEMAOptions, server=FedEMAServer, client=FedEMAClient, traits=traits)
