"""Four small networks for signals, channels x time, that differ in kind: for wearables, machines and other sensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedl2g.models.split import Builder, FeaturePool, SplitModel
from fedl2g.schema import Schema


def sensor_cnn(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Two plain convolutions with pooling: the smallest of its group."""
    extractor = nn.Sequential(
        nn.Conv1d(inputs.shape[0], 32, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool1d(32),
        nn.Conv1d(32, 64, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool1d(8),
        nn.Flatten(),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def sensor_dilated(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Dilated convolutions, each reaching twice as far as the one before it, without normalisation.

    Normalising each sample would remove the strength of its signal, which tells rest from motion.
    """
    layers: list[nn.Module] = []
    channels = inputs.shape[0]
    for dilation in (1, 2, 4, 8):
        layers += [
            nn.Conv1d(channels, 48, kernel_size=3, padding=dilation, dilation=dilation),
            nn.ReLU(inplace=True),
        ]
        channels = 48
    pooled = [nn.AdaptiveAvgPool1d(8), nn.Flatten(), FeaturePool(feature_dim)]
    return SplitModel(nn.Sequential(*layers, *pooled), nn.Linear(feature_dim, classes))


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, out, kernel_size=7, stride=stride, padding=3, bias=False),
            nn.BatchNorm1d(out),
            nn.ReLU(inplace=True),
            nn.Conv1d(out, out, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm1d(out),
        )
        self.shortcut = nn.Conv1d(channels, out, kernel_size=1, stride=stride, bias=False)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return out


def sensor_resnet(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Three residual blocks with BatchNorm."""
    extractor = nn.Sequential(
        ResidualBlock(inputs.shape[0], 32, stride=1),
        ResidualBlock(32, 64, stride=2),
        ResidualBlock(64, 64, stride=2),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


class LastAndMean(nn.Module):
    """A GRU over time: its last state and the mean of its states, with LayerNorm."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, hidden, batch_first=True)
        self.norm = nn.LayerNorm(2 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x.transpose(1, 2))
        out: Tensor = self.norm(torch.cat([states[:, -1], states.mean(1)], dim=1))
        return out


def sensor_gru(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """A recurrent network, on quarters of the time axis where signals are long."""
    thinned: list[nn.Module] = [nn.AvgPool1d(4)] if inputs.shape[1] >= 64 else []
    extractor = nn.Sequential(*thinned, LastAndMean(inputs.shape[0], 64), FeaturePool(feature_dim))
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


BUILDERS: dict[str, Builder] = {
    "sensor_cnn": sensor_cnn,
    "sensor_dilated": sensor_dilated,
    "sensor_resnet": sensor_resnet,
    "sensor_gru": sensor_gru,
}
