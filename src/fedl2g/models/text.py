"""Four small networks for texts, token ids filled with 0: padding never changes what they give."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedl2g.models.split import Builder, FeaturePool, SplitModel
from fedl2g.schema import Schema

_WIDTH = 64
_LOWEST = -1e4  # below any activation: a maximum over tokens never takes padding


def mean_of_tokens(values: Tensor, real: Tensor) -> Tensor:
    """The mean over the tokens of each text that are not padding: N x tokens x width to N x width."""
    weights = real.to(values.dtype)[:, :, None]
    return (values * weights).sum(1) / weights.sum(1).clamp(min=1.0)


class BagOfWords(nn.Module):
    """The mean of the words' vectors, and one hidden layer."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _WIDTH, padding_idx=0)
        self.hidden = nn.Linear(_WIDTH, 2 * _WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return F.relu(self.hidden(mean_of_tokens(self.embedding(ids), ids > 0)))


class TextCNN(nn.Module):
    """Convolutions over two, three and four words, each with its maximum over the text."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _WIDTH, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(_WIDTH, _WIDTH, size) for size in (2, 3, 4))

    def forward(self, ids: Tensor) -> Tensor:
        words = self.embedding(ids).transpose(1, 2)
        words = words * (ids > 0).to(words.dtype)[:, None]
        found = []
        for size, convolution in zip((2, 3, 4), self.convolutions, strict=True):
            # Windows that start at a real token, with zeros after the last one.
            values = F.relu(convolution(F.pad(words, (0, size - 1))))
            found.append(values.masked_fill((ids == 0)[:, None], _LOWEST).amax(2))
        return torch.cat(found, dim=1)


class BiGRU(nn.Module):
    """A GRU from the left and one from the right, and the means of their states."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _WIDTH, padding_idx=0)
        self.forwards = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.backwards = nn.GRU(_WIDTH, _WIDTH, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids > 0
        words = self.embedding(ids)
        lengths = real.sum(1, keepdim=True)
        # Each text reversed by itself, so that its padding stays at the end.
        places = (lengths - 1 - torch.arange(ids.shape[1], device=ids.device)).clamp(min=0)
        reversed_words = words.gather(1, places[:, :, None].expand_as(words))
        there, _ = self.forwards(words)
        back, _ = self.backwards(reversed_words)
        return torch.cat([mean_of_tokens(there, real), mean_of_tokens(back, real)], dim=1)


class Transformer(nn.Module):
    """Two layers of attention that do not see padding, over words with learnt positions."""

    def __init__(self, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, _WIDTH, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(tokens, _WIDTH))
        nn.init.normal_(self.positions, std=0.02)
        layer = nn.TransformerEncoderLayer(
            _WIDTH, 4, 2 * _WIDTH, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(_WIDTH), enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.embedding(ids) + self.positions[: ids.shape[1]]
        return mean_of_tokens(self.encoder(words, src_key_padding_mask=ids == 0), ids > 0)


def _split(network: nn.Module, classes: int, feature_dim: int) -> SplitModel:
    return SplitModel(nn.Sequential(network, FeaturePool(feature_dim)), nn.Linear(feature_dim, classes))


def text_bag(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """A bag of embeddings."""
    return _split(BagOfWords(inputs.vocabulary), classes, feature_dim)


def text_cnn(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Convolutions over neighbouring words."""
    return _split(TextCNN(inputs.vocabulary), classes, feature_dim)


def text_gru(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """A recurrent network in both directions."""
    return _split(BiGRU(inputs.vocabulary), classes, feature_dim)


def text_transformer(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """A small transformer."""
    return _split(Transformer(inputs.vocabulary, inputs.shape[0]), classes, feature_dim)


BUILDERS: dict[str, Builder] = {
    "text_bag": text_bag,
    "text_cnn": text_cnn,
    "text_gru": text_gru,
    "text_transformer": text_transformer,
}
