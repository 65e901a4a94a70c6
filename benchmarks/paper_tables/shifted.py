"""Public rows of shifted distributions for the domain-shift table, from Flowers-102 features and photographs.

    python benchmarks/paper_tables/shifted.py FLOWERS.npz PHOTOS_FOLDER WEIGHTS.safetensors OUT_FOLDER

FLOWERS.npz holds X_train, y_train, path_train, X_test, y_test, path_test, class_names. PHOTOS_FOLDER has photographs of
some of its training rows as train/CLASS/image_ID.jpg. The first two photographs of each class, by name, become public
in five forms: their rows of FLOWERS.npz, and features of the photographs, unchanged, grey, blurred, or as edges, from
timm mobilenetv2_100 with WEIGHTS. private.h5 has all rows without a photograph. The other photographs are not used.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from linprobe.errors import Silent
from linprobe.extraction.extract import extract
from linprobe.extraction.feature_files import import_
from linprobe.extraction.request import ExtractRequest
from linprobe.options.requests import ImportRequest

SHOTS = 2
FORMS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "photographs": lambda image: image,
    "grey": lambda image: ImageOps.grayscale(image).convert("RGB"),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(4)),
    "edges": lambda image: ImageOps.grayscale(image).filter(ImageFilter.FIND_EDGES).convert("RGB"),
}


def number(path: str) -> str:
    """The photograph's number in its file name."""
    found = re.search(r"(\d+)\.jpg$", path)
    if found is None:
        raise ValueError(f"{path} is not called image_ID.jpg")
    return found.group(1)


def letters(name: str) -> str:
    """A class name in the spelling that folders and the file share."""
    return re.sub(r"[^a-z]", "", name.lower())


def main() -> None:
    """Write private.h5, same.h5 and one file per form."""
    archive, photos, weights, out = (Path(word) for word in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    data = np.load(archive)
    names = [str(name) for name in data["class_names"]]
    numbers = np.array([number(str(path)) for path in data["path_train"]])
    taken = {number(path.name) for path in photos.glob("train/*/*.jpg")}
    chosen = [path for folder in sorted(photos.glob("train/*")) for path in sorted(folder.glob("*.jpg"))[:SHOTS]]
    public = np.isin(numbers, [number(path.name) for path in chosen])
    rest = ~np.isin(numbers, list(taken))
    for name, keep in (("private", rest), ("same", public)):
        arrays = out / f"{name}.npz"
        np.savez(
            arrays,
            X_train=data["X_train"][keep],
            y_train=data["y_train"][keep],
            id_train=data["path_train"][keep],
            X_test=data["X_test"],
            y_test=data["y_test"],
            class_names=np.array(names),
        )
        import_(ImportRequest(sources=[arrays], out=out / f"{name}.h5"), Silent())
    class_of = {letters(name): name for name in names}
    for form, change in FORMS.items():
        images = out / form
        for path in chosen:
            copy = images / "train" / class_of[letters(path.parent.name)] / f"{path.stem}.png"
            copy.parent.mkdir(parents=True, exist_ok=True)
            change(Image.open(path).convert("RGB")).save(copy)
        shutil.copytree(images / "train", images / "test", dirs_exist_ok=True)  # a feature file has test rows
        request = ExtractRequest(
            source=str(images),
            backbone="timm:mobilenetv2_100",
            weights=str(weights),
            arguments={"pad_type": "same"},
            mean=(0.50196078,),
            std=(0.50196078,),
            resize=256,
            crop=224,
            interpolation="bicubic",
            out=out / f"{form}.h5",
            overwrite=True,
        )
        extract(request, Silent())


if __name__ == "__main__":
    main()
