"""Networks that travel whole."""

from __future__ import annotations

import torch

from fedl2g.methods.shared_network import SharedNetwork


def test_a_negative_variance_does_no_harm() -> None:
    network = SharedNetwork(torch.nn.BatchNorm1d(2))
    network.load({**network.pack(), "running_var": torch.tensor([-3.0, 2.0])})
    assert network.pack()["running_var"].tolist() == [0.0, 2.0]
    network.network.eval()
    assert torch.isfinite(network.network(torch.ones(1, 2))).all()
