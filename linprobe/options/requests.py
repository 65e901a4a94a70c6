"""The request of every command, declared once. A docstring is the help text of a command.

To add a command, declare its request here, and give the function that carries it out `linprobe.cli.command`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from linprobe.errors import ParameterError, UsageError
from linprobe.options import (
    DEFAULT_DELTA,
    DEFAULT_STEPS,
    LEAST_RATE,
    MAX_CAP,
    MAX_EPSILON,
    MAX_SIGMA,
    MAX_STEPS,
    NEWTON_STEPS,
    SAMPLED_STEPS,
    SAMPLING_RATE,
    AccountantName,
    Choice,
    Confirmation,
    RunOptions,
)
from linprobe.options.declaration import Declaration, Request, declared, option

DEFAULT_EPOCHS = 60.0
DEFAULT_RATES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
MAX_PROCESSES = 1024
MOST_VIEWS = 10  # of an image: the ten-crop test of the field
SHADOWS, LEAST_SHADOWS, RESAMPLES, LEAST_RESAMPLES = 64, 4, 1000, 100
HOST_ROWS, DEVICE_ROWS = ("memory", "streamed", "two ranks"), ("device",)  # where an audit has its rows
RUNS_PER_ROWS = 4  # least number of runs of an audit: 2 with per-record losses, and 2 without
IMAGES, TABLE, NETWORK = "Images", "Columns of the table", "Network"  # headings of the help of extract
BACKBONES = (  # CAPITALS stand for names that the family defines
    "resnet50", "wide-resnet50-2", "clip:MODEL/PRETRAINED", "wrn-16-4", "wrn-40-4", "wrn-28-10", "timm:NAME", "pixels",
    "scattering",
)  # fmt: skip
OF_BACKBONE = "the default of the backbone"
SPEED = "Speed and reliability"
SPLIT = "Group of the row: train, test (or val, validation, valid) or public."
CLASSES = "Class names in label order, or a file with one per line."
PRIVATE_TEST = "Test rows are private: accuracy on them is released only with noise."
BOTH_SIDES = (
    "Allow people with both test rows and other rows; --test-fraction then splits rows, not people. Accuracy is on "
    "people seen in training."
)
PROCESSES = "one per processor, at most 8"
DIGITS = "digits"  # the built-in data
COMPARED = ("adamix", "noisy-gd")  # the methods of a comparison that names none
MOST_RUNS = (
    "epsilon", "delta", "unit", "public_shots", "public", "unlabelled", "class_weight", "method", "out", "dry_run",
)  # fmt: skip
RATE_FLAGS = ("--sampling-rate", "--q")

# Groups of options that several commands share.


class OfRun(Declaration):
    run: Path = option(help="Run folder; - reads its path from stdin.", argument="RUN|-")


class JsonOption(Declaration):
    as_json: bool = option(False, "Print one JSON object on stdout.", flags=("--json",))


class PrivateJsonOption(Declaration):
    as_json: bool = option(False, "Print one JSON object on stdout. Private.", flags=("--json",))


class DryRunOption(Declaration):
    dry_run: bool = option(False, "Print what the command would read, spend and write, and how long it takes.")


class OverwriteOption(Declaration):
    overwrite: bool = option(False, "Replace existing output files.")


class Scoring(Declaration):
    allow_other_features: bool = option(
        False, "Score rows even if they were extracted with settings other than the settings of the run."
    )


class Calibrate(Declaration):
    calibrate: Path | None = option(
        None, "Divide the class scores by a temperature fitted on the public rows of this file.", metavar="FILE"
    )


class ForPrior(Declaration):
    prior: str | None = option(
        None,
        "Class shares to predict for: train, uniform, LABEL=SHARE,..., or a JSON file; from the run's class counts.",
        unset="train, or uniform for a run with class weight balanced",
        metavar="PRIOR",
    )


# Values of options of `extract` from their words on the command line; `name` is for errors.


def name_of(features: Path | None) -> str:
    """The name of a feature file in titles, tables and folders; of shards `photos/*.h5`, `photos`; empty for none."""
    if features is None:
        return ""
    stem = re.sub(r"[*?\[\]]", "", features.stem).strip("-_.")
    return stem if stem or not features.parent.name else features.parent.name


def pairs(name: str, words: Sequence[str]) -> dict[str, Any] | None:
    """KEY=VALUE pairs; a value that is not JSON is text. None without any."""
    found: dict[str, Any] = {}
    for pair in words:
        key, equals, text = pair.partition("=")
        if not key.isidentifier() or not equals:
            raise UsageError(f"{name} is {pair!r}; allowed: KEY=VALUE, as in pad_type=same")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found or None


def channels(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ParameterError(f"{name} is {text!r}; allowed: a number, or one per channel, as in 0.5,0.5,0.5") from None


def number_or_auto(name: str, text: str) -> int | None:
    """A whole number; None for the word auto."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r}; allowed: auto, or a whole number above 0")
    return int(text)


