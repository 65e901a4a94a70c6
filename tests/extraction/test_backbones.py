"""Networks by name give the features that plain torchvision, timm and open_clip give; weights are loaded strictly."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from torch import nn

from linprobe.errors import DataError, LinprobeError, UsageError
from linprobe.extraction.backbones import DRAWING, build_network, load_backbone, read_weights
from linprobe.extraction.backbones.wrn import StandardisedConv, WideResNet
from linprobe.extraction.request import FAMILIES
from linprobe.options.requests import BACKBONES
from tests.conftest import mostly_nightly
from tests.extraction.samples import TINY_CLIP, Notes, ids_of, rows_of, run_extract, write_images

NARROW = {"width_per_group": 4}


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 training and 1 test image of two classes, larger than a crop. Do not change it."""
    root = tmp_path_factory.mktemp("few") / "few"
    return write_images(root, {"train": 2, "test": 1}, ("ant", "bee"), size=(90, 70))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a small timm network, whole and damaged, in every form. Do not change it."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(11)
    state = timm.create_model("test_resnet", pretrained=False).state_dict()
    torch.save(state, folder / "plain.pt")
    torch.save({"state_dict": state, "epoch": 3}, folder / "wrapped.pth")
    torch.save({"model": {f"module.{name}": value for name, value in state.items()}}, folder / "parallel.pt")
    save_file(state, folder / "plain.safetensors")
    save_file(
        {name: value.half() for name, value in state.items() if value.is_floating_point()}, folder / "half.safetensors"
    )
    first = next(iter(state))
    changes: dict[str, dict[str, Any]] = {
        "missing": {name: value for name, value in state.items() if name != first},
        "surplus": state | {"something.extra": torch.ones(2)},
        "reshaped": state | {first: torch.ones(1, 2, 3, 4)},
        "integers": state | {first: (100 * state[first]).int()},
        "nan": state | {first: torch.full_like(state[first], float("nan"))},
        "headless": {name: value for name, value in state.items() if not name.startswith("fc.")},
        "other head": state | {"fc.weight": torch.ones(7, 3), "fc.bias": torch.ones(7)},
        "empty": {},
        "numbers": {"a": 1.5},
    }
    for name, changed in changes.items():
        torch.save(changed, folder / f"{name}.pt")
    torch.save(next(iter(state.values())), folder / "tensor.pt")
    (folder / "zero.pt").write_bytes(b"")
    (folder / "text.safetensors").write_text("hello")
    (folder / "cut.pt").write_bytes((folder / "plain.pt").read_bytes()[:2000])
    (folder / "cut.safetensors").write_bytes((folder / "plain.safetensors").read_bytes()[:-1000])
    return folder


def plain_features(folder: Path, model: Any, transform: Any, ids: list[str]) -> Any:
    """Features of these images by the library itself."""
    model.eval()
    with torch.no_grad():
        batch = torch.stack([transform(Image.open(folder / name).convert("RGB")) for name in ids])
        return model(batch).numpy()


def check_features(few: Path, out: Path, model: Any, transform: Any, **options: Any) -> None:
    run_extract(few, out, dtype="float32", **options)
    for group in ("train", "test"):
        expected = plain_features(few, model, transform, ids_of(out, group))
        mine = rows_of(out, group)
        assert mine.dtype == np.float32
        assert mine.shape == expected.shape
        assert np.abs(mine - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())
        assert np.std(expected, axis=0).max() > 1e-3, "the images cannot be told apart"


def test_resnet50_gives_torchvisions_features(few: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = torchvision.models.resnet50(weights=None)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    model.fc = nn.Identity()
    preset = torchvision.models.ResNet50_Weights.IMAGENET1K_V1.transforms(crop_size=64, resize_size=72)
    options = {"weights": str(tmp_path / "weights.pt"), "resize": 72, "crop": 64}
    check_features(few, tmp_path / "f.h5", model, preset, backbone="resnet50", **options)
    assert rows_of(tmp_path / "f.h5").shape[1] == 2048


@pytest.mark.nightly  # 276 MB of weights; resnet50 goes the same way
def test_wide_resnet_gives_torchvisions_features(tmp_path: Path) -> None:
    model = torchvision.models.wide_resnet50_2(weights=None).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    backbone = load_backbone("wide-resnet50-2", str(tmp_path / "weights.pt"), False, {})
    model.fc = nn.Identity()
    images = torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        assert torch.equal(backbone.model(images), model(images))
        assert backbone.model(images).shape == (2, 2048)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "mobilenetv3_small_050"])
