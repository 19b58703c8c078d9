"""The built networks: sizes, equality with torchvision, and the derivatives the guiding gradient takes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision.models as reference
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedl2g.errors import SettingError
from fedl2g.models import SplitModel, architectures, build_model, small
from fedl2g.models.catalog import ARCHITECTURES, GROUPS, kind_of
from fedl2g.models.split import FeaturePool
from fedl2g.schema import image_schema

CLASSES = 7
OF_IMAGES = [name for name in ARCHITECTURES if kind_of(name) == "image"]


def on_meta(name: str, image_shape: tuple[int, int, int] = (3, 32, 32), feature_dim: int = 512) -> SplitModel:
    with torch.device("meta"):
        return build_model(name, classes=CLASSES, inputs=image_schema(*image_shape), feature_dim=feature_dim)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_name_of_the_catalog_has_a_builder() -> None:
    assert set(architectures.BUILDERS | small.BUILDERS) == set(OF_IMAGES)


@pytest.mark.parametrize("image_shape", [pytest.param((3, 32, 32), marks=pytest.mark.slow), (3, 64, 64),
                                         pytest.param((1, 28, 28), marks=pytest.mark.slow), (1, 28, 40)])  # fmt: skip
@pytest.mark.parametrize("name", OF_IMAGES)
def test_shapes_for_all_image_shapes(name: str, image_shape: tuple[int, int, int]) -> None:
    model = on_meta(name, image_shape)
    images = torch.empty(2, *image_shape, device="meta")
    for mode in (True, False):
        features, logits = model.train(mode)(images)
        assert features.shape == (2, 512)
        assert logits.shape == (2, CLASSES)


@pytest.mark.parametrize("name", ["cnn4", "resnet4", "mobilenet_v2", "vit_b_32", *GROUPS["small"]])
def test_feature_width_is_free(name: str) -> None:
    model = on_meta(name, feature_dim=128)
    features, logits = model(torch.empty(2, 3, 32, 32, device="meta"))
    assert features.shape == (2, 128)
    assert logits.shape == (2, CLASSES)


@pytest.mark.parametrize("name", [name for name in OF_IMAGES if not name.startswith("vit")])
def test_heads_are_linear(name: str) -> None:
    head = on_meta(name).head
    assert isinstance(head, nn.Linear)
    assert (head.in_features, head.out_features) == (512, CLASSES)


def test_vit_heads_have_a_hidden_layer() -> None:
    model = on_meta("vit_b_16")
    assert [str(layer).split("(")[0] for layer in model.head.children()] == ["Linear", "Tanh", "Linear"]
    assert [tuple(p.shape) for p in model.head.parameters()] == [(768, 512), (768,), (CLASSES, 768), (CLASSES,)]


def test_cnn4_size() -> None:
    assert parameters(on_meta("cnn4")) == 873_408 + 513 * CLASSES
    assert parameters(on_meta("cnn4", (3, 64, 64))) == 873_408 + (10_816 - 1_600) * 512 + 513 * CLASSES


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "mobilenet_v2"])
def test_sizes_of_torchvision_networks(name: str) -> None:
    with torch.device("meta"):
        whole = getattr(reference, name)()
    last = [layer for layer in whole.modules() if isinstance(layer, nn.Linear)][-1]
    assert parameters(on_meta(name)) == parameters(whole) - parameters(last) + 513 * CLASSES


def test_sizes_from_the_torchvision_documentation() -> None:
    assert parameters(on_meta("resnet18").extractor) == 11_689_512 - 513_000
    assert parameters(on_meta("vit_b_16", (3, 224, 224)).extractor) == 86_567_656 - 769_000
    assert parameters(on_meta("googlenet").extractor) == 6_624_904 - 1_025_000


def test_the_auxiliary_model_of_a_group_is_its_smallest() -> None:
    for names in (group for group in GROUPS.values() if set(group) <= set(OF_IMAGES)):
        sizes = [parameters(on_meta(name)) for name in names if name not in ("resnet101", "resnet152")]
        assert sizes[0] == min(sizes)


def test_vit_patches() -> None:
    for name, tokens in (("vit_b_16", 1 + 4), ("vit_b_32", 1 + 1)):
        assert on_meta(name).extractor.get_parameter("encoder.pos_embedding").shape == (1, tokens, 768)


@pytest.mark.parametrize(("name", "width"), [("resnet4", 64), ("resnet6", 128), ("resnet8", 256), ("resnet10", 512)])
def test_shallow_resnets(name: str, width: int) -> None:
    """Stem and one block per stage, counted by hand."""
    stem, total, inputs = 3 * 64 * 49 + 2 * 64, 0, 64
    for outputs in (64, 128, 256, 512):
        total += 9 * inputs * outputs + 9 * outputs * outputs + 4 * outputs
        total += 0 if inputs == outputs else inputs * outputs + 2 * outputs
        inputs = outputs
        if outputs == width:
            break
    model = build_model(name, classes=CLASSES, inputs=image_schema(3, 32, 32)).eval()
    assert parameters(model.extractor) == stem + total
    features, _ = model(torch.randn(2, 3, 32, 32))
    assert torch.equal(features, features[:, :: 512 // width].repeat_interleave(512 // width, dim=1))


@pytest.mark.parametrize(
    ("name", "build", "head"),
    [
        ("resnet18", reference.resnet18, "fc"),
        ("mobilenet_v2", reference.mobilenet_v2, "classifier"),
        ("googlenet", lambda: reference.googlenet(aux_logits=False, init_weights=False), "fc"),
    ],
)
def test_extractors_equal_torchvision(name: str, build: Callable[[], nn.Module], head: str) -> None:
    torch.manual_seed(0)
    ours = build_model(name, classes=CLASSES, inputs=image_schema(3, 32, 32)).eval()
    theirs = build().eval()
    setattr(theirs, head, nn.Identity())
    theirs.load_state_dict(ours.extractor.state_dict())
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours.extractor(images), F.adaptive_avg_pool1d(theirs(images), 512))


@pytest.mark.parametrize("name", ["resnet18", "googlenet", "mobilenet_v2"])
def test_initial_weights_are_those_torchvision_draws(name: str) -> None:
    """The random stream is used as torchvision uses it; one-channel stems are drawn with its own scale."""
    torch.manual_seed(3)
    ours = build_model(name, classes=CLASSES, inputs=image_schema(3, 32, 32)).extractor
    torch.manual_seed(3)
    options = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    theirs = getattr(reference, name)(num_classes=CLASSES, **options)
    expected = theirs.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in ours.state_dict().items())
    grey = build_model(name, classes=CLASSES, inputs=image_schema(1, 32, 32)).extractor
    scale = next(grey.parameters()).std() / next(theirs.parameters()).std()
    assert 0.8 < scale < 1.2


def test_dropout_belongs_to_the_extractor() -> None:
    for name in ("googlenet", "mobilenet_v2", "small_googlenet", "small_mobilenet"):
        rates = [layer.p for layer in on_meta(name).extractor.modules() if isinstance(layer, nn.Dropout)]
        assert rates == [0.2]


def test_padding_keeps_the_pixels_of_images_a_transformer_cannot_take() -> None:
    model = on_meta("vit_b_16", (1, 28, 40))
    padded = model.extractor.get_submodule("pad")(torch.ones(1, 1, 28, 40))
    assert padded.shape == (1, 1, 48, 48)
    assert padded.sum() == 28 * 40
    assert torch.equal(padded[0, 0, 10:38, 4:44], torch.ones(28, 40))


def test_same_seed_same_weights() -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(build_model("small_resnet", classes=3, inputs=image_schema(3, 32, 32)).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not all(torch.equal(states[0][key], states[2][key]) for key in states[0])


@pytest.mark.parametrize("width", [64, 128, 512, 768, 1280, 2048])
def test_feature_pool_is_adaptive_average_pooling(width: int) -> None:
    features = torch.randn(3, width, dtype=torch.float64)
    torch.testing.assert_close(FeaturePool(512)(features), nn.AdaptiveAvgPool1d(512)(features))


@pytest.mark.parametrize(("name", "least"), [("cnn4", 16), ("googlenet", 15), ("small_cnn", 3)])
def test_the_smallest_images_that_a_network_takes(name: str, least: int) -> None:
    model = on_meta(name, (1, 40, least))
    assert model(torch.empty(2, 1, 40, least, device="meta"))[1].shape == (2, CLASSES)
    with pytest.raises(SettingError, match=f"{name} cannot take {least - 1} x 40 pixels; expected at least {least} x"):
        build_model(name, classes=2, inputs=image_schema(1, least - 1, 40))


def test_unusable_sizes_are_refused() -> None:
    with pytest.raises(SettingError, match="classes is 0"):
        build_model("cnn4", classes=0, inputs=image_schema(1, 28, 28))
    with pytest.raises(SettingError, match="names 2 models"):
        build_model("htfe2", classes=2, inputs=image_schema(3, 32, 32))
    with pytest.raises(SettingError, match="did you mean 'small_cnn'"):
        build_model("smal_cnn", classes=2, inputs=image_schema(3, 32, 32))


def tiny_vit() -> SplitModel:
    network = reference.VisionTransformer(32, 16, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=16)
    network.heads = FeaturePool(24)
    return SplitModel(network, nn.Sequential(nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, CLASSES)))


def derivatives_agree(model: SplitModel, image_shape: tuple[int, int, int]) -> None:
    """Forward-mode products with a random direction equal the double-backward ones, features and logits, float64."""
    model = model.double().train()
    images = torch.randn(3, *image_shape, dtype=torch.float64)
    at = {name: parameter.detach().requires_grad_() for name, parameter in model.named_parameters()}
    direction = {name: torch.randn_like(parameter) for name, parameter in at.items()}
    buffers = dict(model.named_buffers())

    def outputs(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)  # the same dropout mask every time
        copies = {name: buffer.clone() for name, buffer in buffers.items()}
        result: tuple[Tensor, Tensor] = functional_call(model, values | copies, (images,))
        return result

    with sdpa_kernel(SDPBackend.MATH):
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(at[name].detach(), direction[name]) for name in at}
            forward = [forward_ad.unpack_dual(output).tangent for output in outputs(dual)]
        for output, tangent in zip(outputs(at), forward, strict=True):
            weights = torch.zeros_like(output, requires_grad=True)
            pulled = torch.autograd.grad(
                output, list(at.values()), weights, create_graph=True, allow_unused=True, materialize_grads=True
            )
            inner = sum((a * b).sum() for a, b in zip(pulled, direction.values(), strict=True))
            assert isinstance(inner, Tensor)
            (backward,) = torch.autograd.grad(inner, weights)
            assert tangent is not None
            assert tangent.abs().max() > 0
            torch.testing.assert_close(tangent, backward, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [*GROUPS["small"], "cnn4", "resnet4"])
def test_forward_mode_equals_double_backward(name: str) -> None:
    torch.manual_seed(0)
    derivatives_agree(build_model(name, classes=CLASSES, inputs=image_schema(3, 32, 32)), (3, 32, 32))


def test_forward_mode_equals_double_backward_for_a_transformer() -> None:
    torch.manual_seed(0)
    model = tiny_vit()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    derivatives_agree(model, (3, 32, 32))


@pytest.mark.parametrize("name", GROUPS["small"])
def test_small_networks_learn(name: str) -> None:
    """Each fits 60 noise images with random labels in seconds, by the plain SGD that federations use."""
    torch.manual_seed(0)
    images, labels = torch.randn(60, 3, 32, 32), torch.randint(0, 4, (60,))
    model = build_model(name, classes=4, inputs=image_schema(3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(40):
        for start in range(0, 60, 10):
            optimizer.zero_grad()
            F.cross_entropy(model(images[start : start + 10])[1], labels[start : start + 10]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model.eval()(images)[1].argmax(1) == labels).double().mean()
    assert accuracy > 0.8
