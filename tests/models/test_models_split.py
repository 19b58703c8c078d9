"""A user's own network: where it is cut, what is kept, and how a wrong one is refused."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torchvision.models as torchvision_models
from torch import Tensor, nn

from fedl2g.errors import SettingError
from fedl2g.models import SplitModel, build_model, split_model
from fedl2g.schema import image_schema

SHAPE = (1, 8, 8)


class Net(nn.Module):
    """A network with an odd name for its head, and an optional activation behind it."""

    def __init__(self, head: nn.Module, name: str = "fc", after: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh())
        self.name = name
        self.after = after
        setattr(self, name, head)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = getattr(self, self.name)(self.body(x))
        return logits if self.after is None else self.after(logits)


def split(module: object, head_name: str | None = None, feature_dim: int = 12) -> SplitModel:
    return split_model(module, classes=3, feature_dim=feature_dim, inputs=image_schema(*SHAPE), head_name=head_name)  # type: ignore[arg-type]


def layers(module: nn.Module) -> list[str]:
    return [type(part).__name__ for part in module.modules() if not list(part.children())]


@pytest.mark.parametrize("name", ["fc", "classifier", "head", "heads"])
def test_usual_attributes_are_found(name: str) -> None:
    model = split(Net(nn.Linear(6, 99), name))
    features, logits = model(torch.randn(5, *SHAPE))
    assert features.shape == (5, 12)
    assert logits.shape == (5, 3)
    assert torch.equal(features[:, ::2], features[:, 1::2])
    assert layers(model.extractor)[-1] == "FeaturePool"


def test_dropout_before_the_last_layer_stays_and_a_softmax_behind_it_goes() -> None:
    head = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Dropout(0.3), nn.Linear(4, 99), nn.LogSoftmax(1))
    model = split(Net(head, "classifier"))
    assert layers(model.extractor)[-4:] == ["Linear", "ReLU", "Dropout", "FeaturePool"]
    assert model(torch.randn(2, *SHAPE))[0].shape == (2, 12)


def test_names_of_the_layers_that_stay_are_kept() -> None:
    net = nn.Sequential(OrderedDict(flat=nn.Flatten(), hidden=nn.Linear(64, 6), out=nn.Linear(6, 2), act=nn.Softmax(1)))
    model = split(net)
    assert list(dict(model.extractor.named_children())) == ["flat", "hidden", "out"]
    assert list(model.state_dict()) == ["extractor.hidden.weight", "extractor.hidden.bias", "head.weight", "head.bias"]


def test_named_head() -> None:
    with pytest.raises(SettingError, match="cannot find the head of the Net"):
        split(Net(nn.Linear(6, 9), "output_layer"))
    model = split(Net(nn.Linear(6, 9), "output_layer"), head_name="output_layer")
    assert model(torch.randn(2, *SHAPE))[1].shape == (2, 3)
    with pytest.raises(SettingError, match=r"no submodule 'outputs'.*body, output_layer"):
        split(Net(nn.Linear(6, 9), "output_layer"), head_name="outputs")
    with pytest.raises(SettingError, match="no Linear layer was found in the submodule 'output_layer'"):
        split(Net(nn.Tanh(), "output_layer"), head_name="output_layer")


def test_an_activation_behind_the_head_is_noticed() -> None:
    with pytest.raises(SettingError, match="changes the output of its head"):
        split(Net(nn.Linear(6, 9), after=nn.Softmax(1)))


@pytest.mark.parametrize(("part", "what"), [("extractor", "features"), ("head", "logits")])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_network_without_numbers_is_refused(part: str, what: str, value: float) -> None:
    extractor, head = nn.Sequential(nn.Flatten(), nn.Linear(64, 12)), nn.Linear(12, 3)
    nn.init.constant_((head if part == "head" else extractor[1]).bias, value)
    with pytest.raises(SettingError, match=f"{part} of the model gives {what} that are NaN or infinite"):
        split((extractor, head))


def test_given_heads_are_kept() -> None:
    extractor, head = nn.Sequential(nn.Flatten(), nn.Linear(64, 6)), nn.Linear(12, 3)
    model = split((extractor, head))
    assert model.head is head
    assert model(torch.randn(2, *SHAPE))[0].shape == (2, 12)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.extractor, self.head = extractor, head

    assert split(Both()).head is head
    ready = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 12)), head)
    assert split(ready) is ready


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ((nn.Flatten(), nn.Linear(64, 3)), "must take 12 features.*feature_dim"),
        ((nn.Flatten(), nn.Linear(12, 4)), r"logits of shape \(2, 4\); expected \(2, 3\)"),
        ((nn.Linear(5, 12), nn.Linear(12, 3)), "extractor of the model fails on a batch of shape"),
        (SplitModel(nn.Flatten(), nn.Linear(64, 3)), r"features of shape \(2, 64\); expected \(2, 12\)"),
        ((nn.Flatten(), "head"), r"returned an object of type tuple; expected a torch.nn.Module or a pair"),
        (42, "returned an object of type int"),
    ],
)
def test_unusable_modules_are_explained(module: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        split(module)


def test_the_check_leaves_the_module_as_it_was() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    net[2].eval()
    state = torch.get_rng_state()
    model = split_model((net[:3], nn.Linear(12, 3)), classes=3, feature_dim=12, inputs=image_schema(*SHAPE))
    assert model.training
    assert not net[2].training
    assert net[2].num_batches_tracked == 0
    assert not any(part._forward_hooks for part in model.modules())
    torch.set_rng_state(state)


def test_torchvision_networks_split_as_ours_do() -> None:
    with torch.device("meta"):
        for name in ("resnet18", "mobilenet_v2", "vit_b_32"):
            options = {"image_size": 32} if name.startswith("vit") else {}
            theirs = getattr(torchvision_models, name)(**options)
            given = split_model(theirs, classes=4, inputs=image_schema(3, 32, 32))
            ours = build_model(name, classes=4, inputs=image_schema(3, 32, 32))
            assert list(given.extractor.state_dict()) == list(ours.extractor.state_dict())


FACTORIES = """
import torch
from torch import nn

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6))

