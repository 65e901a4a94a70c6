"""Scattering equals kymatio's, each row depends on its own image alone, and any source of images works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from linprobe.errors import LinprobeError, UsageError
from linprobe.extraction.backbones import load_backbone
from linprobe.extraction.backbones.scattering import GROUPS, MAPS, VARIANCE_FLOOR, Scattering, coefficients
from tests.extraction.samples import photo, rows_of, run_extract, write_images

REFERENCE = Path(__file__).with_name("kymatio.npz")


def images_of(count: int, shape: tuple[int, ...], seed: int = 0) -> Any:
    """uint8 pixels (count, *shape) with some structure."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 256, (count, *shape)) * rng.random((count, 1, *shape[1:]))).astype(np.uint8)


def write_arrays(path: Path, train: Any, test: Any) -> Path:
    labels = {"y_train": np.arange(len(train)) % 2, "y_test": np.arange(len(test)) % 2}
    np.savez(path, X_train=train, X_test=test, class_names=["ant", "bee"], **labels)
    return path


def features_of(pixels: Any) -> Any:
    """Features of uint8 pixels (rows, height, width)."""
    with torch.inference_mode():
        return Scattering()(torch.from_numpy(pixels)[:, None].float() / 255).numpy()


@pytest.mark.parametrize("size", [(8, 8), (13, 18), (27, 10), (28, 28)])
def test_coefficients_equal_kymatios(size: tuple[int, int]) -> None:
    with np.load(REFERENCE) as arrays:
        image, expected = (arrays[f"{name} {size[0]} {size[1]}"] for name in ("image", "maps"))
    mine = coefficients(torch.from_numpy(image / np.float32(255))[None, None])[0, 0].numpy()
    assert mine.shape == (MAPS, size[0] // 4, size[1] // 4)
    error = np.abs(mine[:, ::3, ::2] - expected).max(axis=(1, 2)) / np.abs(expected).max(axis=(1, 2))
    assert error.max() <= 1e-5


def test_channels_are_transformed_apart_and_normalised_in_groups_over_all_of_them() -> None:
    images = torch.from_numpy(images_of(3, (3, 12, 16))).float() / 255
    maps = coefficients(images)
    for channel in range(3):
        alone = coefficients(images[:, channel : channel + 1])
        assert torch.allclose(maps[:, channel : channel + 1], alone, rtol=1e-5, atol=1e-6)
    groups = maps.double().reshape(3, GROUPS, -1)
    centred = groups - groups.mean(dim=2, keepdim=True)
    expected = centred / (centred.square().mean(dim=2, keepdim=True) + VARIANCE_FLOOR).sqrt()
    assert torch.allclose(Scattering()(images).double(), expected.reshape(3, -1), atol=1e-4)


@pytest.mark.parametrize("size", [(5, 5), (9, 31), (28, 28), (33, 50)])
def test_any_size_gives_81_maps_of_a_quarter_of_each_side(size: tuple[int, int]) -> None:
    rows = features_of(images_of(2, size))
    assert rows.shape == (2, 81 * (size[0] // 4) * (size[1] // 4))
    assert np.isfinite(rows).all()


def test_an_image_without_contrast_gives_finite_features() -> None:
    rows = features_of(np.stack([np.zeros((28, 28)), np.full((28, 28), 255)]).astype(np.uint8))
    assert np.isfinite(rows).all()
    assert np.abs(rows[0]).max() < 1e-6


def test_a_row_does_not_depend_on_the_images_beside_it() -> None:
    pixels = images_of(9, (28, 28))
    together = features_of(pixels)
    for row in range(9):
        assert np.allclose(features_of(pixels[row : row + 1])[0], together[row], atol=1e-5)
    # more than fit into the cache, which are transformed in parts
    many = features_of(np.concatenate([pixels] * 12))
    assert np.allclose(many, np.concatenate([together] * 12), atol=1e-5)


def test_neighbouring_data_sets_differ_in_the_row_of_the_record_alone(tmp_path: Path) -> None:
    train, test = images_of(7, (14, 14)), images_of(3, (14, 14), seed=1)
    changed = train.copy()
    changed[4] = 255  # far from every other image
    files = []
    for name, pixels in (("a", train), ("b", changed)):
        run_extract(
            write_arrays(tmp_path / f"{name}.npz", pixels, test), tmp_path / f"{name}.h5", backbone="scattering"
        )
        files.append(tmp_path / f"{name}.h5")
    different = (rows_of(files[0]) != rows_of(files[1])).any(axis=1)
    assert different.tolist() == [row == 4 for row in range(7)]
    assert np.array_equal(rows_of(files[0], "test"), rows_of(files[1], "test"))
    with h5py.File(files[0]) as one, h5py.File(files[1]) as other:
        assert one.attrs["extraction"].replace("a.npz", "b.npz") == other.attrs["extraction"]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_the_batch_size_does_not_change_the_features(tmp_path: Path, batch_size: int) -> None:
    source = write_arrays(tmp_path / "a.npz", images_of(7, (12, 12)), images_of(2, (12, 12)))
    rows = []
    for name, size in (("one", None), ("other", batch_size)):
        run_extract(source, tmp_path / name, backbone="scattering", batch_size=size, dtype="float32")
        rows.append(rows_of(tmp_path / name))
    assert np.allclose(*rows, atol=1e-5)


def test_both_types_on_disk_hold_the_same_numbers(tmp_path: Path) -> None:
    source = write_arrays(tmp_path / "a.npz", images_of(4, (28, 28)), images_of(2, (28, 28)))
    for dtype in ("float16", "float32"):
        outcome = run_extract(source, tmp_path / dtype, backbone="scattering", dtype=dtype)
        assert (outcome["n_features"], outcome["backbone"]) == (3969, "scattering")
        assert rows_of(tmp_path / dtype).dtype == dtype
    assert np.array_equal(rows_of(tmp_path / "float16"), rows_of(tmp_path / "float32").astype(np.float16))
    with np.load(source) as arrays:
        assert np.allclose(rows_of(tmp_path / "float32"), features_of(arrays["X_train"]), atol=1e-5)


def test_the_file_records_the_transform(tmp_path: Path) -> None:
    source = write_arrays(tmp_path / "a.npz", images_of(4, (20, 16)), images_of(2, (20, 16)))
    run_extract(source, tmp_path / "f.h5", backbone="scattering")
    with h5py.File(tmp_path / "f.h5") as file:
        extraction = json.loads(file.attrs["extraction"])
        assert file.attrs["backbone"] == "scattering"
    assert all(words in extraction["tensor"] for words in ("J=2, L=8", "27 groups"))
    assert (extraction["weights"], extraction["weights_digest"], extraction["arguments"]) == ("", "", {})
    assert (extraction["image_size"], extraction["transform"]["mode"]) == ([20, 16], "L")
    assert (extraction["batch_size"], extraction["precision"]) == (256, "float32")


def sized(folder: Path, sizes: dict[str, tuple[int, int]], mode: str = "RGB") -> Path:
    """Images `folder/NAME` of the given (width, height)."""
    for seed, (name, size) in enumerate(sizes.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        photo(seed, *size).convert(mode).save(folder / name)
    return folder


def names_with(size: tuple[int, int], *others: tuple[int, int]) -> dict[str, tuple[int, int]]:
    names = [f"{group}/{name}/{number}.png" for group in ("train", "test") for name in ("a", "b") for number in (0, 1)]
    return dict(zip(names, [*others, *[size] * (len(names) - len(others))], strict=True))


@pytest.mark.parametrize(
    ("size", "others", "mode", "expected"),
    [
        ((64, 41), (), "RGB", (41, 64, "RGB")),
        ((28, 28), (), "L", (28, 28, "L")),
        ((28, 28), (), "1", (28, 28, "L")),
        ((90, 70), (), "RGB", (32, 32, "RGB")),
        ((90, 70), ((33, 200), (20, 12)), "RGB", (32, 32, "RGB")),
    ],
)
def test_small_test_images_of_one_size_keep_it_and_others_become_32_by_32(
    tmp_path: Path, size: tuple[int, int], others: tuple[Any, ...], mode: str, expected: tuple[int, int, str]
) -> None:
    source = sized(tmp_path / "photos", names_with(size, *others), mode)
    run_extract(source, tmp_path / "f.h5", backbone="scattering")
    with h5py.File(tmp_path / "f.h5") as file:
        extraction = json.loads(file.attrs["extraction"])
    height, width, channels = expected
    assert (*extraction["image_size"], extraction["transform"]["mode"]) == expected
    assert rows_of(tmp_path / "f.h5").shape == (4, 81 * len(channels) * (height // 4) * (width // 4))


def test_test_images_of_several_sizes_become_32_by_32(tmp_path: Path) -> None:
    sizes = names_with((28, 28)) | {"test/b/1.png": (30, 28)}
    run_extract(sized(tmp_path / "photos", sizes), tmp_path / "f.h5", backbone="scattering")
    assert rows_of(tmp_path / "f.h5").shape == (4, 15552)


def test_one_test_image_in_colour_keeps_the_colours(tmp_path: Path) -> None:
    source = sized(tmp_path / "photos", names_with((28, 28)), "L")
    photo(1, 28, 28).save(source / "test" / "b" / "1.png")
    run_extract(source, tmp_path / "f.h5", backbone="scattering")
    assert rows_of(tmp_path / "f.h5").shape == (4, 3 * 3969)


def test_training_images_decide_nothing(tmp_path: Path) -> None:
    source = sized(tmp_path / "photos", names_with((28, 28)), "L")
    photo(1, 28, 28).save(source / "train" / "a" / "0.png")
    run_extract(source, tmp_path / "f.h5", backbone="scattering")
    assert rows_of(tmp_path / "f.h5").shape == (4, 3969)


def test_a_folder_and_arrays_give_the_same_rows(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", {"train": 2, "test": 1}, ("ant", "bee"))
    arrays = {}
    for group, number in (("train", 2), ("test", 1)):
        paths = [folder / group / name / f"{row:03d}.png" for name in ("ant", "bee") for row in range(number)]
        arrays[f"X_{group}"] = np.stack([np.asarray(Image.open(path)) for path in paths])
        arrays[f"y_{group}"] = np.repeat([0, 1], number)
    np.savez(tmp_path / "photos.npz", class_names=["ant", "bee"], **arrays)
    rows = []
    for source in (folder, tmp_path / "photos.npz"):
        run_extract(source, tmp_path / "f.h5", backbone="scattering", overwrite=True)
        rows.append(rows_of(tmp_path / "f.h5"))
    assert rows[0].shape == (4, 243 * 5 * 6)
    assert np.array_equal(rows[0], rows[1])


def test_options_replace_the_size_and_the_channels(tmp_path: Path) -> None:
    source = sized(tmp_path / "photos", names_with((90, 70)))
    options: dict[str, Any] = {"resize": 24, "crop": 20, "mean": (0.5,), "arguments": {"mode": "L"}}
    run_extract(source, tmp_path / "f.h5", backbone="scattering", **options)
    assert rows_of(tmp_path / "f.h5").shape == (4, 81 * 25)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "mine.pt"}, "no weights"),
        ({"random_weights": True}, "no weights"),
        ({"arguments": {"mode": "CMYK"}}, "mode=L"),
        ({"arguments": {"J": 3}}, "mode=L"),
        ({"precision": "bfloat16"}, "precision is 'bfloat16'; allowed for backbone scattering: auto, float32"),
        ({"resize": 4, "crop": 4}, "cannot take images of 4 x 4 pixels (.*5 x 5 or more)"),
    ],
)
def test_options_that_do_not_fit_are_refused(images: Path, tmp_path: Path, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_extract(images, tmp_path / "f.h5", backbone="scattering", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_image_of_another_size_is_named(tmp_path: Path) -> None:
    source = sized(tmp_path / "photos", names_with((28, 28), (30, 28)))
    with pytest.raises(LinprobeError, match=r"train/a/0\.png .*30 x 28 pixels .*--resize and --crop"):
        run_extract(source, tmp_path / "f.h5", backbone="scattering")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_features() -> None:
    images = torch.from_numpy(images_of(40, (3, 28, 28))).float() / 255
    model = load_backbone("scattering", None, False, {}).model
    with torch.inference_mode():
        assert torch.allclose(model(images.cuda()).cpu(), model(images), atol=1e-4)
