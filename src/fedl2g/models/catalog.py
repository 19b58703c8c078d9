"""The names of architectures and model groups (no torch here)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedl2g.errors import SettingError, suggestion
from fedl2g.references import is_reference
from fedl2g.schema import PLURALS, Kind

_HTFE4 = ("cnn4", "googlenet", "mobilenet_v2", "resnet18")
_DEEP_RESNETS = ("resnet34", "resnet50", "resnet101", "resnet152")
_HTFE8 = _HTFE4 + _DEEP_RESNETS
_TRANSFORMERS = ("vit_b_16", "vit_b_32")
_SHALLOW_RESNETS = ("resnet4", "resnet6", "resnet8", "resnet10")
_SMALL = ("small_cnn", "small_googlenet", "small_mobilenet", "small_resnet")
_HEADS = ("", "-h512", "-h256", "-h128")  # HtC_4: a linear head, and three with a hidden layer
_WITH_HEAD = re.compile(r"(.+)-h([1-9][0-9]{0,4})")
_HUB = re.compile(r"(timm|torchvision):[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SENSOR = ("sensor_cnn", "sensor_dilated", "sensor_resnet", "sensor_gru")
_TABLE = ("table_logistic", "table_mlp", "table_deep", "table_resnet")
_TEXT = ("text_bag", "text_cnn", "text_gru", "text_transformer")

ARCHITECTURES: tuple[str, ...] = (
    "cnn4",
    *_SHALLOW_RESNETS,
    "resnet18",
    *_DEEP_RESNETS,
    "googlenet",
    "mobilenet_v2",
    *_TRANSFORMERS,
    *_SMALL,
    *_SENSOR,
    *_TABLE,
    *_TEXT,
)

GROUPS: dict[str, tuple[str, ...]] = {
    "htfe2": ("cnn4", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": _HTFE4,
    "htfe8": _HTFE8,
    "htfe9": (*_SHALLOW_RESNETS, "resnet18", *_DEEP_RESNETS),
    "htm10": _HTFE8 + _TRANSFORMERS,
    "htfe8-htc4": tuple(name + _HEADS[number % 4] for number, name in enumerate(_HTFE8)),
    "res34-htc4": tuple("resnet34" + head for head in _HEADS),
    "small": _SMALL,
    "sensor": _SENSOR,
    "table": _TABLE,
    "text": _TEXT,
}

GROUP_OF_KIND: dict[Kind, str] = {"image": "small", "signal": "sensor", "table": "table", "text": "text"}
"""The group for each kind of data where none is named."""
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(_SENSOR, "signal"),
    **dict.fromkeys(_TABLE, "table"),
    **dict.fromkeys(_TEXT, "text"),
}

# The layout `preset`: architectures whose training step was faster in channels_last memory on two kinds of CPU (AMD
# EPYC and Intel Xeon; figures in docs/performance.md). The table is fixed, so that an experiment is the same
# everywhere; changing it changes the fingerprints of the affected experiments.
CHANNELS_LAST: frozenset[str] = frozenset((*_SMALL, "cnn4", "resnet4", "googlenet", "mobilenet_v2"))


def resolve_models(spec: str | Sequence[str]) -> tuple[str, ...]:
    """Expand the groups in a model setting and check all names, keeping their order.

    `spec` is a group ("htfe4"), an architecture ("cnn4"), several of them separated by commas, or a sequence of such
    names. An element may also be the user's own factory, "package.module:function" or, with the attribute that holds
    the classifier, "package.module:function#classifier". An architecture with the suffix -hWIDTH ("resnet18-h256") has
    a head with one hidden layer of this width. Nothing is imported here.
    """
    parts = spec.split(",") if isinstance(spec, str) else list(spec)
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        raise SettingError(f"models: no model given; expected a group ({', '.join(GROUPS)}) or names such as cnn4")
    return tuple(model for name in names for model in _resolve(name))


def _resolve(name: str) -> tuple[str, ...]:
    if name in GROUPS:
        return GROUPS[name]
    if is_architecture(name) or is_hub(name) or is_reference(name):
        return (name,)
    if ":" in name or "#" in name:
        raise SettingError(
            f"models: {name!r} is not a model factory; expected package.module:function, or "
            "package.module:function#attribute with the attribute that holds the classifier"
        )
    raise SettingError(
        f"models: {name!r} is not known; {suggestion(name.lower(), [*GROUPS, *ARCHITECTURES])}expected a group "
        f"({', '.join(GROUPS)}), an architecture ({', '.join(ARCHITECTURES)}), one of these with a hidden layer in "
        "its head (such as resnet18-h256), timm:NAME, torchvision:NAME or your own package.module:function"
    )


def split_head(name: str) -> tuple[str, int | None]:
    """An architecture and the width of its head's hidden layer: ("resnet18", 256) for resnet18-h256, else None."""
    match = _WITH_HEAD.fullmatch(name)
    return (match[1], int(match[2])) if match is not None and match[1] in ARCHITECTURES else (name, None)


def kind_of(name: str) -> Kind:
    """The kind of data that an architecture of this package takes."""
    return _KINDS.get(split_head(name)[0], "image")


def check_kind(name: str, kind: Kind) -> None:
    """Raise SettingError if an architecture of this package takes another kind of data."""
    takes = kind_of(name)
    if (is_architecture(name) or is_hub(name)) and takes != kind:
        raise SettingError(
            f"models: {name} takes {PLURALS[takes]}, but the data are {PLURALS[kind]}; choose the group "
            f"{GROUP_OF_KIND[kind]}, one of its architectures ({', '.join(GROUPS[GROUP_OF_KIND[kind]])}) or your own"
        )


def is_architecture(name: str) -> bool:
    """Whether this is an architecture of the catalog, with its own head or with a hidden layer in it."""
    return split_head(name)[0] in ARCHITECTURES


def is_hub(name: str) -> bool:
    """Whether this names a network of timm or torchvision; nothing is imported."""
    return _HUB.fullmatch(name) is not None


def has_equal_heads(names: Sequence[str]) -> bool:
    """Whether clients with these architectures can share one head, as LG-FedAvg, FedGH and FedGen require.

    The vision transformers' heads have a hidden layer, and so have those named with its width; all others are linear.
    What a user's factory builds is not known before it runs, so it counts as equal here; its shapes are compared once
    the models exist.
    """
    kinds = {split_head(name)[1] or name in _TRANSFORMERS for name in names if is_architecture(name)}
    return len(kinds) <= 1
