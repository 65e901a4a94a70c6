"""How rows were made, and whether two sets of rows were made alike."""

from __future__ import annotations

import json
from typing import Any

from linprobe.data.feature_reader import Description

COMPARED = ("backbone", "weights_digest", "arguments", "tensor", "preprocessing", "image_size", "extraction_digest")
ALWAYS_COMPARED = ("backbone", "weights_digest")
SHOWN = 80  # characters of a value in a message


def extraction_of(description: Description) -> dict[str, Any]:
    """How the rows of a feature file were made, JSON-ready.

    Returns: extraction_digest, backbone, weights, weights_digest, arguments, tensor, preprocessing (an object, or the
        text of an imported file), image_size, normalisation, precision, dtype. None or empty where the file does not
        say.
    """
    settings = _object(description.extraction) or {}
    return {
        "extraction_digest": description.extraction_digest,
        "backbone": description.backbone,
        "weights": description.weights,
        "weights_digest": description.weights_digest,
        "arguments": settings.get("arguments"),
        "tensor": description.tensor,
        "preprocessing": _object(description.preprocessing) or description.preprocessing,
        "image_size": settings.get("image_size"),
        "normalisation": description.normalisation,
        "precision": settings.get("precision"),
        "dtype": settings.get("dtype"),
    }


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object in a text; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_known(extraction: dict[str, Any]) -> bool:
    """Whether it says how images became rows: `linprobe extract` made them."""
    return bool(extraction.get("extraction_digest"))


def first_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, str, str] | None:
    """Name and both values, as short texts, of the first entry in which two results of `extraction_of` differ.

    None if they agree. Rows that were imported are compared by the backbone and the digest of its weights alone, where
    both are stated.
    """
    if is_known(mine) and is_known(theirs):
        if mine["extraction_digest"] == theirs["extraction_digest"]:
            return None
        names: tuple[str, ...] = COMPARED
    else:
        names = tuple(name for name in ALWAYS_COMPARED if mine.get(name) and theirs.get(name))
    for name in names:
        here, there = mine.get(name), theirs.get(name)
        if here == there:
            continue
        if isinstance(here, dict) and isinstance(there, dict):
            inner = next(key for key in sorted({*here, *there}) if here.get(key) != there.get(key))
            return f"{name} {inner}", _shown(here.get(inner)), _shown(there.get(inner))
        return name, _shown(here), _shown(there)
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
