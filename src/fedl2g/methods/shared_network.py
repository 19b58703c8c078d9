"""Networks sent as a whole: shared heads (LG-FedAvg, FedGH, FedGen), auxiliary models (FML, FedKD, FedMRL).

Parameters and floating-point buffers (BatchNorm's running statistics) are sent. Integer buffers (BatchNorm's batch
counters) are not: they are reset whenever a network is received, so that a client's computation depends only on the
current broadcast.
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
    """A network with its conversion to and from a payload; `expected` is the required form of that payload."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        state = network.state_dict()
        self._counters = {name: t.clone() for name, t in state.items() if not t.is_floating_point()}
        self.expected = tensors_spec({name: t for name, t in state.items() if name not in self._counters})

    def pack(self) -> Payload:
        """Copy the network into a payload, on the CPU and contiguous whatever its memory layout."""
        state = {name: t for name, t in self.network.state_dict().items() if name not in self._counters}
        return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in state.items()}

    def load(self, payload: Payload) -> None:
        """Load a received network; a variance made negative by noise or an attack is set to 0."""
        sanitized = {name: t.clamp(min=0) if name.endswith("running_var") else t for name, t in payload.items()}
        self.network.load_state_dict({**self._counters, **sanitized})


class SharedNetworkServer(ServerHalf[OptionsT]):
    """Broadcasts the shared network and replaces it by the aggregated uploads."""

    def __init__(self, options: OptionsT, task: Task) -> None:
        super().__init__(options, task)
        self.shared = SharedNetwork(self.initial_network())

    def initial_network(self) -> nn.Module:
        """The network before the first round; by default the auxiliary model."""
        return self.task.build_auxiliary()

    def broadcast(self, round: int) -> Payload:
        return self.shared.pack()

    def expected(self) -> Specification:
        return self.shared.expected

    def update(self, round: int, combined: Combined) -> None:
        self.shared.load(combined.payload)


class SharedHeadServer(SharedNetworkServer[OptionsT]):
    """A server whose shared network is the head common to all clients."""

    def initial_network(self) -> nn.Module:
        return self.task.build(self.task.auxiliary, "server").head


class AuxiliaryClient(ClientHalf[OptionsT]):
    """A client that trains an auxiliary model, received anew in each round, alongside its own."""

    def __init__(self, options: OptionsT, client: Client, feature_dim: int | None = None) -> None:
        super().__init__(options, client)
        self.auxiliary = self.received["auxiliary"] = client.task.build_auxiliary(feature_dim).to(client.device)
        self.shared = SharedNetwork(self.auxiliary)

    def expected(self) -> Specification:
        return self.shared.expected


class SharedHeadClient(ClientHalf[OptionsT]):
    """A client that starts training from the server's head and predicts with it."""

    def __init__(self, options: OptionsT, client: Client) -> None:
        super().__init__(options, client)
        self.shared = SharedNetwork(self.model.head)
        # Predictions use a separate copy: a client's state must not depend on when it was evaluated or saved.
        self.global_head = self.received["head"] = copy.deepcopy(self.model.head)
        self._global = SharedNetwork(self.global_head)

    def expected(self) -> Specification:
        return self.shared.expected

    def check(self, payload: Payload) -> None:
        self.check_head(payload)
        super().check(payload)

    def check_head(self, payload: Payload) -> None:
        """Raise SettingError if the server's head has another form than the client's own."""
        own = {name: spec.shape for name, spec in self.shared.expected.items()}
        shared = {name: tuple(tensor.shape) for name, tensor in payload.items()}
        if own != shared:
            raise SettingError(
                f"models: client {self.client.id} has a head of shape {own}, but the shared head has {shared}; "
                f"{self.options.name} expects the same head on every client; choose other models or another method"
            )

    def receive(self, payload: Payload) -> None:
        self._global.load(payload)
        self.global_head.eval()

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.global_head(self.model.extractor(x))
        return logits
