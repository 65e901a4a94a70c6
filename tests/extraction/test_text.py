"""Text weights have one unit column per class, as in the zero-shot classifier of open_clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import open_clip
import pytest
import torch

from linprobe.errors import DataError, UsageError
from linprobe.extraction import run
from linprobe.extraction.run import text_weights
from tests.extraction.samples import TINY_CLIP, run_extract, write_images

CLASSES = ("red ant", "bee", "wild_cat")


def encode(prompts: list[str]) -> Any:
    """A substitute for a text tower: one fixed vector per prompt, of varying length."""
    rows = [np.random.default_rng(list(prompt.encode())).standard_normal(6) * len(prompt) for prompt in prompts]
    return torch.tensor(np.array(rows), dtype=torch.float32)


def test_a_column_is_the_normalised_mean_of_normalised_encodings() -> None:
    templates = ("a {}.", "the {} {}", "{}")
    weights = text_weights(encode, CLASSES, templates)
    assert weights.shape == (6, 3)
    assert weights.dtype == np.float32
    for column, name in enumerate(CLASSES):
        rows = encode([template.replace("{}", name) for template in templates]).numpy()
        mean = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(axis=0)
        assert np.allclose(weights[:, column], mean / np.linalg.norm(mean), atol=1e-6)
    assert np.allclose(np.linalg.norm(weights, axis=0), 1, atol=1e-6)


def test_how_many_prompts_are_encoded_at_once_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"class {number}" for number in range(13)]
    whole = text_weights(encode, names, ("a {}", "b {}"))
    calls = []

    def counted(prompts: list[str]) -> Any:
        calls.append(len(prompts))
        return encode(prompts)

    monkeypatch.setattr(run, "PROMPTS_AT_ONCE", 5)
    assert np.array_equal(text_weights(counted, names, ("a {}", "b {}")), whole)
    assert calls == [5, 5, 5, 5, 5, 1]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    """A small CLIP network and the options that name it."""
    model = open_clip.create_model("ViT-B-32", pretrained=None, **TINY_CLIP)
    path = tmp_path_factory.mktemp("clip") / "weights.pt"
    torch.save(model.state_dict(), path)
    return model.eval(), {"backbone": "clip:ViT-B-32", "weights": str(path), "arguments": TINY_CLIP}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("named") / "s", {"train": 1, "test": 1}, CLASSES)


def stored(source: Path, out: Path, options: dict[str, Any], **more: Any) -> Any:
    run_extract(source, out, **options, **more)
    with h5py.File(out) as file:
        return file["text/weights"][:]


def plain(model: Any, names: list[str], templates: list[str]) -> Any:
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    functions = [lambda name, template=template: template.replace("{}", name) for template in templates]
    with torch.no_grad():
        return open_clip.build_zero_shot_classifier(model, tokenizer, names, functions).numpy()


def test_folder_names_are_put_into_the_default_prompt_with_spaces(named: Path, tmp_path: Path, clip: Any) -> None:
    model, options = clip
    weights = stored(named, tmp_path / "f.h5", options)
    assert weights.shape == (32, 3)
    assert np.allclose(np.linalg.norm(weights, axis=0), 1, atol=1e-5)
    names = ["bee", "red ant", "wild cat"]  # in label order
    expected = plain(model, names, ["a photo of a {}."])
    assert np.abs(weights - expected).max() < 1e-5
    assert np.abs(expected[:, 0] - expected[:, 1]).max() > 1e-3


def test_given_class_names_replace_those_of_the_folders(named: Path, tmp_path: Path, clip: Any) -> None:
    model, options = clip
    (tmp_path / "names.txt").write_text("honey_bee\n\n  fire ant  \nlynx\n")
    weights = stored(named, tmp_path / "f.h5", options, class_names=tmp_path / "names.txt")
    expected = plain(model, ["honey_bee", "fire ant", "lynx"], ["a photo of a {}."])
    assert np.abs(weights - expected).max() < 1e-5


def test_templates_come_from_a_file_or_are_openais_eighty(named: Path, tmp_path: Path, clip: Any) -> None:
    model, options = clip
    names = ["bee", "red ant", "wild cat"]
    (tmp_path / "templates.txt").write_text("a drawing of a {}.\nmy {}, the {}\n")
    weights = stored(named, tmp_path / "f.h5", options, templates=str(tmp_path / "templates.txt"))
    assert np.abs(weights - plain(model, names, ["a drawing of a {}.", "my {}, the {}"])).max() < 1e-5
    assert len(open_clip.OPENAI_IMAGENET_TEMPLATES) == 80
    weights = stored(named, tmp_path / "g.h5", options, templates="openai-80")
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    with torch.no_grad():
        expected = open_clip.build_zero_shot_classifier(model, tokenizer, names, open_clip.OPENAI_IMAGENET_TEMPLATES)
    assert np.abs(weights - expected.numpy()).max() < 1e-5


def test_class_names_and_templates_that_do_not_fit_are_refused(named: Path, tmp_path: Path, clip: Any) -> None:
    _, options = clip
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "order.txt").write_text("red ant\nBee\nwild cat\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"class_names": tmp_path / "two.txt"}, DataError, "2 class names; allowed: 3"),
        ({"class_names": tmp_path / "empty.txt"}, DataError, r"empty\.txt is empty"),
        ({"class_names": tmp_path / "none.txt"}, DataError, r"none\.txt cannot be read"),
        (
            {"class_names": tmp_path / "order.txt"},
            DataError,
            "'red ant' as class 0, where .* has 'bee'.*label order",
        ),
        ({"class_names": tmp_path / "bytes.txt"}, DataError, r"bytes\.txt cannot be read"),
        ({"templates": str(tmp_path / "two.txt")}, DataError, r"'a'.*no \{\}"),
        ({"templates": "imagenet"}, UsageError, "openai-80, simple-7"),
    ]
    for more, error, words in cases:
        with pytest.raises(error, match=words):
            run_extract(named, tmp_path / "f.h5", **options, **more)
    assert not (tmp_path / "f.h5").exists()


@pytest.mark.parametrize("option", ["class_names", "templates"])
def test_a_network_without_a_text_tower_refuses_prompts(images: Path, tmp_path: Path, option: str) -> None:
    (tmp_path / "names.txt").write_text("a {}\nb {}\nc {}\n")
    value: Any = tmp_path / "names.txt"
    with pytest.raises(UsageError, match="no text tower"):
        run_extract(images, tmp_path / "f.h5", **{option: value if option == "class_names" else str(value)})
    run_extract(images, tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5") as file:
        assert "text" not in file
