"""`extract --views` and `--layer`: what a row holds, what files record, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image

from linprobe.data.rows import ArrayRows
from linprobe.errors import LinprobeError, ParameterError, PrivacyError, UsageError
from linprobe.extraction.backbones import load_backbone
from linprobe.extraction.extract import extract
from linprobe.extraction.images import VIEWS, ImageTransform
from linprobe.extraction.request import ExtractRequest
from linprobe.gradients.clipped_sum import clipped_sum
from tests.conftest import Outcome, mostly_nightly
from tests.extraction.samples import SMALL, TINY_CLIP, Notes, contents, ids_of, labels_of, photo, rows_of, run_extract

Cli = Callable[..., Outcome]
Refused = Callable[..., None]
PLAIN_CROP = ImageTransform(None, (32, 48), "bilinear", (0.5,) * 3, (0.5,) * 3)
VIT: dict[str, Any] = {"embed_dim": 16, "num_heads": 2, "depth": 5, "img_size": 32, "patch_size": 8}
RN = {
    "embed_dim": 8,
    "vision_cfg": {"layers": [1, 1, 1, 1], "width": 8, "image_size": 64},
    "text_cfg": TINY_CLIP["text_cfg"],
}
CONVNEXT = {
    "embed_dim": 8,
    "vision_cfg": {"timm_model_name": "test_convnext", "timm_pool": "", "timm_proj": "linear", "image_size": 64},
    "text_cfg": TINY_CLIP["text_cfg"],
}


def with_views(views: int) -> ImageTransform:
    """`PLAIN_CROP` with a number of views."""
    return ImageTransform(None, (32, 48), "bilinear", (0.5,) * 3, (0.5,) * 3, views=views)


def coordinates(height: int, width: int) -> Image.Image:
    """An image whose pixels say where they are: (row, column, 0)."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([rows, columns, 0 * rows], axis=2).astype(np.uint8))


def test_views_are_the_crop_its_mirror_image_and_shifts_by_a_sixteenth_of_a_side() -> None:
    shown = with_views(10).shown(coordinates(64, 90))
    top, left = 16, 21
    assert np.array_equal(shown[0], PLAIN_CROP.shown(coordinates(64, 90))[0])
    assert np.array_equal(shown[1], shown[0][:, ::-1])
    for view, (down, right, mirrored) in zip(shown, VIEWS, strict=True):
        upright = view[:, ::-1] if mirrored else view
        assert upright[0, 0].tolist() == [top + 2 * down, left + 3 * right, 0]
        assert upright[-1, -1].tolist() == [top + 2 * down + 31, left + 3 * right + 47, 0]
    assert len({view.tobytes() for view in shown}) == 10


@pytest.mark.parametrize("views", range(1, 11))
def test_more_views_begin_with_the_views_of_fewer(views: int) -> None:
    image = photo(0, 70, 50)
    assert np.array_equal(with_views(views).shown(image), with_views(10).shown(image)[:views])


def test_the_first_views_are_the_crop_and_balanced() -> None:
    assert VIEWS[:2] == ((0, 0, False), (0, 0, True))
    assert {view[:2] for view in VIEWS} == {(0, 0), (-1, -1), (1, 1), (-1, 1), (1, -1)}
    assert len(set(VIEWS)) == 10
    for even in (2, 4, 6, 8, 10):
        assert sum(mirrored for _, _, mirrored in VIEWS[:even]) == even // 2
    for whole in (2, 4, 6, 10):
        assert np.array(VIEWS[:whole], dtype=int)[:, :2].sum(axis=0).tolist() == [0, 0]


def test_a_shift_beyond_the_border_shows_the_reflection() -> None:
    shown = with_views(3).shown(coordinates(32, 48))
    assert shown[2, :3, 0, 0].tolist() == [2, 1, 0]
    assert shown[2, 0, :4, 1].tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("side", [1, 2, 5])
def test_images_of_a_few_pixels_have_views(side: int) -> None:
    tiny = ImageTransform(None, None, "bilinear", (0.5,) * 3, (0.5,) * 3, views=10)
    assert tiny.shown(photo(0, side, side)).shape == (10, side, side, 3)


@pytest.mark.parametrize("views", [0, -1, 11, "2", 1.5])
def test_other_numbers_of_views_are_refused(views: Any) -> None:
    with pytest.raises(ParameterError, match=r"views is .*; allowed: whole numbers from 1 to 10"):
        with_views(views)


def test_a_single_view_leaves_the_text_of_the_preprocessing_as_it_was() -> None:
    assert "views" not in PLAIN_CROP.text
    assert json.loads(with_views(4).text) == json.loads(PLAIN_CROP.text) | {"views": 4}


