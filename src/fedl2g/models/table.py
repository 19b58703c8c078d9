"""Four small networks for rows of a table, from a linear model to a residual one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedl2g.models.split import Builder, FeaturePool, SplitModel
from fedl2g.schema import Schema

_MAX_EMBEDDING = 16  # the largest width of the vector for a category


class Columns(nn.Module):
    """A row as one vector: its standardised numbers, and learnt numbers for each of its categories."""

    def __init__(self, inputs: Schema) -> None:
        super().__init__()
        sizes = inputs.categories
        self.numbers = [column for column, size in enumerate(sizes) if not size]
        self.categories = [column for column, size in enumerate(sizes) if size]
        self.embeddings = nn.ModuleList(
            nn.Embedding(sizes[column], min(_MAX_EMBEDDING, (sizes[column] + 1) // 2)) for column in self.categories
        )
        self.width = len(self.numbers) + sum(sizes_of(self.embeddings))

    def forward(self, rows: Tensor) -> Tensor:
        parts = [rows[:, self.numbers]] if self.numbers else []
        for column, embedding in zip(self.categories, self.embeddings, strict=True):
            parts.append(embedding(rows[:, column].long()))
        return torch.cat(parts, dim=1)


def sizes_of(embeddings: nn.ModuleList) -> list[int]:
    """The widths of embeddings."""
    return [int(embedding.embedding_dim) for embedding in embeddings]  # type: ignore[arg-type]


def table_logistic(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Logistic regression: linear features and a linear head."""
    columns = Columns(inputs)
    return SplitModel(nn.Sequential(columns, nn.Linear(columns.width, feature_dim)), nn.Linear(feature_dim, classes))


def table_mlp(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """One wide hidden layer."""
    columns = Columns(inputs)
    extractor = nn.Sequential(columns, nn.Linear(columns.width, 256), nn.ReLU(inplace=True), FeaturePool(feature_dim))
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def table_deep(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Three narrower hidden layers with BatchNorm and dropout."""
    columns = Columns(inputs)
    layers: list[nn.Module] = [columns]
    width = columns.width
    for _ in range(3):
        layers += [nn.Linear(width, 128), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Dropout(0.1)]
        width = 128
    return SplitModel(nn.Sequential(*layers, FeaturePool(feature_dim)), nn.Linear(feature_dim, classes))


class ResidualLayer(nn.Module):
    """LayerNorm and two layers beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


def table_resnet(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Two residual layers with LayerNorm."""
    columns = Columns(inputs)
    extractor = nn.Sequential(
        columns,
        nn.Linear(columns.width, 128),
        ResidualLayer(128),
        ResidualLayer(128),
        nn.LayerNorm(128),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


BUILDERS: dict[str, Builder] = {
    "table_logistic": table_logistic,
    "table_mlp": table_mlp,
    "table_deep": table_deep,
    "table_resnet": table_resnet,
}