def test_timm_networks_give_timms_features(few: Path, tmp_path: Path, name: str) -> None:
    torch.manual_seed(5)
    model = timm.create_model(name, pretrained=False)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    model.reset_classifier(0)
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    options = {"backbone": f"timm:{name}", "weights": str(tmp_path / "weights.pt")}
    check_features(few, tmp_path / "f.h5", model, transform, **options)


@pytest.mark.parametrize("tag", ["/openai", ""])
def test_clip_gives_open_clips_image_embedding(few: Path, tmp_path: Path, tag: str) -> None:
    quick = {"force_quick_gelu": True} if tag else {}
    model, _, transform = open_clip.create_model_and_transforms("ViT-B-32", pretrained=None, **quick, **TINY_CLIP)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    model.eval()
    model.forward = model.encode_image
    options = {"weights": str(tmp_path / "weights.pt"), "arguments": TINY_CLIP}
    check_features(few, tmp_path / "f.h5", model, transform, backbone=f"clip:ViT-B-32{tag}", **options)


@pytest.mark.nightly  # by day, small networks of each kind
def test_a_whole_clip_network_is_built() -> None:
    backbone = load_backbone("clip", None, True, {})
    assert backbone.name == "clip:RN50"
    with torch.inference_mode():
        assert backbone.model(torch.zeros(1, 3, 224, 224)).shape == (1, 1024)
    assert backbone.encode_text is not None
    assert backbone.encode_text(["a cat", "a dog"]).shape == (2, 1024)


def test_pixels_are_the_values_of_the_image(few: Path, tmp_path: Path) -> None:
    run_extract(few, tmp_path / "f.h5", resize=0, crop=0, dtype="float32")
    for row, name in zip(rows_of(tmp_path / "f.h5"), ids_of(tmp_path / "f.h5"), strict=True):
        image = np.asarray(Image.open(few / name)).transpose(2, 0, 1) / 255
        assert np.allclose(row, image.reshape(-1), atol=1e-6)


def test_grey_pixels_have_one_value_a_position(few: Path, tmp_path: Path) -> None:
    run_extract(few, tmp_path / "f.h5", resize=0, crop=0, dtype="float32", arguments={"mode": "L"})
    row, name = rows_of(tmp_path / "f.h5")[0], ids_of(tmp_path / "f.h5")[0]
    assert np.allclose(row, np.asarray(Image.open(few / name).convert("L")).reshape(-1) / 255, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["plain.pt", "wrapped.pth", "parallel.pt", "plain.safetensors", "headless.pt", "other head.pt"]
)
def test_every_form_of_a_checkpoint_gives_the_same_network(checkpoints: Path, name: str) -> None:
    backbone = load_backbone("timm:test_resnet", str(checkpoints / name), False, {})
    plain = load_backbone("timm:test_resnet", str(checkpoints / "plain.pt"), False, {})
    assert backbone.weights_digest() == plain.weights_digest()
    assert backbone.weights == name
    state = torch.load(checkpoints / "plain.pt", weights_only=True)
    mine = backbone.model.state_dict()
    assert mine.keys() == {name for name in state if not name.startswith("fc.")}
    assert all(torch.equal(value, state[name]) for name, value in mine.items())


def test_half_precision_weights_are_loaded_at_full_width(checkpoints: Path) -> None:
    backbone = load_backbone("timm:test_resnet", str(checkpoints / "half.safetensors"), False, {})
    state = torch.load(checkpoints / "plain.pt", weights_only=True)
    name, value = next(iter(backbone.model.state_dict().items()))
    assert value.dtype == torch.float32
    assert torch.equal(value, state[name].half().float())


