"""The arguments and the outcome of `linprobe extract`. This module imports neither torch nor NumPy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from linprobe.atomic_files import given_text
from linprobe.errors import DataError, UsageError
from linprobe.options.declaration import option

FAMILIES = {
    "resnet50": "resnet",
    "wide-resnet50-2": "resnet",
    "clip": "clip",
    "wrn-16-4": "wrn",
    "wrn-40-4": "wrn",
    "wrn-28-10": "wrn",
    "timm": "timm",
    "pixels": "scattering",
    "scattering": "scattering",
}
ALLOWED = (
    "resnet50, wide-resnet50-2, clip:MODEL/PRETRAINED, wrn-16-4, wrn-40-4, wrn-28-10, timm:NAME, pixels, scattering"
)
IMAGES, NETWORK, SPEED = "Images", "Network", "Speed and reliability"


@dataclass(frozen=True)
class ExtractRequest:
    """The arguments of `linprobe extract`. None means the default. With `like`, the images have no labels."""

    source: str = option(
        help="Folder of train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE; .tar; arrays; data set name.",
        argument="SOURCE",
    )
    backbone: str | None = option(
        None,
        "resnet50, wide-resnet50-2, clip:MODEL/PRETRAINED, wrn-16-4 (-40-4, -28-10), timm:NAME, pixels, scattering.",
        unset="resnet50, or scattering if its weights cannot be fetched",
        flags=("--backbone", "-b"),
    )
    like: Path | None = option(
        None,
        "Extract with the settings of this run or feature file. SOURCE is then any folder of images, without labels.",
        metavar="RUN|FILE",
    )
    out: Path | None = option(None, "Feature file to write.", unset="features/SOURCE-BACKBONE.h5")
    overwrite: bool = option(False, "Replace an existing file.")

    classes: Path | None = option(None, "File of class names in label order, one per line.", group=IMAGES)
    test_fraction: float | None = option(
        None, "Share of the images to test on, if SOURCE has no test group.", group=IMAGES
    )
    private_test: bool = option(
        False, "Test rows are private: accuracy on them is released with noise only.", group=IMAGES
    )
    owners: Path | None = option(
        None, "CSV with the columns id and owner: the person each image belongs to.", group=IMAGES
    )
    owner_regex: str | None = option(
        None, "Regular expression; its first group in an image's id is the owner.", group=IMAGES
    )
    public: Path | None = option(None, "Folder of public images, CLASS/IMAGE.", group=IMAGES)
    augment_views: int = option(0, "Augmented rows added for each public image.", least=0, most=1024, group=IMAGES)
    root: Path = option(Path("data"), "Folder of the data set that SOURCE names.", group=IMAGES)
    download: bool = option(False, "Download the data set that SOURCE names.", group=IMAGES)
    on_error: Literal["fail", "skip"] = option("fail", "What to do about unreadable images", group=IMAGES)

    weights: str | None = option(
        None, "Weights: a name (IMAGENET1K_V1) or a .pt, .pth or .safetensors file.", group=NETWORK
    )
    random_weights: bool = option(False, "Random weights, for tests.", group=NETWORK)
    arguments: dict[str, Any] | None = option(
        None,
        "KEY=VALUE for the network's constructor; repeat for more.",
        asked="backbone_arg",
        metavar="KEY=VALUE",
        group=NETWORK,
    )
    class_names: Path | None = option(None, "CLIP: file of class names for prompts, in label order.", group=NETWORK)
    templates: str | None = option(
        None,
        "CLIP: openai-80, simple-7, or a file with one template per line.",
        unset="a photo of a {}.",
        group=NETWORK,
    )
    resize: int | None = option(None, "Length of the short side; 0 keeps the size.", group=NETWORK)
    crop: int | None = option(None, "Side of the centre crop; 0 crops nothing.", group=NETWORK)
    mean: tuple[float, ...] | None = option(None, "Mean to subtract from values in [0, 1]: M or R,G,B.", group=NETWORK)
    std: tuple[float, ...] | None = option(None, "Standard deviation to divide by: S or R,G,B.", group=NETWORK)
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] | None = option(
        None, "Interpolation", group=NETWORK
    )

    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps.", group=SPEED)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Precision of the network",
        after="; auto: bfloat16 on CUDA, else float32 (scattering: float32)",
        group=SPEED,
    )
    batch_size: int | None = option(
        None,
        "Images per batch, or auto.",
        unset="512 on CUDA, else 8 (scattering 256), halved if memory runs out",
        least=1,
        most=1 << 16,
        group=SPEED,
    )
    workers: int | None = option(
        None,
        "Number of decoding processes.",
        unset="none on a CPU, else the cores of this process but one, at most 16",
        least=0,
        most=1024,
        group=SPEED,
    )
    compile: bool = option(False, "Compile the network with torch.compile.", group=SPEED)
    dtype: Literal["float16", "float32"] = option("float16", "Type of a feature on disk", group=SPEED)
    timeout: float = option(300.0, "Seconds to wait for a batch of images.", above=0, most=1e6, group=SPEED)


@dataclass(frozen=True)
class Recipe:
    """How rows were made, for `--like`: new images become rows in the same way.

    Attributes:
        name: the run or feature file. class_names: its classes, in label order.
        backbone, arguments: the network. weights: a name, or the name of a file. weights_digest: of its parameters.
        preprocessing: fields of `ImageTransform`. image_size: (height, width) of the network's input.
        extraction_digest: of all of these.
    """

    name: str
    class_names: tuple[str, ...]
    backbone: str
    weights: str
    weights_digest: str
    arguments: dict[str, Any]
    preprocessing: dict[str, Any]
    image_size: tuple[int, int]
    extraction_digest: str


@dataclass(frozen=True)
class ExtractOutcome:
    """What an extraction did.

    Attributes:
        file: the feature file. backbone: its backbone.
        rows: number of rows of each group. n_features, n_classes: number of columns and classes.
        extracted: images passed through the network in this run; 0 if the file existed already.
        seconds: duration of the pass over the images. waiting_share: fraction of it spent waiting for images.
        device, precision: where and how features were computed.
        skipped: (id, reason) of each skipped image. converted: number of images by conversion, such as `rotated`.
    """

    file: Path
    backbone: str
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


def family_of(backbone: str) -> str:
    """The module of a backbone's family in `linprobe.extraction.backbones`.

    Raises:
        UsageError: there is no such backbone.
    """
    family = backbone.partition(":")[0]
    if family not in FAMILIES or ((":" in backbone) != (family in ("clip", "timm")) and backbone != "clip"):
        raise UsageError(f"backbone is {backbone!r}; allowed: {ALLOWED}")
    return FAMILIES[family]


def read_lines(path: Path, what: str, one: str) -> list[str]:
    """The non-blank lines of a text file that an option names.

    Args:
        what: the file's role, for messages. one: what each line holds, for messages.

    Raises:
        DataError: the file cannot be read, or is empty.
    """
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{what} {path} is no file; give {one} per line in a text file")
        lines = [line.strip() for line in given_text(path, "utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what} {path} cannot be read ({error}); give {one} per line") from None
    if not lines:
        raise DataError(f"{what} {path} is empty; give {one} per line")
    return lines
