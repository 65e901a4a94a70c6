"""What `linprobe extract` is asked for; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

DEFAULT_BACKBONE = "resnet50"


@dataclass(frozen=True)
class ExtractRequest:
    """One extraction. None means: use the default. Every field is an option of `linprobe extract`."""

    source: str
    backbone: str = DEFAULT_BACKBONE
    out: Path | None = None
    weights: str | None = None
    random_weights: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    classes: Path | None = None
    test_fraction: float | None = None
    root: Path = Path("data")
    download: bool = False
    public: Path | None = None
    augment_views: int = 0
    class_names: Path | None = None
    templates: str | None = None
    resize: int | None = None
    crop: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    device: str = "auto"
    precision: str = "auto"
    batch_size: int | None = None
    workers: int | None = None
    compile: bool = False
    dtype: str = "float16"
    on_error: str = "fail"
    timeout: float = 300.0
    overwrite: bool = False


@dataclass(frozen=True)
class ExtractOutcome:
    """What an extraction did.

    Attributes:
        file: the feature file.
        rows: rows a group. n_features, n_classes: columns and classes.
        extracted: images that went through the network in this run; 0 if the file was there already.
        seconds: of the pass over the images. waiting_share: part of it that the network waited for images.
        device, precision: where and how it was computed.
        skipped: images left out, as (id, reason). converted: images by conversion, such as `rotated`.
    """

    file: Path
    rows: dict[str, int]
    n_features: int
    n_classes: int
    extracted: int
    seconds: float
    waiting_share: float
    device: str
    precision: str
    skipped: tuple[tuple[str, str], ...]
    converted: dict[str, int]


class Progress(Protocol):
    """What an extraction tells a person while it works."""

    def note(self, text: str) -> None:
        """One line."""

    def start(self, total: int, what: str) -> None:
        """`total` images are to come."""

    def step(self, count: int) -> None:
        """`count` more are done."""