def test_the_digest_follows_the_weights_and_nothing_else(checkpoints: Path) -> None:
    plain = load_backbone("timm:test_resnet", str(checkpoints / "plain.pt"), False, {})
    random = load_backbone("timm:test_resnet", None, True, {})
    assert len(plain.weights_digest()) == 64
    assert plain.weights_digest() != random.weights_digest()
    before = plain.weights_digest()
    with torch.no_grad():
        next(plain.model.parameters()).view(-1)[0] += 1e-6
    assert plain.weights_digest() != before
    assert load_backbone("pixels", None, False, {}).weights_digest() == ""


FIRST = next(iter(timm.create_model("test_resnet", pretrained=False).state_dict()))
MISFITS = {
    "missing": ["1 difference,", f"{FIRST} is missing"],
    "surplus": ["1 difference,", "something.extra is not in the network"],
    "reshaped": ["1 difference,", FIRST, "is (1, 2, 3, 4), not ("],
    "integers": ["1 difference,", f"{FIRST} is torch.int32, not torch.float32"],
    "nan": ["NaN", FIRST],
    "empty": ["no state dictionary"],
    "numbers": ["no state dictionary"],
    "tensor": ["no state dictionary"],
    "zero": ["cannot be read"],
    "cut": ["cannot be read"],
}


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit_are_refused_with_the_first_differences(checkpoints: Path, case: str) -> None:
    path = checkpoints / f"{case}.pt"
    with pytest.raises(DataError) as caught:
        load_backbone("timm:test_resnet", str(path), False, {})
    assert all(word in str(caught.value) for word in [path.name, *MISFITS[case]]), str(caught.value)


@pytest.mark.parametrize("name", ["text.safetensors", "cut.safetensors", "none.pt"])
def test_files_that_are_no_weights_are_refused_by_name(checkpoints: Path, name: str) -> None:
    with pytest.raises(DataError, match=name):
        load_backbone("timm:test_resnet", str(checkpoints / name), False, {})


