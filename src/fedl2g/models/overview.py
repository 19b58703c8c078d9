"""Summaries of architectures: size, feature width, step time."""

from __future__ import annotations

from typing import Any

import torch

from fedl2g.models.build import build_model
from fedl2g.models.calibration import step_seconds
from fedl2g.models.catalog import kind_of
from fedl2g.models.example import example_batch
from fedl2g.models.size import count
from fedl2g.models.split import FeaturePool, SplitModel
from fedl2g.schema import Column, Kind, Schema, image_schema

EXAMPLES: dict[Kind, Schema] = {
    "signal": Schema("signal", (9, 128)),
    "table": Schema("table", (30,), tuple(Column(str(number)) for number in range(30))),
    "text": Schema("text", (64,), vocabulary=1 << 14),
}
"""Inputs for describing networks of the other kinds: signals as in `har`, columns as in `breast-cancer`, texts."""


def describe_model(name: str, *, classes: int, image_size: int, measure: bool = True) -> dict[str, Any]:
    """The number of parameters, the feature width before pooling and, with `measure`, the time of a training step."""
    kind = kind_of(name)
    shape = image_schema(3, image_size, image_size) if kind == "image" else EXAMPLES[kind]
    with torch.device("meta"):
        model = build_model(name, classes=classes, inputs=shape)
    return {
        "name": name,
        "parameters": count(model),
        "feature_width": _feature_width(model, shape),
        "step_seconds": step_seconds(name, classes=classes, inputs=shape) if measure else None,
    }


def _feature_width(model: SplitModel, inputs: Schema) -> int:
    """The feature width before pooling, or the final width if nothing is pooled."""
    widths: list[int] = []
    for module in model.modules():
        if isinstance(module, FeaturePool):
            module.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[-1]))
    features, _ = model.eval()(example_batch(inputs, 2, device="meta"))
    return widths[0] if widths else int(features.shape[1])