def sized(classes, image_shape, *, feature_dim=512):
    assert image_shape == (1, 8, 8)
    return nn.Flatten(), nn.Sequential(nn.Linear(feature_dim, 5), nn.Linear(5, classes))

def passing_on(**options):
    assert not options
    return plain()

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.output_layer = plain()
    def forward(self, x):
        return self.output_layer(x)

def broken():
    raise KeyError("weights")

def demanding(depth):
    return plain()

not_callable = 3
"""


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hospital_nets.py").write_text(FACTORIES)
    (tmp_path / "hospital_broken.py").write_text("import a_library_nobody_has")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "hospital_nets", raising=False)
    return "hospital_nets"


@pytest.mark.parametrize("function", ["plain", "sized", "passing_on", "Odd#output_layer"])
def test_factories(hospital: str, function: str) -> None:
    model = build_model(f"{hospital}:{function}", classes=3, inputs=image_schema(*SHAPE), feature_dim=128)
    features, logits = model(torch.randn(2, *SHAPE))
    assert features.shape == (2, 128)
    assert logits.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hospital_nets:broken", r"'hospital_nets:broken' failed \(KeyError: 'weights'\)"),
        ("hospital_nets:demanding", "failed .TypeError.*depth"),
        ("hospital_nets:missing", "'hospital_nets' has no 'missing'"),
        ("hospital_nets:not_callable", "not_callable' is not a function"),
        ("hospital_nets:Odd", "'hospital_nets:Odd' cannot be used: cannot find the head"),
        ("hospital_broken:make", "'hospital_broken' cannot be imported.*a_library_nobody_has"),
        ("hospital_nowhere:make", "'hospital_nowhere' cannot be imported.*PYTHONPATH"),
    ],
)
def test_failing_factories_are_explained(hospital: str, name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build_model(name, classes=3, inputs=image_schema(*SHAPE))


def test_nothing_is_imported_for_other_names(hospital: str) -> None:
    for name in ("hospital_nets", "hospital_nets.plain", "hospital_nets:plain()"):
        with pytest.raises(SettingError):
            build_model(name, classes=3, inputs=image_schema(*SHAPE))
    assert hospital not in sys.modules