def test_weights_of_another_network_list_a_few_names_and_how_many(checkpoints: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_backbone("wrn-16-4", str(checkpoints / "plain.pt"), False, {})
    text = str(caught.value)
    assert text.count("is missing") == 3
    assert text.count("is not in the network") == 3
    wanted, got = WideResNet(16, 4).state_dict(), torch.load(checkpoints / "plain.pt", weights_only=True)
    surplus = [name for name in got if not name.startswith("fc.")]
    assert f"{len(wanted) + len(surplus)} differences," in text


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_plain_pickle_is_refused_without_a_warning_of_torch(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(pickle.dumps({"code": Path}, protocol=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="more than tensors"):
            read_weights(tmp_path / "weights.pt")


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_weights_file_is_refused_and_not_run(tmp_path: Path, how: str) -> None:
    path, trace = tmp_path / "weights.pt", tmp_path / "ran"
    content = {"weight": torch.ones(2), "code": Code(trace)}
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=r"weights\.pt"):
        read_weights(path)
    assert not trace.exists()
    torch.load(path, weights_only=False) if how == "torch" else pickle.loads(path.read_bytes())
    assert trace.exists(), "the file would not have run code anyway"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("magic", ["'magic'", "resnet50", "timm:NAME"]),
        ("resnet50:V1", ["resnet50:V1", "allowed"]),
        ("timm", ["'timm'", "timm:NAME"]),
        ("timm:no_such_net", ["timm:no_such_net", "not a network of timm"]),
        ("timm:resnet", ["not a network of timm", "such as", "resnet"]),
        ("clip:ViT-Z-99", ["ViT-Z-99", "not a network of open_clip", "ViT-"]),
        ("clip:ViT-B-32/nobody", ["'nobody'", "openai", "--weights"]),
        ("clip:ViT-B-32", ["ViT-B-32"]),
        ("", ["''", "pixels"]),
    ],
)
def test_an_unknown_backbone_is_refused_with_names_that_exist(name: str, words: list[str], offline: Path) -> None:
    error = DataError if name == "clip:ViT-B-32" else UsageError  # its default tag would have to be fetched
    with pytest.raises(error) as caught:
        load_backbone(name, None, False, {})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("resnet50", ["IMAGENET1K_V1 of resnet50", "resnet50-0676ba61.pth", "checkpoints"]),
        ("timm:test_resnet", ["timm:test_resnet", "Hugging Face cache"]),
        ("clip:ViT-B-32/openai", ["openai", "open_clip's cache"]),
        ("wrn-16-4", ["no weights to fetch"]),
    ],
)
def test_missing_weights_say_where_to_put_them_and_are_never_random(name: str, words: list[str], offline: Path) -> None:
    arguments = {"clip:ViT-B-32/openai": TINY_CLIP, "resnet50": NARROW}.get(name, {})
    with pytest.raises(DataError) as caught:
        load_backbone(name, None, False, arguments)
    assert all(word in str(caught.value) for word in [*words, "--weights FILE", "--random-weights"]), str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_torchvisions_cache_is_used_where_it_has_the_weights(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = torchvision.models.ResNet50_Weights.IMAGENET1K_V1
    folder = offline / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    model = torchvision.models.resnet50(weights=None, **NARROW)
    torch.save(model.state_dict(), folder / Path(entry.url).name)
    backbone = load_backbone("resnet50", None, False, NARROW)
    assert backbone.weights == "IMAGENET1K_V1"
    assert torch.equal(backbone.model.state_dict()["conv1.weight"], model.state_dict()["conv1.weight"])


def test_weights_and_random_weights_together_are_refused(checkpoints: Path) -> None:
    with pytest.raises(UsageError, match="one of the two"):
        load_backbone("wrn-16-4", str(checkpoints / "plain.pt"), True, {})
    with pytest.raises(UsageError, match="no weights"):
        load_backbone("pixels", str(checkpoints / "plain.pt"), False, {})
    with pytest.raises(UsageError, match="IMAGENET1K_V1, IMAGENET1K_V2"):
        load_backbone("resnet50", "IMAGENET1K_V9", False, {})


SMALL: dict[str, dict[str, Any]] = {
    "resnet50": NARROW,
    "clip:ViT-B-32": TINY_CLIP,
    "wrn-16-4": {},
    "timm:test_vit": {},
}


@pytest.mark.parametrize("name", mostly_nightly(SMALL, ("resnet50", "timm:test_vit").__contains__))
def test_random_weights_are_marked_and_the_same_in_every_run(name: str) -> None:
    digests = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        backbone = load_backbone(name, None, True, SMALL[name])
        assert backbone.weights == "random"
        assert torch.equal(torch.random.get_rng_state(), before)
        digests.add(backbone.weights_digest())
    assert len(digests) == 1


def test_weights_that_are_loaded_afterwards_are_not_drawn() -> None:
    drawn = set()

    def build() -> nn.Module:
        before, network = torch.random.get_rng_state(), nn.Sequential(nn.Linear(3, 3), nn.Conv2d(1, 1, 1))
        for draw in DRAWING:
            getattr(nn.init, draw)(network[0].weight)
        drawn.add((random, not torch.equal(torch.random.get_rng_state(), before)))
        return network

    for random in (True, False):
        build_network(build, random)
    assert drawn == {(True, True), (False, False)}


@pytest.mark.parametrize("name", mostly_nightly(SMALL, ("clip:ViT-B-32", "wrn-16-4").__contains__))
def test_networks_are_in_evaluation_mode_and_rows_do_not_depend_on_their_batch(name: str) -> None:
    backbone = load_backbone(name, None, True, SMALL[name])
    assert not any(module.training for module in backbone.model.modules())
    side = backbone.transform.output_size or (32, 32)
    torch.manual_seed(0)
    images = torch.randn(3, 3, *side)
    with torch.inference_mode():
        together, alone = backbone.model(images), backbone.model(images[1:2])
    assert together.ndim == 2
    assert torch.allclose(together[1:2], alone, rtol=1e-3, atol=1e-4 * float(together.abs().max()))


def test_no_gradient_is_kept_while_extracting(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    forward = WideResNet.forward

    def watched(self: Any, images: Any) -> Any:
        modes.append((torch.is_inference_mode_enabled(), self.training))
        return forward(self, images)

    monkeypatch.setattr(WideResNet, "forward", watched)
    run_extract(few, tmp_path / "f.h5", backbone="wrn-16-4", random_weights=True)
    assert len(modes) >= 2
    assert set(modes) == {(True, False)}


def test_openais_weights_get_quickgelu_and_a_file_without_a_tag_gets_gelu_and_a_note(tmp_path: Path) -> None:
    model = open_clip.create_model("ViT-B-32", pretrained=None, force_quick_gelu=True, **TINY_CLIP)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    path = str(tmp_path / "weights.pt")
    quick = load_backbone("clip:ViT-B-32/openai", path, False, TINY_CLIP)
    plain = load_backbone("clip:ViT-B-32", path, False, TINY_CLIP)
    assert quick.tensor.endswith("; QuickGELU")
    assert plain.tensor.endswith("; GELU")
    assert quick.notes == ()
    assert len(plain.notes) == 1
    assert all(word in plain.notes[0] for word in ("GELU", "weights.pt", "clip:ViT-B-32/openai"))
    assert quick.weights_digest() == plain.weights_digest()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        first, second = quick.model(images), plain.model(images)
        model.eval()
        assert torch.allclose(first, model.encode_image(images), atol=1e-6)
        assert (first - second).abs().max() > 1e-3 * first.abs().max()
        assert (quick.encode_text or list)(["a"]).shape == (1, 32)  # type: ignore[attr-defined]


def test_a_tag_trained_with_gelu_is_not_paired_with_a_quickgelu_network(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = open_clip.pretrained._PRETRAINED["ViT-B-32-quickgelu"]
    monkeypatch.setitem(tags, "plain", dict(tags["openai"]) | {"quick_gelu": False})
    with pytest.raises(UsageError, match="clip:ViT-B-32/plain"):
        load_backbone("clip:ViT-B-32-quickgelu/plain", None, True, TINY_CLIP)
    own = load_backbone("clip:ViT-B-32-quickgelu", None, True, TINY_CLIP)
    assert own.tensor.endswith("; QuickGELU")


@pytest.mark.parametrize(("name", "width"), [("wrn-16-4", 256), ("wrn-40-4", 256), ("wrn-28-10", 640)])
def test_wide_residual_networks_have_the_papers_dimensions(name: str, width: int) -> None:
    depth, factor = (int(part) for part in name.split("-")[1:])
    with torch.device("meta"):
        model = WideResNet(depth, factor)
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, width)
    convolutions = [module for module in model.modules() if isinstance(module, StandardisedConv)]
    assert sum(module.kernel_size == (3, 3) for module in convolutions) == depth - 3  # without 3 shortcuts
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def test_wide_residual_networks_have_the_papers_number_of_parameters() -> None:
    with torch.device("meta"):
        counts = {name: sum(p.numel() for p in WideResNet(*name).parameters()) for name in ((16, 4), (28, 10))}
    assert counts[16, 4] == pytest.approx(2.75e6, rel=0.02)
    assert counts[28, 10] == pytest.approx(36.5e6, rel=0.02)


def test_scale_and_shift_of_a_filter_change_nothing() -> None:
    torch.manual_seed(0)
    convolution = StandardisedConv(5, 4, 3).double()
    images = torch.randn(2, 5, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        before = convolution(images)
        convolution.weight.mul_(torch.tensor([3.0, 0.7, 1.0, 20.0]).view(-1, 1, 1, 1))
        convolution.weight.add_(torch.tensor([0.0, 5.0, -2.0, 1.0]).view(-1, 1, 1, 1))
        assert torch.allclose(convolution(images), before, atol=1e-10)
        convolution.gain.mul_(2)
        doubled = convolution(images) - convolution.bias.view(-1, 1, 1)
    assert torch.allclose(doubled, 2 * (before - convolution.bias.view(-1, 1, 1)), atol=1e-10)
    assert before.std() > 0.1


def test_standardised_filters_keep_the_scale_of_their_input() -> None:
    torch.manual_seed(0)
    convolution = StandardisedConv(64, 256, 3)
    with torch.no_grad():
        convolution.bias.zero_()
        out = convolution(torch.randn(4, 64, 16, 16))[:, :, 1:-1, 1:-1]
    assert 0.95 < float(out.std()) < 1.05


def test_a_wide_residual_network_is_loaded_from_a_file_with_its_head_left_out(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = WideResNet(16, 4)
    state = model.state_dict() | {"fc.weight": torch.ones(10, 256), "fc.bias": torch.ones(10)}
    save_file(state, tmp_path / "wrn.safetensors")
    backbone = load_backbone("wrn-16-4", str(tmp_path / "wrn.safetensors"), False, {})
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(backbone.model(images), model.eval()(images))
    torch.save(state | {"stem.extra": torch.ones(1)}, tmp_path / "wrn.pt")
    with pytest.raises(DataError, match=r"stem\.extra is not in the network"):
        load_backbone("wrn-16-4", str(tmp_path / "wrn.pt"), False, {})


@pytest.mark.parametrize(
    ("name", "arguments", "width"),
    [("timm:test_vit", {"embed_dim": 32, "num_heads": 2}, 32), ("timm:resnet10t", {"block_args": {}}, 512)],
)
def test_backbone_arguments_reach_the_constructor(name: str, arguments: dict[str, Any], width: int) -> None:
    backbone = load_backbone(name, None, True, arguments)
    assert backbone.arguments == arguments
    with torch.inference_mode():
        assert backbone.model(torch.zeros(1, 3, *(backbone.transform.output_size or (0, 0)))).shape == (1, width)


def test_groups_of_a_wide_residual_network_are_an_argument() -> None:
    model = load_backbone("wrn-16-4", None, True, {"groups": 4}).model
    groups = {module.num_groups for module in model.modules() if isinstance(module, nn.GroupNorm)}
    assert groups == {4}


@pytest.mark.parametrize("name", ["resnet50", "wrn-16-4", "timm:test_vit", "clip:ViT-B-32", "pixels"])
def test_wrong_backbone_arguments_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no_such_argument"):
        load_backbone(name, None, name != "pixels", {"no_such_argument": 3})


def test_values_of_arguments_that_make_no_network_are_refused() -> None:
    for name, arguments in (("wrn-16-4", {"groups": 7}), ("wrn-16-4", {"groups": 0}), ("pixels", {"mode": "CMYK"})):
        with pytest.raises(LinprobeError, match=r"--backbone-arg") as caught:
            load_backbone(name, None, name != "pixels", arguments)
        assert caught.value.exit_status == 2


def test_images_of_another_size_than_the_network_takes_are_refused(few: Path, tmp_path: Path) -> None:
    fixed = {"dynamic_img_size": False}
    for options, words in (
        ({"arguments": fixed, "crop": 64}, "timm:test_vit cannot take images of 64 x 64"),
        ({"arguments": {"global_pool": ""}}, "one vector"),
    ):
        with pytest.raises(UsageError, match=words):
            run_extract(few, tmp_path / "f.h5", backbone="timm:test_vit", random_weights=True, **options)
    assert list(tmp_path.iterdir()) == []


def test_the_file_says_which_network_tensor_and_weights_made_it(few: Path, tmp_path: Path) -> None:
    from linprobe.data.feature_file import FeatureFile

    notes = Notes()
    run_extract(few, tmp_path / "f.h5", notes, backbone="wrn-16-4", random_weights=True, arguments={"groups": 4})
    backbone = load_backbone("wrn-16-4", None, True, {"groups": 4})
    with FeatureFile(tmp_path / "f.h5") as features:
        description = features.description
    assert description.backbone == "wrn-16-4"
    assert description.weights == "random"
    assert description.weights_digest == backbone.weights_digest()
    assert description.tensor == "mean over positions after the last normalisation"
    assert description.preprocessing == backbone.transform.text
    assert '"groups": 4' in description.extraction
    assert "RANDOM WEIGHTS" in notes.text


def test_every_backbone_of_the_help_has_a_family_with_a_file() -> None:
    assert [name.partition(":")[0] for name in BACKBONES] == list(FAMILIES)
    for name, family in FAMILIES.items():
        assert (Path(sys.modules["linprobe.extraction.backbones"].__path__[0]) / f"{family}.py").is_file(), name
