"""Networks that travel whole: the shared heads of LG-FedAvg and FedGH, the auxiliary models of FML, FedKD and FedMRL.

Parameters and floating-point buffers (BatchNorm's running statistics) travel. Integer buffers (BatchNorm's batch
counters) do not: they are put back to where they started whenever the network arrives, so that what a client computes
depends on what it received and on nothing older.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedl2g.errors import SettingError
from fedl2g.learning.client import Client, Task
from fedl2g.methods.base import ClientHalf, Combined, OptionsT, ServerHalf
from fedl2g.payload import Payload, Specification, tensors_spec


class SharedNetwork(nn.Module):
    """A network, the payload that it is sent as, and what that must look like when it arrives (`expected`)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        state = network.state_dict()
        self._counters = {name: t.clone() for name, t in state.items() if not t.is_floating_point()}
        self.expected = tensors_spec({name: t for name, t in state.items() if name not in self._counters})

    def pack(self) -> Payload:
        """A copy of what travels, on the CPU, row by row whatever the layout in memory."""
        state = {name: t for name, t in self.network.state_dict().items() if name not in self._counters}
        return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in state.items()}

    def load(self, payload: Payload) -> None:
        """Become the network that arrived; noise or an attack may have made a variance negative, which becomes 0."""
        sound = {name: t.clamp(min=0) if name.endswith("running_var") else t for name, t in payload.items()}
        self.network.load_state_dict({**self._counters, **sound})


class SharedNetworkServer(ServerHalf[OptionsT]):
    """Sends the shared network, and takes the mean of those that come back."""

    def __init__(self, options: OptionsT, task: Task) -> None:
        super().__init__(options, task)
        self.shared = SharedNetwork(self.initial_network())

    def initial_network(self) -> nn.Module:
        """The network before the first round; the auxiliary model unless a method says otherwise."""
        return self.task.build_auxiliary()

    def broadcast(self, round: int) -> Payload:
        return self.shared.pack()

    def expected(self) -> Specification:
        return self.shared.expected

    def update(self, round: int, combined: Combined) -> None:
        self.shared.load(combined.payload)


class SharedHeadServer(SharedNetworkServer[OptionsT]):
    """A server whose shared network is the head that all clients have alike."""

    def initial_network(self) -> nn.Module:
        return self.task.build(self.task.auxiliary, "server").head


class AuxiliaryClient(ClientHalf[OptionsT]):
    """A client that trains an auxiliary model, received anew in each round, beside its own."""

    def __init__(self, options: OptionsT, client: Client, feature_dim: int | None = None) -> None:
        super().__init__(options, client)
        self.auxiliary = self.received["auxiliary"] = client.task.build_auxiliary(feature_dim).to(client.device)
        self.shared = SharedNetwork(self.auxiliary)

    def expected(self) -> Specification:
        return self.shared.expected


class SharedHeadClient(ClientHalf[OptionsT]):
    """A client whose head is the server's: it trains from it, and predicts with it."""

    def __init__(self, options: OptionsT, client: Client) -> None:
        super().__init__(options, client)
        self.shared = SharedNetwork(self.model.head)
        # Predictions have a head of their own: what a client is after its last training must not depend on when it
        # was evaluated, or saved.
        self.global_head = self.received["head"] = copy.deepcopy(self.model.head)
        self._arriving = SharedNetwork(self.global_head)

    def expected(self) -> Specification:
        return self.shared.expected

    def check(self, payload: Payload) -> None:
        own = {name: spec.shape for name, spec in self.expected().items()}
        shared = {name: tuple(tensor.shape) for name, tensor in payload.items()}
        if own != shared:
            raise SettingError(
                f"client {self.client.id} cannot share its head {own} with the others, whose head is {shared}; "
                f"{self.options.name} needs the same head on every client: choose other models or another method"
            )
        super().check(payload)

    def receive(self, payload: Payload) -> None:
        self._arriving.load(payload)
        self.global_head.eval()

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.global_head(self.model.extractor(x))
        return logits