@pytest.mark.parametrize("options", [SMALL, {}, {"backbone": "scattering", "resize": 16, "crop": 16}], ids=str)
def test_a_row_is_the_mean_of_the_features_of_its_views(images: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    run_extract(images, tmp_path / "f.h5", views=5, dtype="float32", **options)
    name = options.get("backbone", "pixels")
    backbone = load_backbone(name, None, options.get("random_weights", False), {})
    side = options.get("resize", 8)
    transform = backbone.transform.overridden(side, side, None, None, None)
    transform = ImageTransform(**(json.loads(transform.text) | {"mode": "RGB", "views": 5}))
    normalise = transform.normaliser(torch.device("cpu"))
    for group in ("train", "test"):
        for name, row in zip(ids_of(tmp_path / "f.h5", group), rows_of(tmp_path / "f.h5", group), strict=True):
            shown = torch.tensor(transform.shown(Image.open(images / name).convert("RGB"))).permute(0, 3, 1, 2)
            with torch.inference_mode():
                expected = backbone.model(normalise(shown)).mean(dim=0).numpy()
            assert np.abs(row - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())


def test_the_row_of_a_mirrored_image_is_the_same_with_two_views(images: Path, tmp_path: Path) -> None:
    mirrored = tmp_path / "mirrored"
    shutil.copytree(images, mirrored)
    for path in mirrored.rglob("*.png"):
        Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path)
    for views in (1, 2):
        run_extract(images, tmp_path / f"{views}.h5", views=views, dtype="float32")
        run_extract(mirrored, tmp_path / f"m{views}.h5", views=views, dtype="float32")
    assert not np.allclose(rows_of(tmp_path / "1.h5"), rows_of(tmp_path / "m1.h5"), atol=1e-2)
    np.testing.assert_allclose(rows_of(tmp_path / "2.h5"), rows_of(tmp_path / "m2.h5"), atol=1e-6)


@pytest.mark.parametrize("views", [1, 2, 10])
def test_neighbouring_folders_differ_in_one_row_and_their_clipped_sums_by_the_clip_norm(
    images: Path, tmp_path: Path, views: int
) -> None:
    without = tmp_path / "without"
    shutil.copytree(images, without)
    (without / "train" / "bee" / "003.png").unlink()
    for source, name in ((images, "all"), (without, "less")):
        run_extract(source, tmp_path / f"{name}.h5", views=views, dtype="float32")
    files = [tmp_path / f"{name}.h5" for name in ("all", "less")]
    rows, fewer = (dict(zip(ids_of(path), rows_of(path), strict=True)) for path in files)
    assert set(rows) - set(fewer) == {"train/bee/003.png"}
    assert len(rows) == len(fewer) + 1
    for name, row in fewer.items():
        assert np.array_equal(row, rows[name])
    assert np.array_equal(rows_of(files[0], "test"), rows_of(files[1], "test"))
    empty = np.zeros_like(rows["train/bee/003.png"])
    x, neighbour = (np.stack([known.get(name, empty) for name in rows]) for known in (rows, fewer))
    labels, weights = np.array(labels_of(files[0])), np.random.default_rng(0).normal(size=(x.shape[1], 3))
    sums = [clipped_sum(ArrayRows(each, labels), weights.astype(np.float32), 0.1).value for each in (x, neighbour)]
    assert 0 < np.linalg.norm(sums[0] - sums[1]) <= 0.1


