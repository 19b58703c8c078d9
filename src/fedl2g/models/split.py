"""Splitting of networks into an extractor with features of one common width and a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedl2g.errors import SettingError
from fedl2g.models.example import example_batch
from fedl2g.schema import Schema

HEAD_ATTRIBUTES = ("fc", "classifier", "head", "heads")


class SplitModel(nn.Module):
    """A client's network: `features = extractor(x)`, `logits = head(features)`, both returned by a call."""

    extractor: nn.Module
    head: nn.Module

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.extractor(x)
        return features, self.head(features)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], super().__call__(x))


Builder = Callable[[int, Schema, int], SplitModel]
"""Builds a network from (classes, image shape, feature width)."""


def require_pixels(name: str, inputs: Schema, least: int) -> None:
    """Raise SettingError for images that are too small for a network, whose layers halve them several times."""
    _, height, width = inputs.shape
    if min(height, width) < least:
        raise SettingError(
            f"models: {name} cannot take {height} x {width} pixels; expected at least {least} x {least}; set "
            "image_size, or choose another network"
        )


class FeaturePool(nn.Module):
    """Maps features of any width to the common one by adaptive average pooling along the feature axis.

    Wider features are averaged (2048 to 512: means of 4), narrower ones repeated (64 to 512: each 8 times).
    """

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim

    def forward(self, features: Tensor) -> Tensor:
        width = features.shape[-1]
        if width == self.feature_dim:
            return features
        # Fast path: integer multiples have an exact equivalent that is faster and also deterministic on GPUs.
        if width % self.feature_dim == 0:
            batch = features.shape[0]  # not len(), which would fix the batch size of an exported program
            return features.reshape(batch, self.feature_dim, -1).mean(-1)
        if self.feature_dim % width == 0:
            return features.repeat_interleave(self.feature_dim // width, dim=-1)
        return F.adaptive_avg_pool1d(features, self.feature_dim)

    def extra_repr(self) -> str:
        return f"feature_dim={self.feature_dim}"


def split_model(
    module: nn.Module | tuple[nn.Module, nn.Module],
    *,
    classes: int,
    feature_dim: int = 512,
    inputs: Schema,
    head_name: str | None = None,
) -> SplitModel:
    """Split a user's network into extractor and head, and check the result on a batch of two.

    A whole classifier is cut before the last Linear of its head, found as the attribute `head_name` or else `fc`,
    `classifier`, `head`, `heads`, or as the last Linear of a Sequential. That Linear and what follows it are removed
    from `module`; its features are pooled to `feature_dim` and get a fresh Linear(feature_dim, classes).

    A pair (extractor, head), or a module with these two attributes, keeps its own head, which must take `feature_dim`
    features and give `classes` logits.
    """
    if isinstance(module, SplitModel):
        model = module
    elif (pair := _given_pair(module)) is not None and head_name is None:
        extractor, head = pair
        model = SplitModel(nn.Sequential(extractor, FeaturePool(feature_dim)), head)
    elif isinstance(module, nn.Module):
        model = _cut(module, _find_head(module, head_name), classes, feature_dim)
    else:
        raise SettingError(
            f"the factory returned {_kind(module)}; expected a torch.nn.Module or a pair (extractor, head) of them"
        )
    _check_split(model, classes, feature_dim, inputs)
    return model


def replace_head(module: nn.Module, head_name: str, replacement: nn.Module) -> None:
    """Replace the last Linear of `module.<head_name>` and drop what follows it in its Sequential.

    Layers before that Linear inside the head, such as dropout, stay and become part of the extractor.
    """
    owner, _, attribute = _last_linear(module, head_name).rpartition(".")
    parent = module.get_submodule(owner)
    if isinstance(parent, nn.Sequential):
        names = [name for name, _ in parent.named_children()]
        for name in names[names.index(attribute) + 1 :]:
            delattr(parent, name)  # not `del parent[i:]`, which renames the layers that stay
    setattr(parent, attribute, replacement)


def _given_pair(module: object) -> tuple[nn.Module, nn.Module] | None:
    if isinstance(module, nn.Module):
        pair: tuple[object, ...] = (getattr(module, "extractor", None), getattr(module, "head", None))
    elif isinstance(module, tuple | list):
        pair = tuple(module)
    else:
        return None
    if len(pair) == 2 and isinstance(pair[0], nn.Module) and isinstance(pair[1], nn.Module):
        return pair[0], pair[1]
    return None


def _find_head(module: nn.Module, head_name: str | None) -> str:
    if head_name is not None:
        try:
            module.get_submodule(head_name)
        except AttributeError:
            children = ", ".join(name for name, _ in module.named_children()) or "none"
            raise SettingError(
                f"{_kind(module)} has no submodule {head_name!r} to use as its head; its submodules are {children}"
            ) from None
        candidates: tuple[str, ...] = (head_name,)
    else:
        candidates = tuple(name for name in HEAD_ATTRIBUTES if isinstance(getattr(module, name, None), nn.Module))
        if isinstance(module, nn.Sequential):
            candidates = (*candidates, "")
    for name in candidates:
        if _last_linear(module, name, missing_ok=True):
            return name
    looked_at = f"the submodule {head_name!r}" if head_name else f"the attributes {', '.join(HEAD_ATTRIBUTES)}"
    raise SettingError(
        f"cannot find the head of {_kind(module)}: no Linear layer was found in {looked_at}"
        f"{'' if head_name else ', and it is not a Sequential that contains one'}; name the attribute that holds the "
        "classifier (package.module:function#attribute), or let the factory return a pair (extractor, head)"
    )


def _last_linear(module: nn.Module, head_name: str, *, missing_ok: bool = False) -> str:
    head = module.get_submodule(head_name)
    found = [name for name, part in head.named_modules() if isinstance(part, nn.Linear)]
    if not found:
        if missing_ok:
            return ""
        raise SettingError(f"the head {head_name!r} of {_kind(module)} has no Linear layer to replace")
    return ".".join(part for part in (head_name, found[-1]) if part)


def _cut(module: nn.Module, head_name: str, classes: int, feature_dim: int) -> SplitModel:
    weight = cast(nn.Linear, module.get_submodule(_last_linear(module, head_name))).weight
    head = nn.Linear(feature_dim, classes, device=weight.device, dtype=weight.dtype)
    replace_head(module, head_name, FeaturePool(feature_dim))
    return SplitModel(module, head)


def _check_split(model: SplitModel, classes: int, feature_dim: int, inputs: Schema) -> None:
    """Run a batch of two through the split model; raises SettingError if its outputs cannot be used."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    pooled: list[Tensor] = []
    hooks = [
        part.register_forward_hook(lambda _module, _inputs, output: pooled.append(output))
        for part in model.extractor.modules()
        if isinstance(part, FeaturePool)
    ]
    try:
        with torch.no_grad():
            features = _run("extractor", model.extractor, _probe(model, inputs), inputs.shape)
            _expect("extractor", features, feature_dim, "features")
            if pooled and not _same(features, pooled[-1]):
                raise SettingError(
                    f"{_kind(model.extractor)} changes the output of its head (e.g. by a softmax) before returning it "
                    "and cannot be split there; let the factory return a pair (extractor, head) instead"
                )
            logits = _run("head", model.head, features, tuple(features.shape[1:]))
            _expect("head", logits, classes, "logits")
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training


def _probe(model: nn.Module, inputs: Schema) -> Tensor:
    like = next(model.parameters(), torch.empty(0))
    # Varied values: with constant inputs an activation after the head could go undetected.
    return example_batch(inputs, 2, dtype=like.dtype, device=like.device)


def _run(part: str, module: nn.Module, inputs: Tensor, shape: tuple[int, ...]) -> Tensor:
    try:
        outputs = module(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        advice = (
            f"it must take {shape[0]} features; change the head, set feature_dim to its width, or return the whole "
            "classifier as one module to get a new head"
            if part == "head"
            else "it must take the inputs of the dataset unchanged"
        )
        raise SettingError(
            f"the {part} of the model fails on a batch of shape {(2, *shape)} ({error}); {advice}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise SettingError(f"the {part} of the model returned {_kind(outputs)}; expected one tensor")
    return outputs


def _expect(part: str, outputs: Tensor, width: int, what: str) -> None:
    if outputs.shape != (2, width):
        raise SettingError(
            f"the {part} of the model turns a batch of 2 into {what} of shape {tuple(outputs.shape)}; expected "
            f"(2, {width})"
        )
    if not outputs.is_meta and not bool(torch.isfinite(outputs).all()):
        raise SettingError(
            f"the {part} of the model gives {what} that are NaN or infinite for inputs with values from -1 to 1; "
            "check its initial weights"
        )


def _same(features: Tensor, pooled: Tensor) -> bool:
    return features.shape == pooled.shape and (features.is_meta or torch.equal(features, pooled))


def _kind(thing: object) -> str:
    return (
        f"the {type(thing).__name__}" if isinstance(thing, nn.Module) else f"an object of type {type(thing).__name__}"
    )
