"""Preprocessing equals what torchvision, timm and open_clip do to the same image; overrides replace one part each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
import torchvision
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from linprobe.errors import ParameterError, UsageError
from linprobe.extraction.backbones import load_backbone, resnet
from linprobe.extraction.images import INTERPOLATIONS, ImageTransform
from linprobe.extraction.sources.base import UnreadableImage
from tests.extraction.samples import TINY_CLIP, photo

SIZES = [(301, 243), (150, 411), (97, 64)]  # larger than a crop, tall, smaller than a crop
BASE = ImageTransform(32, (24, 24), "bilinear", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def seen(transform: ImageTransform, image: Image.Image) -> Any:
    """What the network sees of one image: float32 (channels, height, width)."""
    pixels = torch.tensor(transform.shown(image)[0]).permute(2, 0, 1)
    return transform.normaliser(pixels.device)(pixels[None])[0]


def check_same(transform: ImageTransform, reference: Any) -> None:
    for seed, size in enumerate(SIZES):
        image = photo(seed, *size)
        mine, theirs = seen(transform, image), reference(image)
        assert mine.dtype == theirs.dtype == torch.float32
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("version", ["IMAGENET1K_V1", "IMAGENET1K_V2"])
def test_resnet_sees_what_torchvisions_preset_shows_it(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = {"width_per_group": 4}
    state = torchvision.models.resnet50(weights=None, **narrow).state_dict()
    monkeypatch.setattr(resnet, "_named_weights", lambda name, entry: state)
    backbone = load_backbone("resnet50", version, False, narrow)
    check_same(backbone.transform, torchvision.models.ResNet50_Weights[version].transforms())


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_efficientnet"])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_timm_networks_see_what_timms_evaluation_shows_them(name: str, crop_mode: str) -> None:
    arguments = {"pretrained_cfg_overlay": {"crop_mode": crop_mode}}
    model = timm.create_model(name, pretrained=False, **arguments)
    config = resolve_model_data_config(model)
    assert config["crop_mode"] == crop_mode
    backbone = load_backbone(f"timm:{name}", None, True, arguments)
    check_same(backbone.transform, create_transform(**config, is_training=False))


def test_a_timm_network_that_pads_its_images_is_refused() -> None:
    with pytest.raises(UsageError, match="crops by 'border'"):
        load_backbone("timm:test_resnet", None, True, {"pretrained_cfg_overlay": {"crop_mode": "border"}})


@pytest.mark.parametrize("tag", ["openai", "laion2b_s34b_b79k", "squashed"])
def test_clip_networks_see_what_open_clips_evaluation_shows_them(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = open_clip.pretrained._PRETRAINED["ViT-B-32"]
    squashed = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "interpolation": "bilinear", "resize_mode": "squash"}
    monkeypatch.setitem(tags, "squashed", tags["openai"] | squashed)
    config = open_clip.get_pretrained_cfg("ViT-B-32", tag)
    keys = ("mean", "std", "interpolation", "resize_mode")
    settings = PreprocessCfg(size=224, **{key: config[key] for key in keys if key in config})
    reference = image_transform_v2(settings, is_train=False)
    check_same(load_backbone(f"clip:ViT-B-32/{tag}", None, True, TINY_CLIP).transform, reference)


def test_clip_without_a_tag_sees_what_create_model_and_transforms_returns() -> None:
    _, _, reference = open_clip.create_model_and_transforms("ViT-B-32", pretrained=None, **TINY_CLIP)
    check_same(load_backbone("clip:ViT-B-32", None, True, TINY_CLIP).transform, reference)


def test_values_are_scaled_then_centred_then_divided() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 3, 1, 3)
    normalised = BASE.normaliser(pixels.device)(pixels)[0, :, 0]
    for channel in range(3):
        expected = [(value - BASE.mean[channel]) / BASE.std[channel] for value in (0, 0.2, 1)]
        assert normalised[channel].tolist() == pytest.approx(expected, abs=1e-6)


def test_an_override_replaces_its_part_and_no_other() -> None:
    assert BASE.overridden(None, None, None, None, None) == BASE
    changed = BASE.overridden(40, None, None, None, None)
    assert (changed.resize, changed.crop, changed.mean) == (40, BASE.crop, BASE.mean)
    changed = BASE.overridden(None, 16, None, None, None)
    assert (changed.resize, changed.crop) == (32, (16, 16))
    changed = BASE.overridden(None, None, (0.1, 0.2, 0.3), None, None)
    assert (changed.mean, changed.std) == ((0.1, 0.2, 0.3), BASE.std)
    changed = BASE.overridden(None, None, None, (0.5,), "nearest")
    assert (changed.std, changed.interpolation, changed.mean) == ((0.5,) * 3, "nearest", BASE.mean)


def test_zero_turns_resizing_and_cropping_off() -> None:
    image = photo(0, 50, 40)
    assert BASE.overridden(0, None, None, None, None).shown(image)[0].shape == (24, 24, 3)
    assert BASE.overridden(None, 0, None, None, None).shown(image)[0].shape == (32, 40, 3)
    whole = BASE.overridden(0, 0, None, None, None)
    assert np.array_equal(whole.shown(image)[0], np.asarray(image))
    assert whole.output_size is None


def test_resize_and_crop_are_judged_together() -> None:
    changed = BASE.overridden(200, 150, None, None, None)
    assert (changed.resize, changed.crop) == (200, (150, 150))
    changed = BASE.overridden(9, 8, None, None, None)
    assert (changed.resize, changed.crop) == (9, (8, 8))


def test_an_image_smaller_than_its_crop_is_unreadable_and_not_padded() -> None:
    whole = BASE.overridden(0, None, None, None, None)
    assert whole.shown(photo(0, 24, 24))[0].shape == (24, 24, 3)
    for width, height in ((23, 40), (40, 23)):
        with pytest.raises(UnreadableImage, match=rf"{width} x {height} pixels, smaller than the crop of 24 x 24"):
            whole.shown(photo(0, width, height))[0]


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_interpolation_is_the_one_that_is_named(interpolation: str) -> None:
    image = photo(0, 50, 40)
    filters = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
    transform = ImageTransform((13, 17), None, interpolation, BASE.mean, BASE.std)
    expected = image.resize((17, 13), Image.Resampling(filters[interpolation]))
    assert np.array_equal(transform.shown(image)[0], np.asarray(expected))


BAD: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "resize below 0": ((-1, None, None, None, None), ["resize is -1", "above 0"]),
    "crop below 0": ((None, -8, None, None, None), ["crop (-8, -8)", "above 0"]),
    "crop beyond the image": ((None, 33, None, None, None), ["crop is (33, 33)", "resize 32"]),
    "image within the crop": ((23, None, None, None, None), ["crop is (24, 24)", "resize 23"]),
    "two means": ((None, None, (0.1, 0.2), None, None), ["mean has 2 values", "3"]),
    "four stds": ((None, None, None, (1.0,) * 4, None), ["std has 4 values", "3"]),
    "std of 0": ((None, None, None, (0.0,), None), ["std is", "from 1e-06"]),
    "one std of 0": ((None, None, None, (1.0, 0.0, 1.0), None), ["std is", "from 1e-06"]),
    "std below 0": ((None, None, None, (-1.0,), None), ["std is", "from 1e-06"]),
    "std nan": ((None, None, None, (math.nan,), None), ["std is", "from 1e-06"]),
    "std inf": ((None, None, None, (math.inf,), None), ["std is", "from 1e-06"]),
    "mean nan": ((None, None, (math.nan,), None, None), ["mean is", "from -1000"]),
    "no such interpolation": ((None, None, None, None, "cubic"), ["'cubic'", "nearest, bilinear, bicubic, lanczos"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_override_is_refused_with_what_is_allowed(case: str) -> None:
    arguments, words = BAD[case]
    with pytest.raises(ParameterError) as caught:
        BASE.overridden(*arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_grey_preprocessing_has_one_channel() -> None:
    grey = ImageTransform(16, (8, 8), "bilinear", (0.5,), (0.5,), "L")
    assert grey.shown(photo(0).convert("L"))[0].shape == (8, 8, 1)
    with pytest.raises(ParameterError, match="mean has 3 values; allowed: 1"):
        grey.overridden(None, None, (0.1, 0.2, 0.3), None, None)


def test_an_image_so_narrow_that_resizing_would_fill_the_memory_is_unreadable() -> None:
    with pytest.raises(UnreadableImage, match="200000 x 1 pixels, so narrow"):
        BASE.shown(Image.new("RGB", (200000, 1)))[0]