def test_views_and_layer_are_recorded_compared_and_repeated(
    cli: Cli, refused: Refused, images: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    shutil.copytree(images / "test", new)
    network = ["--backbone", "timm:test_vit", "--random-weights", *words(VIT)]
    for name, more in (
        ("f", ["--views", "3", "--layer", "last4+avg"]),
        ("views", ["--layer", "last4+avg"]),
        ("plain", []),
    ):
        assert cli("extract", images, *network, *more, "--out", f"{name}.h5").status == 0
    made = cli("train", "f.h5", "--method", "non-private", "--out", "run")
    assert made.status == 0
    recorded = json.loads(Path("run/manifest.json").read_text())["extraction"]
    assert (recorded["layer"], recorded["preprocessing"]["views"]) == ("last4+avg", 3)
    for like in ("run", "f.h5"):
        assert cli("extract", new, "--like", like, "--out", "new.h5", "--overwrite").status == 0
        assert rows_of(Path("new.h5"), "rows").shape == (9, 80)
        for name in ("extraction_digest", "preprocessing", "tensor", "weights_digest"):
            assert contents(Path("new.h5"))[f"@{name}"] == contents(Path("f.h5"))[f"@{name}"]
        same = dict(zip(ids_of(Path("new.h5"), "rows"), rows_of(Path("new.h5"), "rows"), strict=True))
        for name, row in zip(ids_of(Path("f.h5"), "test"), rows_of(Path("f.h5"), "test"), strict=True):
            np.testing.assert_allclose(same[name.removeprefix("test/")], row, atol=0.01)
    assert cli("predict", "run", "new.h5").status == 0
    refused(cli("predict", "run", "views.h5"), 3, ["preprocessing views 1", "with 3"])
    refused(cli("predict", "run", "plain.h5"), 3, ["tensor"])
    refused(cli("predict", "run", new), 3, ["extract", "--like run"])
    refused(
        cli("train", "f.h5", "--public", "views.h5", "--eps", "3", "--out", "other"),
        3,
        ["preprocessing views", "1", "3"],
    )
    for word in (["--views", "2"], ["--layer", "last4+avg"]):
        refused(cli("extract", new, "--like", "run", *word), 2, [word[0], "--like run"], notes=1)


def words(arguments: dict[str, Any]) -> list[str]:
    """Arguments of a network's constructor as words of the command."""
    return [word for key, value in arguments.items() for word in ("--backbone-arg", f"{key}={value}")]


def test_another_number_of_views_or_layer_does_not_resume(images: Path, tmp_path: Path) -> None:
    vit = {"backbone": "timm:test_vit", "random_weights": True, "arguments": VIT}
    run_extract(images, tmp_path / "f.h5", views=2, batch_size=4, **vit)
    for other in ({}, {"views": 3}, {"views": 2, "layer": "last4+avg"}):
        with pytest.raises(UsageError, match=r"made with (transform|tensor)"):
            run_extract(images, tmp_path / "f.h5", batch_size=4, **vit, **other)
    notes = Notes()
    run_extract(images, tmp_path / "f.h5", notes, views=2, batch_size=4, **vit)
    assert "exists, made with the same settings" in notes.text


@pytest.mark.parametrize("sized", mostly_nightly([None, 7], bool))
def test_how_views_are_batched_does_not_matter(images: Path, tmp_path: Path, sized: int | None) -> None:
    run_extract(images, tmp_path / "a.h5", views=3, dtype="float32", batch_size=1, **SMALL)
    run_extract(images, tmp_path / "b.h5", views=3, dtype="float32", batch_size=sized, workers=1, **SMALL)
    first, second = rows_of(tmp_path / "a.h5"), rows_of(tmp_path / "b.h5")
    assert np.abs(first - second).max() <= 1e-3 * np.abs(first).max()


def test_a_copy_of_a_private_image_among_the_public_ones_is_found_with_views(images: Path, tmp_path: Path) -> None:
    source = tmp_path / "photos"
    shutil.copytree(images, source)
    (source / "public" / "ant").mkdir(parents=True)
    shutil.copy(source / "train" / "bee" / "002.png", source / "public" / "ant" / "copy.png")
    with pytest.raises(PrivacyError, match="a private image cannot be public"):
        run_extract(source, tmp_path / "f.h5", views=4)


def saved(model: Any, folder: Path) -> str:
    """The file of a network's weights."""
    torch.save(model.state_dict(), folder / "weights.pt")
    return str(folder / "weights.pt")


@pytest.mark.parametrize(
    "extra",
    mostly_nightly([{}, {"reg_tokens": 2}, {"class_token": True, "global_pool": "avg", "fc_norm": False}], len),
)
def test_last4_avg_is_the_input_of_dinov2s_linear_probe(images: Path, tmp_path: Path, extra: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = timm.create_model("test_vit", **VIT, **extra).eval()
    options = {"weights": saved(model, tmp_path), "arguments": VIT | extra, "dtype": "float32"}
    run_extract(images, tmp_path / "f.h5", backbone="timm:test_vit", layer="last4+avg", **options)
    run_extract(images, tmp_path / "plain.h5", backbone="timm:test_vit", **options)
    transform = load_backbone("timm:test_vit", None, True, VIT).transform
    shown = [transform.shown(Image.open(images / name))[0] for name in ids_of(tmp_path / "f.h5")]
    pixels = torch.tensor(np.stack(shown)).permute(0, 3, 1, 2)
    tokens, after = [], []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, out: after.append(out))
    with torch.inference_mode():
        model(transform.normaliser(pixels.device)(pixels))
        tokens = [model.norm(each) for each in after[-4:]]
        patches = tokens[-1][:, 1 + extra.get("reg_tokens", 0) :].mean(dim=1)
        expected = torch.cat([*(each[:, 0] for each in tokens), patches], dim=1).numpy()
    np.testing.assert_allclose(rows_of(tmp_path / "f.h5"), expected, atol=1e-4)
    assert expected.shape[1] == 80
    first, second = (contents(tmp_path / f"{name}.h5") for name in ("f", "plain"))
    assert first["@weights_digest"] == second["@weights_digest"]
    assert first["@extraction_digest"] != second["@extraction_digest"]


@pytest.mark.parametrize(
    "config", [pytest.param(TINY_CLIP, id="vit"), pytest.param(CONVNEXT, id="timm", marks=pytest.mark.nightly)]
)
def test_the_projection_of_pre_projection_rows_is_clips_embedding(
    images: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    model = open_clip.create_model("ViT-B-32", pretrained=None, **config).eval()
    options = {"backbone": "clip:ViT-B-32", "weights": saved(model, tmp_path), "arguments": config, "dtype": "float32"}
    run_extract(images, tmp_path / "before.h5", layer="pre-projection", **options)
    run_extract(images, tmp_path / "after.h5", **options)
    before, after = (rows_of(tmp_path / f"{name}.h5") for name in ("before", "after"))
    tower = model.visual
    projection = tower.proj if config is TINY_CLIP else tower.head.proj.weight.T
    np.testing.assert_allclose(before @ projection.detach().numpy(), after, atol=1e-4)
    assert before.shape[1] == projection.shape[0] != after.shape[1]
    assert contents(tmp_path / "before.h5")["@weights_digest"] == contents(tmp_path / "after.h5")["@weights_digest"]
    with h5py.File(tmp_path / "before.h5") as file:
        assert "text" not in file
        assert "before the visual projection" in file.attrs["tensor"]
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncat\n")
    with pytest.raises(UsageError, match="layer pre-projection of clip:ViT-B-32 has no text tower"):
        run_extract(images, tmp_path / "other.h5", layer="pre-projection", class_names=names, **options)


@pytest.mark.parametrize(
    ("name", "arguments", "layer", "allowed"),
    [
        ("timm:test_resnet", {}, "last4+avg", "none"),
        ("timm:test_vit", VIT | {"depth": 3}, "last4+avg", "none"),
        ("timm:test_vit", VIT | {"class_token": False, "global_pool": "avg"}, "last4+avg", "none"),
        ("timm:test_vit", VIT | {"global_pool": "avg", "fc_norm": True}, "last4+avg", "none"),
        ("timm:test_vit", VIT, "pre-projection", r"last4\+avg"),
        ("clip:RN50", RN, "pre-projection", "none"),
        ("clip:ViT-B-32", TINY_CLIP, "last4+avg", "pre-projection"),
        ("wrn-16-4", {}, "last4+avg", "none"),
    ],
)
def test_a_layer_that_the_network_does_not_have_is_refused_with_those_it_has(
    name: str, arguments: dict[str, Any], layer: str, allowed: str
) -> None:
    with pytest.raises(UsageError, match=rf"layer is '.*'; allowed for backbone {name}: {allowed}; leave out --layer"):
        load_backbone(name, None, True, arguments, layer)


def test_layers_and_views_that_cannot_be_are_one_line(cli: Cli, refused: Refused, images: Path) -> None:
    for backbone, layer, allowed in (
        ("pixels", "last4+avg", "none"),
        ("scattering", "pre-projection", "none"),
        ("clip", "last4+avg", "pre-projection"),
        ("timm:test_vit", "pre-projection", "last4+avg"),
    ):
        refused(cli("extract", images, "-b", backbone, "--layer", layer), 2, [f"layer is '{layer}'", backbone, allowed])
    refused(cli("extract", images, "--layer", "last4+avg"), 2, ["resnet50", "none", "--layer"])
    refused(cli("extract", images, "--layer", "conv1"), 2, ["conv1", "pre-projection, last4+avg"])
    for views in ("0", "11"):
        refused(cli("extract", images, "-b", "pixels", "--views", views), 2, [f"views is {views}", "1 to 10"])


def test_a_file_that_claims_other_views_or_a_layer_is_refused(images: Path, tmp_path: Path) -> None:
    for attribute, old, new, words in (
        ("preprocessing", '"views": 2', '"views": 99', "views is 99"),
        ("extraction", '"source"', '"layer": "last4+avg", "source"', "allowed for backbone pixels: none"),
    ):
        run_extract(images, tmp_path / "f.h5", views=2, overwrite=True)
        with h5py.File(tmp_path / "f.h5", "a") as file:
            assert old in file.attrs[attribute]
            file.attrs[attribute] = file.attrs[attribute].replace(old, new)
        with pytest.raises(LinprobeError, match=words):
            extract(ExtractRequest(source=str(images / "test"), like=tmp_path / "f.h5", out=tmp_path / "n.h5"), Notes())