# The requests, in the order of `linprobe --help`.


class ExtractRequest(
    JsonOption,
    OverwriteOption,
    Request,
    command="extract",
    examples=(
        "extract photos/ --backbone scattering --out photos.h5",
        "extract --table photos.csv --label-column diagnosis --owner-column patient_id --test-fraction 0.3 "
        "--backbone pixels --resize 16 --crop 16 --out patients.h5",
        "extract new/ --like runs/first --out new.h5",
    ),
):
    """Turn images into a feature file and print its path.

    A frozen network computes the features. Run the same command again to resume an interrupted run.
    """

    source: str | None = option(
        None,
        "Folder of train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE; or arrays of images.",
        argument="[SOURCE]",
    )
    backbone: str | None = option(
        None,
        f"{', '.join(BACKBONES)}.",
        unset="resnet50, or scattering if its weights cannot be fetched",
        flags=("--backbone", "-b"),
        group=NETWORK,
    )
    like: Path | None = option(
        None,
        "Extract with the settings of this run or feature file. SOURCE is then any folder of images, without labels.",
        metavar="RUN|FILE",
        group=NETWORK,
    )
    unlabelled: bool = option(False, "SOURCE is any folder of images; make rows without labels.", group=IMAGES)
    out: Path | None = option(None, "Feature file to write.", unset="features/SOURCE-BACKBONE.h5")
    classes: Path | None = option(None, CLASSES, metavar="A,B,...|FILE", group=IMAGES)
    test_fraction: float | None = option(
        None,
        "Fraction of the images, or of the people if images have owners, held out for testing. Only if SOURCE has no "
        "test group.",
        group=IMAGES,
    )
    private_test: bool = option(False, PRIVATE_TEST, group=IMAGES)
    owners_on_both_sides: bool = option(False, BOTH_SIDES, group=IMAGES)
    owners: Path | None = option(None, "CSV with columns id and owner: the person each image belongs to.", group=IMAGES)
    owner_regex: str | None = option(None, "Regular expression on image ids; group 1 is the owner.", group=IMAGES)
    table: Path | None = option(
        None,
        "In place of SOURCE: CSV or Parquet with a line for each image, in any folder.",
        metavar="FILE",
        group=TABLE,
    )
    path_column: str = option("file", "Path of the image: absolute, or relative to the table's folder.", group=TABLE)
    label_column: str = option("label", "Class of the image.", group=TABLE)
    id_column: str | None = option(None, "Id of the image.", unset="id, if there is one, else the path", group=TABLE)
    owner_column: str | None = option(None, "Person the image belongs to.", unset="owner, if there is one", group=TABLE)
    split_column: str | None = option(None, SPLIT, group=TABLE)
    on_error: Literal["fail", "skip"] = option("fail", "What to do about unreadable images", group=IMAGES)

    weights: str | None = option(
        None, "Weights: a name (IMAGENET1K_V1) or a .pt, .pth, .safetensors file.", group=NETWORK
    )
    random_weights: bool = option(False, "Random weights, for tests.", group=NETWORK)
    arguments: dict[str, Any] | None = option(
        None,
        "KEY=VALUE for the network's constructor; repeat for more.",
        asked="backbone_arg",
        from_text=pairs,
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
    resize: int | None = option(None, "Length of the short side; 0 keeps the size.", unset=OF_BACKBONE, group=NETWORK)
    crop: int | None = option(None, "Side of the centre crop; 0 crops nothing.", unset=OF_BACKBONE, group=NETWORK)
    mean: tuple[float, ...] | None = option(
        None,
        "Mean to subtract from values in [0, 1]: M or R,G,B.",
        unset=OF_BACKBONE,
        from_text=channels,
        group=NETWORK,
    )
    std: tuple[float, ...] | None = option(
        None, "Standard deviation to divide by: S or R,G,B.", unset=OF_BACKBONE, from_text=channels, group=NETWORK
    )
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] | None = option(
        None, "Interpolation", unset=OF_BACKBONE, group=NETWORK
    )
    views: int = option(
        1,
        "Average the features of this number of views: the centre crop, its mirror image, then shifted crops",
        least=1,
        most=MOST_VIEWS,
        group=NETWORK,
    )
    layer: Literal["pre-projection", "last4+avg"] | None = option(
        None,
        "Features of another layer",
        after="; pre-projection: before the projection of CLIP; last4+avg (ViTs of timm): class tokens of the last 4 "
        "blocks and mean patch token",
        unset="the network's output",
        group=NETWORK,
    )

    device: str = option("auto", "Where the network runs: auto, cpu, cuda, cuda:1, mps.", group=SPEED)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Precision of the network",
        after="; auto: bfloat16 on CUDA, else float32 (scattering: float32)",
        group=SPEED,
    )
    batch_size: int | None = option(
        None,
        "Images per batch.",
        after=", or auto",
        unset="512 on CUDA, else 8 (scattering 256), divided by --views; halved if memory runs out",
        least=1,
        most=1 << 16,
        from_text=number_or_auto,
        group=SPEED,
    )
    workers: int | None = option(
        None,
        "Number of decoding processes.",
        unset="none on a CPU, else one fewer than the cores of this process, at most 16",
        least=0,
        most=1024,
        group=SPEED,
    )
    dtype: Literal["float16", "float32"] = option("float16", "Type of a feature on disk", group=SPEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (not self.source) == (self.table is None):
            given = "both SOURCE and --table were" if self.source else "neither SOURCE nor --table was"
            raise UsageError(f"{given} given; allowed: one of the two; give a folder of images, or --table FILE")
        for name, one in declared(ExtractRequest).items():
            if self.table is None and name.endswith("_column") and getattr(self, name) != one.default:
                raise UsageError(f"option {one.spellings[0]} is about a table; give --table FILE in place of SOURCE")

    @property
    def images(self) -> str:
        """The table, or SOURCE."""
        return str(self.table or self.source)


class ImportRequest(
    OverwriteOption,
    Request,
    command="import",
    examples=(
        "import arrays.npz --out features.h5",
        "import train.csv test.csv --label-column species --out features.h5",
        "import table.csv --label-column outcome --owner-column patient --test-fraction 0.25 --out patients.h5",
    ),
):
    """Turn arrays into a feature file and print its path."""

    sources: Sequence[Path] = option(
        help="One .npz, .pt, .h5 or .hdf5; or X_train.npy, y_train.npy, ... (or .pt); or tables train.csv and test.csv "
        "(or .parquet); or a folder of them; or X.npy y.npy or one table, with --split-column or --test-fraction.",
        argument="ARRAYS...",
        asked="arrays",
    )
    out: Path = option(help="Feature file to write.")
    classes: Path | None = option(None, CLASSES, metavar="A,B,...|FILE")
    x: str | None = option(None, "Array of rows in a .npz, .pt, .h5 or .hdf5 under any name.", metavar="KEY")
    y: str | None = option(None, "With --x: array of labels; without --y, rows have no labels.", metavar="KEY")
    label_column: str = option(
        "label", "Tables: column of labels; NAME,NAME,... for columns of 0 and 1, which give rows several labels."
    )
    id_column: str | None = option(
        None, "Tables: column of record ids; with --x: array of record ids.", unset="id, if there is one"
    )
    owner_column: str | None = option(
        None,
        "Person each row belongs to: column of a table, or array NAME_train (with --x: NAME).",
        unset="owner, if there is one",
        metavar="NAME",
    )
    split_column: str | None = option(None, f"One table: {SPLIT[0].lower()}{SPLIT[1:]}")
    test_fraction: float | None = option(
        None, "Fraction of the training rows, or of the people where rows have owners, held out for testing."
    )
    private_test: bool = option(False, PRIVATE_TEST)
    owners_on_both_sides: bool = option(False, BOTH_SIDES)


class TrainRequest(
    Confirmation,
    RunOptions,
    Choice,
    Request,
    command="train",
    examples=(
        "train --eps 3",
        "train features.h5 --eps 3 --dry-run",
        "train features.h5 --eps 3 --out runs/first",
        "train patients.h5 --eps 3 --public-shots 0 --unit owner",
        "train --method adamix --help",
    ),
    first=MOST_RUNS,
    checked_later=True,
):
    """Train a probe and print the run folder.

    The guarantee is (epsilon, delta)-differential privacy under zero-out adjacency: one private record is present,
    or its place is empty; the number of places is public. With --unit owner, all private rows of one person
    are present, or none. Every run spends privacy budget. Two runs at epsilon e on the same private rows cost more
    than e together.
    """

    # `TRAIN` and the method declare these; None is the default. `options` are the method's own options, by name.
    epsilon: float | None = None
    delta: float = DEFAULT_DELTA
    sigma: float | None = None
    steps: int | None = None
    sampling_rate: float | None = None
    accountant: str | None = None
    per_record: bool | None = None
    centre: str | None = None
    condition: str | None = None
    intercept: float | None = None
    noise_seed: int | None = None
    options: dict[str, Any] | None = None


class TuneRequest(
    DryRunOption,
    JsonOption,
    Request,
    command="tune",
    examples=(
        "tune features.h5 --eps 3 --shrink 0.25,0.5,1",
        "tune features.h5 --method noisy-gd --eps 3 --grid score-noise=0.3,1,3",
    ),
    first=("grid", "shrink", *(name for name in MOST_RUNS if name != "unlabelled")),
):
    """Train with settings chosen on the private rows, and print the run folder.

    The guarantee is (epsilon, delta)-differential privacy of training and selection together, under zero-out
    adjacency: one private record, or with --unit owner one person, is present, or its place is empty. --shrink
    makes one run, then chooses how much of its update to keep, by noisy counts of correct predictions on private
    rows. --grid makes a secret number of runs and keeps the run with the largest noisy count; the other runs are
    neither printed nor stored.
    """

    grid: Sequence[str] = option(
        (),
        "Values to try for an option of train, or for method; repeat for more options. Every combination is a setting.",
        metavar="OPTION=V,V,...",
        group="Method",
    )
    shrink: Sequence[float] = option(
        (),
        "Factors on the update of the initial weights, from 0 to 1; noisy counts of correct predictions choose one.",
        commas=True,
        metavar="C,C,...",
        group="Method",
    )
    repetitions: int | None = option(
        None, "Mean number of runs for --grid, 2 or more.", unset="number of settings, at most 5", group="Method"
    )


class EvaluateRequest(
    DryRunOption,
    JsonOption,
    ForPrior,
    Calibrate,
    Scoring,
    OfRun,
    Request,
    command="evaluate",
    examples=("evaluate runs/first", "evaluate runs/first later.h5 --epsilon 1"),
):
    """Print a run's accuracy on test rows, or its macro AUROC for multilabel rows.

    Tables on stderr show balanced accuracy, AUROC, calibration error, and metrics of each class with 95 %
    intervals. --json prints all of them and the confusion matrix. For a run with class counts, tables and JSON have the
    accuracies for the class shares of training and for equal shares. Private test rows need --epsilon, which spends
    privacy budget.
    """

    features: Path | None = option(None, "Feature file.", unset="the feature file of the run", argument="[FEATURES]")
    epsilon: float | None = option(
        None,
        "Epsilon to spend on a noisy accuracy and AUROC on private test rows.",
        after="; their budget book is charged",
        above=0,
        most=MAX_EPSILON,
        flags=("--epsilon", "--eps"),
    )
    delta: float | None = option(None, "With --epsilon: its delta.", unset="the delta of the run", above=0, below=1)
    unit: Literal["record", "owner"] | None = option(
        None,
        "With --epsilon: what is protected",
        after="; owner: a person, with all test rows of that person",
        unset="record; required if test rows have owners",
    )
    book: Path | None = option(None, "With --epsilon: the budget book.", unset="the book of the test rows")


class PredictRequest(
    ForPrior,
    Calibrate,
    Scoring,
    JsonOption,
    OverwriteOption,
    OfRun,
    Request,
    command="predict",
    examples=("predict runs/first new.h5 --out labels.csv", "predict runs/first new.h5 --probabilities"),
):
    """Print id, label and score of every row as CSV; the score is the model's probability of the label, not a
    calibrated one.

    For multilabel rows, there is a column for each label: 1 where its probability is above one half, else 0.
    With --json, the object has `columns`, their names, and `rows`, a list of values for each row; with --out, `file`.
    """

    features: Path = option(help="Feature file or .npy array; - reads its path from stdin.", argument="FEATURES|-")
    group: str | None = option(None, "Group of the feature file: rows, test, train, public.", unset="rows, else test")
    together: bool = option(False, "Predict the rows together: spread class probabilities between similar rows.")
    probabilities: bool = option(False, "Add a column with the probability of each class.")
    out: Path | None = option(None, "CSV file to write, mode 0600.", unset="stdout", metavar="FILE")


class RefineRequest(
    JsonOption, OfRun, Request, command="refine", examples=("refine runs/first unlabelled.h5 --out runs/refined",)
):
    """Refine the weights of a run with public rows without labels, and print the new run.

    The new run has the guarantee of RUN and spends no budget. The rows must be public: the
    refined weights reveal them. The feature file of RUN must hold the rows of RUN, or not exist.
    A run with centre none (see linprobe info RUN) is refused: give train --unlabelled instead.
    """

    unlabelled: Path = option(help="Feature file of rows without labels, from the same backbone.", argument="ROWS")
    out: Path = option(help="Run folder to make.")
    sign: Path | None = option(None, "Ed25519 private key (PEM); required if RUN is signed.", metavar="KEY")


class PdpReportRequest(
    DryRunOption,
    PrivateJsonOption,
    OverwriteOption,
    OfRun,
    Request,
    command="pdp-report",
    examples=("pdp-report runs/first",),
):
    """Summarise the privacy loss of each private record. Private, except the noisy histogram."""

    csv: Path | None = option(None, "Write id and epsilon of every record. Private.")
    plot: Path | None = option(None, "Draw the sorted epsilons of the records, .png or .svg. Private.")
    publish_epsilon: float | None = option(None, "Epsilon to spend on a noisy histogram; makes a new run beside RUN.")
    sign: Path | None = option(None, "With --publish-epsilon: the private key of a signed run.", metavar="KEY")
    book: Path | None = option(None, "With --publish-epsilon: the budget book.", unset="the book with the run")


class AttackRequest(
    PrivateJsonOption,
    OverwriteOption,
    OfRun,
    Request,
    command="attack",
    examples=("attack runs/first", "attack runs/first --lira --shadows 8"),
):
    """Run a membership inference attack on a run.

    The attack distinguishes private rows from test rows by their scores; in a run by owner, private people from test
    people. The results are private.
    """

    features: Path | None = option(None, "Feature file.", unset="the feature file of the run")
    public: Path | None = option(None, "With --lira: feature file of public rows.", unset="the public rows of the run")
    out: Path | None = option(None, "Write the JSON object to a file. Private.")
    lira: bool = option(False, "Run the likelihood-ratio attack with shadow probes instead.")
    shadows: int | None = option(
        None, "With --lira: number of shadow probes, an even number.", unset=str(SHADOWS), least=LEAST_SHADOWS
    )
    jobs: int | None = option(None, "With --lira: number of processes.", unset=PROCESSES, least=1, most=MAX_PROCESSES)
    resamples: int = option(
        RESAMPLES, f"Bootstrap resamples of the interval: 0 for none, or {LEAST_RESAMPLES} or more."
    )


class ReportRequest(
    OverwriteOption,
    OfRun,
    Request,
    command="report",
    examples=("report runs/first --out report.html", "report runs/first --html flowers.html --title 'Flower probe'"),
):
    """Verify a run and write an HTML page for a privacy reviewer."""

    html: Path = option(help="Page to write, .html or .htm.", flags=("--html", "--out"))
    title: str | None = option(None, "Title of the page.", unset="method and run")
    owner: str | None = option(None, "Who is responsible for the data.", unset="a blank line to sign")


class VerifyRequest(
    JsonOption,
    OfRun,
    Request,
    command="verify",
    examples=("verify runs/first --features features.h5", "verify runs/first --max-eps 3 --max-delta 1e-5"),
):
    """Check that a run is private and intact, and that all accountants agree on its guarantee.

    The guarantee is under zero-out adjacency: one private record is present, or its place is empty.

    Exits with 4 and the reason if the run is seeded or not private, a file is edited or missing, the guarantee
    exceeds a limit, or the signature is missing or by another key.
    """

    features: Path | None = option(
        None,
        "Feature file; also check that the run was trained on its private rows, and the accuracy on its test rows.",
    )
    unlabelled: Path | None = option(
        None, "Feature file of the rows that refined the run; recompute the refinement.", metavar="FILE"
    )
    before: Path | None = option(
        None, "The run that was refined; verify it, and compare weights and epsilon.", flags=("--run",), metavar="RUN"
    )
    public_key: Path | None = option(
        None, "Ed25519 public key (PEM); refuse a run that this key did not sign.", metavar="FILE"
    )
    max_epsilon: float | None = option(None, "Refuse a larger epsilon.", least=0, flags=("--max-eps",))
    max_delta: float | None = option(None, "Refuse a larger delta.", least=0)


class ReleaseRequest(
    JsonOption,
    OfRun,
    Request,
    command="release",
    examples=("release runs/first --out released", "release runs/first --out model --curator 'A hospital'"),
):
    """Collect the files of a run that may be published, and print the folder.

    Verifies the run first. The folder holds weights, manifest, ledger, signature, a model card and an entry for the
    registry of DP deployments. Runs that are not private are refused. The signature of a signed run covers the card and
    the entry: to change them, give --sign.
    """

    out: Path = option(help="Folder to make.")
    name: str | None = option(None, "Name of the model.", unset="the name of the folder of --out")
    curators: Sequence[str] = option((), "Who publishes it; repeat for more.", unset="not stated", asked="curator")
    use: str | None = option(None, "Intended use.", unset="not stated")
    region: str | None = option(None, "Where the data come from, or whose law applies.", unset="not stated")
    licence: str | None = option(None, "Licence id, such as cc-by-4.0.", unset="not stated", flags=("--license",))
    public_key: Path | None = option(
        None, "Ed25519 public key (PEM); refuse a run that this key did not sign.", metavar="FILE"
    )
    sign: Path | None = option(
        None, "Ed25519 private key (PEM) that signs the release; for a signed run, the same key.", metavar="KEY"
    )


class ExportRequest(
    Calibrate,
    OverwriteOption,
    OfRun,
    Request,
    command="export",
    examples=("export runs/first --out probe.safetensors", "export runs/first --to onnx --out probe.bin"),
):
    """Write the probe to a file for other software, and print its path.

    Verifies the run first. The file states what the run guarantees. onnx takes raw feature rows; safetensors needs rows
    divided by their L2 norm.
    """

    out: Path = option(help="File to write.")
    to: Literal["safetensors", "onnx"] | None = option(None, "Format", unset="the extension of --out", metavar="FORMAT")


class InfoRequest(JsonOption, Request, command="info", examples=("info features.h5", "info runs/first --json")):
    """Describe a feature file or a run folder."""

    path: Path = option(help="Feature file or run folder; - reads its path from stdin.", argument="FILE_OR_RUN|-")


class MethodsRequest(Request, command="methods", examples=("methods", "methods --json")):
    """List every method with its paper and the data it needs."""

    as_json: bool = option(False, "Print a JSON list on stdout.", flags=("--json",))


class PlanRequest(OverwriteOption, JsonOption, Request, command="plan", examples=("plan --n 50000 --eps 3",)):
    """Find a sampling rate, noise and steps for a budget.

    Compares the noise that each sampling rate needs. The command reads no data.

    stdout carries the recommended rate, noise multiplier and number of steps on one line, separated by tabs; with
    --json, every row.
    """

    epsilon: float = option(help="Target epsilon.", above=0, most=MAX_EPSILON, flags=("--eps", "--epsilon"))
    n_rows: int = option(help="Number of private rows.", least=1, flags=("--n",))
    n_classes: int | None = option(
        None, "Number of classes.", after="; adds the accuracy to expect", least=2, flags=("--classes",)
    )
    delta: float = option(DEFAULT_DELTA, "Target delta, below 1/N.")
    epochs: float = option(DEFAULT_EPOCHS, "Average number of times a row is sampled.", above=0)
    sampling_rates: Sequence[float] = option(
        DEFAULT_RATES,
        "Sampling rates.",
        least=LEAST_RATE,
        most=1,
        commas=True,
        asked="q",
        flags=("--q", "--sampling-rate"),
        metavar="Q,Q,...",
    )
    accountant: AccountantName = option("auto", "Accountant", after="; auto: gdp for q = 1, else pld; gdp needs q = 1")
    plot: Path | None = option(None, "Draw noise against sampling rate, .png or .svg.")


class AccountRequest(
    JsonOption,
    Request,
    command="account",
    examples=(
        "account --sigma 20 --steps 50 --q 1 --delta 1e-5",
        "account --sigma 1.5 --steps 1000 --q 0.01 --delta 1e-5",
    ),
):
    """Compute the epsilon of a given noise, sampling rate and steps.

    Prints the figure of each accountant that applies, and for sums over all rows the figure of autodp. The command
    reads no data.

    stdout carries one line per accountant: its name, a tab, its epsilon, rounded up. The first is the epsilon that
    `train` reports. mu of Gaussian DP and rho of zCDP are on stderr.
    """

    sampling_rate: float = option(help="Sampling rate.", least=LEAST_RATE, most=1, flags=RATE_FLAGS)
    noise_multiplier: float = option(help="Noise multiplier.", above=0, most=MAX_SIGMA, asked="sigma")
    n_steps: int = option(
        help="Number of steps.", after="; each step is a release", least=1, most=MAX_STEPS, asked="steps"
    )
    delta: float = option(help="Delta.", above=0, below=1)


class AuditRequest(
    JsonOption,
    Request,
    command="audit",
    examples=(
        "audit --method noisy-gd --eps 3",
        "audit --method dp-newton --eps 3 --runs 50 --canaries 50",
        "audit --method noisy-gd --eps 3 --part tune",
    ),
):
    """Measure a lower bound on epsilon with canaries (planted records).

    Trains on the built-in digits with rows in memory, streamed, and divided between two ranks, each with and
    without per-record losses. stdout carries the lower bound; the exit status is 4 if it is above the claim.
    """

    method: str = option(help="Training method; `linprobe methods` lists them.", flags=("--method", "-m"))
    epsilon: float = option(help="Claimed epsilon.", above=0, most=MAX_EPSILON, flags=("--eps", "--epsilon"))
    delta: float = option(DEFAULT_DELTA, "Claimed delta.")
    steps: int | None = option(
        None,
        "Number of steps.",
        unset=f"{DEFAULT_STEPS}; {SAMPLED_STEPS} with Poisson sampling; {NEWTON_STEPS} dp-newton",
        least=1,
        most=MAX_STEPS,
    )
    sampling_rate: float | None = option(
        None,
        "With Poisson sampling: probability that a step samples a row.",
        unset=f"{SAMPLING_RATE:g}",
        least=LEAST_RATE,
        most=1,
        flags=RATE_FLAGS,
    )
    runs: int = option(
        100,
        "Number of training runs.",
        after=f"; with --device cuda, at least {RUNS_PER_ROWS * len(HOST_ROWS + DEVICE_ROWS)}",
        least=RUNS_PER_ROWS * len(HOST_ROWS),
        most=10_000,
    )
    canaries: int = option(100, "Canaries per run.", least=10, most=1000)
    confidence: float = option(0.999, "Confidence of the lower bound.", least=0.5, below=1)
    part: Literal["training", "counts", "tune", "histogram"] = option(
        "training",
        "Part to audit",
        after="; counts: training with noisy class counts and noisy accuracy on test rows; tune: the private choice "
        "of one run; histogram: the published histogram of privacy losses",
    )
    unit: Literal["record", "owner"] = option("record", "Privacy unit of a canary", after="; owner: a person of 6 rows")
    device: str = option("cpu", "cuda or cuda:N: audit training on that GPU too.")


class CompareRequest(
    DryRunOption,
    JsonOption,
    Request,
    command="compare",
    examples=(
        "compare features.h5 --methods adamix,noisy-gd --eps 1,3,8 --out compared",
        "compare features.h5 --methods noisy-gd:score-noise=0.3/1/3 --eps 3 --dry-run",
    ),
):
    """Compare methods over several epsilons and seeds.

    Prints the folder with the tables, figures and runs.

    Every run is a release of the private rows; the line under the table gives their total cost.
    Choosing among runs by test accuracy is common in research, but it is not private.
    """

    # a caller in Python may give rows, see `linprobe.evaluation.comparison_plan.MethodRow`
    methods: Sequence[Any] | None = option(
        None,
        "Methods; settings follow a colon: dope-sgd:ensemble=5:steps=100; several values are tuned: "
        "adamix:score-noise=0.3/1/3, adamix:shrink=0/0.5/1.",
        unset=f"{','.join(COMPARED)}; without public rows, {COMPARED[1]}",
        commas=True,
        metavar="M,M,...",
    )
    epsilons: Sequence[float] = option(
        (1.0, 3.0),
        "Target epsilons.",
        above=0,
        most=MAX_EPSILON,
        commas=True,
        flags=("--eps", "--epsilon"),
        metavar="E,E,...",
    )
    out: Path | None = option(None, "Folder; an unfinished comparison in it is continued.", unset="comparisons/NAME")
    features: Path | None = option(
        None, "Feature file; -: path from stdin. Without it: the built-in digits.", argument="[FEATURES|-]"
    )
    delta: float = option(DEFAULT_DELTA, "Target delta of each run, below 1 / number of private rows or people.")
    seeds: int = option(
        5, "Runs of each method and epsilon.", after="; the seed chooses the public shots", least=1, most=1000
    )
    public_shots: Sequence[int] = option(
        (),
        "Public rows per class, taken out of the training rows; with --unit owner, whole people.",
        commas=True,
        metavar="K,K,...",
    )
    public: Sequence[Path | None] = option(
        (),
        "Feature file of public rows; repeat for more; the word none adds a comparison without public rows.",
        metavar="FILE|none",
    )
    unlabelled: Path | None = option(
        None,
        "Feature file of public rows without labels. They refine every run except non-private and tuned runs.",
        metavar="FILE",
    )
    baselines: bool = option(True, "Also train only-public and non-private.", flags=("--baselines/--no-baselines",))
    attack: bool = option(False, "Also run the threshold membership attack on every run; the results are private.")
    jobs: int | None = option(None, "Number of processes.", unset=PROCESSES, least=1, most=MAX_PROCESSES)
    book: Path | None = option(None, "Budget book of the training rows.", unset="as for `linprobe train`")
    unit: Literal["record", "owner"] | None = option(
        None,
        "Unit of privacy of every run",
        after="; owner: a person, with all rows of that person",
        unset="record; required if rows have owners",
    )

    @property
    def folder(self) -> Path:
        return self.out or Path("comparisons") / (name_of(self.features) or DIGITS)


class BudgetRequest(
    PrivateJsonOption,
    Request,
    command="budget",
    examples=("budget features.h5", "budget features.h5 --set-cap 8 --delta 1e-5"),
):
    """Print the composed epsilon of all noisy runs on a set of rows, from its budget book.

    stdout carries the epsilon, rounded up. The book is private: it shows that the rows were used, and when.
    """

    source: Path = option(
        help="Feature file, the word digits, or a budget book; - reads its path from stdin.", argument="FEATURES|BOOK|-"
    )
    book: Path | None = option(None, "Budget book of the feature file.", unset="as for `linprobe train`")
    delta: float | None = option(None, "Delta of the figures.", unset="the smallest of the runs", above=0, below=1)
    cap: float | None = option(
        None,
        "Set a cap on epsilon.",
        after="; it holds for all runs together, for every unit of privacy, at --delta",
        above=0,
        most=MAX_CAP,
        flags=("--set-cap",),
        asked="set_cap",
        metavar="E",
    )
    raise_cap: bool = option(False, "Allow --set-cap to raise a cap under which runs were made. The book keeps both.")


class DoctorRequest(JsonOption, Request, command="doctor", examples=("doctor", "doctor --json")):
    """Show what this installation has, and what is missing for which command.

    The command downloads nothing and reads no rows. The exit status is 1 if most commands cannot run.
    """
