"""The request of every command: its arguments, flags, help texts and examples, declared once.

`linprobe.cli` makes the command line of a class with `command=...`; the functions of the commands take its objects.
`train` and `tune` also have the options of `TRAIN` and of all methods. To add a command, declare its class here and
its function in `linprobe/cli/`.

This module imports nothing heavy, as `linprobe --help` imports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from linprobe.options.declaration import Request, option
from linprobe.options.shared import (
    DEFAULT_DELTA,
    DEFAULT_STEPS,
    MAX_EPSILON,
    NEWTON_STEPS,
    OUTPUT,
    SAMPLED_STEPS,
    SAMPLING_RATE,
    SPEED,
    Accountant,
    Unit,
)

IMAGES, NETWORK = "Images", "Network"  # panels
PRIVATE_TEST = "Test rows are private: accuracy on them is released with noise only."
RUNS_ON_HOST, RUNS_ON_GPU = 12, 16  # least number of runs of an audit: 2 for each path

# Arguments and flags that several commands share.


@dataclass(frozen=True, kw_only=True)
class OfRun(Request):
    """A run folder."""

    run: Path = option(help="Run folder; - reads its path from stdin.", argument="RUN|-", piped=True)


@dataclass(frozen=True, kw_only=True)
class Json(Request):
    """JSON on stdout."""

    as_json: bool = option(False, "Print one JSON object on stdout.", flags=("--json",), group=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class PrivateJson(Request):
    """Private JSON on stdout."""

    as_json: bool = option(False, "Print one JSON object on stdout. Private.", flags=("--json",), group=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class Overwrite(Request):
    """Whether to replace files."""

    overwrite: bool = option(False, "Replace existing output files.", group=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class WithDryRun(Request):
    """What would happen, without doing it."""

    dry_run: bool = option(
        False, "Print what the command would read, spend and write, and how long it takes.", group=OUTPUT
    )


@dataclass(frozen=True, kw_only=True)
class Calibrate(Request):
    """A temperature."""

    calibrate: Path | None = option(
        None, "Divide the class scores by a temperature from the public rows of this feature file.", metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class ScoredRows(Calibrate):
    """Rows that a run scores."""

    allow_other: bool = option(
        False,
        "Score the rows even if they were not extracted like the rows of the run.",
        flags=("--allow-other-features",),
    )


@dataclass(frozen=True, kw_only=True)
class TrainingFlags(WithDryRun, Json):
    """The options of `TRAIN` and of all methods, but for `left_out`.

    Attributes:
        given: their values by parameter; options of methods, if any was given, under `options`.
    """

    left_out: ClassVar[tuple[str, ...]] = ()
    given: Mapping[str, Any] = option(hidden=True)


# The commands, in the order of `linprobe --help`.


@dataclass(frozen=True, kw_only=True)
class ExtractFlags(
    WithDryRun,
    Json,
    Overwrite,
    command="extract",
    examples=("extract photos/ --backbone scattering --out photos.h5", "extract new/ --like runs/first --out new.h5"),
):
    """Turn images into a feature file and print its path.

    A frozen network computes the features. Run the same command again to resume an interrupted run.
    """

    source: str = option(
        help="Folder of train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE; .tar; arrays; data set name.",
        argument="SOURCE",
    )
    backbone: str | None = option(
        None,
        "resnet50, wide-resnet50-2, clip:MODEL/PRETRAINED, wrn-16-4 (-40-4, -28-10), timm:NAME, pixels, scattering.",
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
    out: Path | None = option(None, "Feature file to write.", unset="features/SOURCE-BACKBONE.h5", group=OUTPUT)
    classes: Path | None = option(None, "File of class names in label order, one per line.", group=IMAGES)
    test_fraction: float | None = option(
        None, "Share of the images to test on, if SOURCE has no test group.", group=IMAGES
    )
    private_test: bool = option(False, PRIVATE_TEST, group=IMAGES)
    owners: Path | None = option(
        None, "CSV with the columns id and owner: the person each image belongs to.", group=IMAGES
    )
    owner_regex: str | None = option(
        None, "Regular expression; its first group in an image's id is the owner.", group=IMAGES
    )
    public: Path | None = option(None, "Folder of public images, CLASS/IMAGE.", group=IMAGES)
    augment_views: int = option(0, "Augmented rows added for each public image.", group=IMAGES)
    root: Path = option(Path("data"), "Folder of the data set that SOURCE names.", group=IMAGES)
    download: bool = option(False, "Download the data set that SOURCE names.", group=IMAGES)
    on_error: str = option("fail", "What to do about unreadable images: fail, skip.", group=IMAGES)
    weights: str | None = option(
        None, "Weights: a name (IMAGENET1K_V1) or a .pt, .pth or .safetensors file.", group=NETWORK
    )
    random_weights: bool = option(False, "Random weights, for tests.", group=NETWORK)
    backbone_arg: tuple[str, ...] = option(
        (), "Argument of the network's constructor; repeat for more.", metavar="KEY=VALUE", group=NETWORK
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
    mean: tuple[float, ...] | None = option(
        None,
        "Mean to subtract from values in [0, 1]: a number, or one per channel.",
        metavar="M|R,G,B",
        commas=True,
        example="0.5,0.5,0.5",
        group=NETWORK,
    )
    std: tuple[float, ...] | None = option(
        None,
        "Standard deviation to divide by: a number, or one per channel.",
        metavar="S|R,G,B",
        commas=True,
        example="0.5,0.5,0.5",
        group=NETWORK,
    )
    interpolation: str | None = option(None, "nearest, bilinear, bicubic, lanczos.", group=NETWORK)
    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps.", group=SPEED)
    precision: str = option(
        "auto",
        "auto (bfloat16 on CUDA, else float32; scattering float32), float32, bfloat16, float16.",
        group=SPEED,
    )
    batch_size: str = option(
        "auto",
        "Images per batch, or auto: 512 on CUDA, else 8 (scattering 256), halved if memory runs out.",
        group=SPEED,
    )
    workers: int | None = option(
        None,
        "Number of decoding processes.",
        unset="none on a CPU, else the cores of this process but one, at most 16",
        group=SPEED,
    )
    compile: bool = option(False, "Compile the network with torch.compile.", group=SPEED)
    dtype: str = option("float16", "Type of a feature on disk: float16, float32.", group=SPEED)
    timeout: float = option(300.0, "Seconds to wait for a batch of images.", group=SPEED)


@dataclass(frozen=True, kw_only=True)
class ImportRequest(
    WithDryRun,
    Overwrite,
    command="import",
    examples=(
        "import arrays.npz --out features.h5",
        "import train.csv test.csv --label-column species --out species.h5",
    ),
):
    """Turn arrays into a feature file and print its path."""

    sources: tuple[Path, ...] = option(
        help="One .npz or .pt; or X_train.npy, y_train.npy, ... (or .pt); or tables train.csv and test.csv (or "
        ".parquet, .arrow); or a folder of them, or of a Hugging Face data set.",
        argument="ARRAYS...",
        asked="arrays",
    )
    out: Path = option(help="Feature file to write.")
    classes: Path | None = option(None, "File of class names in label order, one per line.")
    label_column: str = option(
        "label", "Tables: column of labels; NAME,NAME,... for columns of 0 and 1, which give rows several labels."
    )
    id_column: str | None = option(None, "Tables: column of record ids.", unset="id, if there is one")
    owner_column: str | None = option(
        None,
        "Column of a table, or array NAME_train, with the person each row belongs to.",
        unset="owner, if there is one",
        metavar="NAME",
    )
    private_test: bool = option(False, PRIVATE_TEST)


@dataclass(frozen=True, kw_only=True)
class TrainFlags(
    TrainingFlags,
    command="train",
    examples=(
        "train --eps 3",
        "train features.h5 --eps 3 --dry-run",
        "train features.h5 --eps 3 --out runs/first",
        "train features.h5 --eps 3 --public-shots 0 --unit owner",
        "train --method adamix --help",
    ),
):
    """Train a probe and print the run folder.

    The guarantee is (epsilon, delta)-differential privacy under zero-out adjacency: one private record is present, or
    its place is empty; the number of places is public. With --unit owner, all private rows of one person are present,
    or none. Every run spends privacy budget. Two runs at epsilon e on the same private rows cost more than e together.
    """


@dataclass(frozen=True, kw_only=True)
class TuneFlags(
    TrainingFlags,
    command="tune",
    examples=(
        "tune features.h5 --eps 3 --shrink 0.25,0.5,1",
        "tune features.h5 --method noisy-gd --eps 3 --grid score_noise=0.3,1,3",
    ),
):
    """Train with settings chosen on the private rows, and print the run folder.

    The guarantee is (epsilon, delta)-differential privacy of the whole choice under zero-out adjacency: one private
    record, or with --unit owner one person, is present, or the place is empty. --shrink chooses by noisy counts of
    correct predictions on private rows after one run. --grid makes a secret number of runs and keeps the run with the
    best noisy count; the others leave no trace.
    """

    # a seed voids the guarantee, and a checkpoint would keep what the selection must forget
    left_out: ClassVar[tuple[str, ...]] = ("noise_seed", "insecure_seed", "checkpoint_every", "resume")
    grid: tuple[str, ...] = option(
        (),
        "Values of an option of train, or of method; repeat for more options. Every combination is a setting.",
        metavar="OPTION=V,V,...",
    )
    shrink: tuple[float, ...] = option(
        (),
        "Factors on the update of the initial weights, from 0 to 1; noisy counts choose one.",
        metavar="C,C,...",
        commas=True,
        example="0,0.5,1",
    )
    repetitions: int | None = option(
        None, "Mean number of runs for --grid, 2 or more.", unset="number of settings, at most 5"
    )


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(
    Json,
    ScoredRows,
    OfRun,
    command="evaluate",
    examples=("evaluate runs/first", "evaluate runs/first later.h5 --json"),
):
    """Print a run's accuracy on the test rows of a feature file, or with several labels a row its macro AUROC.

    Tables on stderr have balanced accuracy, AUROC, calibration error, and figures of each class with 95 % intervals.
    --json has them all, and the confusion matrix.
    """

    features: Path | None = option(None, "Feature file.", unset="the feature file of the run", argument="[FEATURES]")


@dataclass(frozen=True, kw_only=True)
class PredictRequest(
    ScoredRows,
    OfRun,
    command="predict",
    examples=("predict runs/first new.h5 > labels.csv", "predict runs/first new.h5 --probabilities"),
):
    """Print id, label and score of every row as CSV; the score is the label's probability.

    With several labels a row, a column for each label has 1 where its probability is above one half, else 0.
    """

    features: Path = option(
        help="Feature file or .npy array of rows; - reads its path from stdin.", argument="FEATURES|-", piped=True
    )
    group: str | None = option(
        None, "Group of the feature file: rows, test, train, public.", unset="rows, or test if there are no rows"
    )
    all_classes: bool = option(False, "Add a column with the probability of each class.", flags=("--probabilities",))


@dataclass(frozen=True, kw_only=True)
class PdpReportRequest(
    WithDryRun,
    Overwrite,
    PrivateJson,
    OfRun,
    command="pdp-report",
    examples=("pdp-report runs/first", "pdp-report runs/first --csv losses.csv --plot losses.png"),
):
    """Summarise each private record's own privacy loss. Private, except the noisy histogram."""

    csv: Path | None = option(None, "Write id and epsilon of every record. Private.")
    plot: Path | None = option(None, "Draw the sorted epsilons, .png or .svg. Private.")
    publish_epsilon: float | None = option(None, "Release a noisy histogram and charge this epsilon to the run.")
    sign: Path | None = option(None, "With --publish-epsilon or --recover: the key of a signed run.", metavar="KEY")
    book: Path | None = option(
        None, "With --publish-epsilon: the budget book.", unset="the budget book that lists the run"
    )
    recover: bool = option(False, "Seal a run whose publication was interrupted, with the larger epsilon.")


@dataclass(frozen=True, kw_only=True)
class AttackRequest(
    Overwrite,
    PrivateJson,
    OfRun,
    command="attack",
    examples=("attack runs/first", "attack runs/first --lira --shadows 16 --out attack.json"),
):
    """Run a membership inference attack on a run.

    The attack tells private rows from test rows by their scores; of a run with --unit owner, private people from test
    people. Its results are private.
    """

    features: Path | None = option(None, "Feature file.", unset="the feature file of the run")
    public: Path | None = option(None, "With --lira: feature file of public rows.", unset="the public rows of the run")
    plot: Path | None = option(None, "Draw the ROC curve, .png or .svg. Private.")
    out: Path | None = option(None, "Write the JSON object to a file. Private.")
    lira: bool = option(False, "Run the likelihood-ratio attack with shadow probes instead.")
    shadows: int | None = option(None, "With --lira: number of shadow probes, an even number, 4 or more.", unset="64")
    jobs: int | None = option(None, "With --lira: number of processes.", unset="one per processor, at most 8", least=1)
    resamples: int = option(1000, "Bootstrap resamples for the interval, 100 or more; 0 for no interval.")


@dataclass(frozen=True, kw_only=True)
class ReportRequest(Overwrite, OfRun, command="report", examples=("report runs/first --html report.html",)):
    """Verify a run and write an HTML page for a privacy reviewer."""

    html: Path = option(help="Page to write, .html or .htm.")
    attacks: tuple[Path, ...] = option(
        (), "JSON results of linprobe attack; repeat for more. Makes the page private.", asked="attack"
    )
    title: str | None = option(None, "Title of the page.", unset="method and run")
    owner: str | None = option(None, "Who answers for the data.", unset="a blank line to sign")


@dataclass(frozen=True, kw_only=True)
class VerifyRequest(
    Json,
    OfRun,
    command="verify",
    examples=("verify runs/first", "verify runs/first --features features.h5 --max-eps 3"),
):
    """Check that a run is private, intact, and judged alike by two accountants.

    The guarantee is under zero-out adjacency: one private record is present, or its place is empty.

    Anything else ends with exit status 4 and the reason: a seeded or non-private run, an edit, a missing file, a
    guarantee above the limits, a signature that is missing or of another key.
    """

    features: Path | None = option(None, "Feature file; also check that the run was trained on its private rows.")
    public_key: Path | None = option(
        None, "Ed25519 public key (PEM); refuse a run that it did not sign.", metavar="FILE"
    )
    max_epsilon: float | None = option(None, "Refuse a larger epsilon.", least=0, flags=("--max-eps",))
    max_delta: float | None = option(None, "Refuse a larger delta.", least=0)


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest(
    WithDryRun,
    Json,
    OfRun,
    command="release",
    examples=("release runs/first --out released", 'release runs/first --out signed --curator "A. Doe" --sign key.pem'),
):
    """Collect what may leave the building, and print the folder.

    Verifies the run first. The folder holds weights, manifest, ledger, signature, a model card and an entry for the
    registry of DP deployments. Runs that are not private are refused. A signature covers the card and the entry: to
    change these pages of a signed run, give --sign.
    """

    out: Path = option(help="Folder to make.")
    name: str | None = option(None, "Name of the model.", unset="the name of the run folder")
    curators: tuple[str, ...] = option(
        (), "Who publishes the model; repeat for more.", unset="not stated", asked="curator"
    )
    use: str | None = option(None, "Intended use.", unset="not stated")
    region: str | None = option(None, "Where the data come from, or whose law applies.", unset="not stated")
    licence: str | None = option(None, "Licence id, such as cc-by-4.0.", unset="not stated", flags=("--license",))
    public_key: Path | None = option(
        None, "Ed25519 public key (PEM); refuse a run that it did not sign.", metavar="FILE"
    )
    sign: Path | None = option(
        None,
        "Ed25519 private key (PEM) that signs the release; for a signed run, the key that signed it.",
        metavar="KEY",
    )


@dataclass(frozen=True, kw_only=True)
class ExportRequest(
    Overwrite,
    Calibrate,
    OfRun,
    command="export",
    examples=("export runs/first --to safetensors --out probe.safetensors",),
):
    """Write the probe to a file for other software, and print its path.

    Verifies the run first. The file takes raw feature rows and says what the run guarantees.
    """

    to: Literal["safetensors", "onnx", "sklearn", "torch"] = option(help="Format", metavar="FORMAT")
    out: Path = option(help="File to write.")


@dataclass(frozen=True, kw_only=True)
class InfoRequest(Json, command="info", examples=("info features.h5", "info runs/first --json")):
    """Describe a feature file or a run folder."""

    path: Path = option(
        help="Feature file or run folder; - reads its path from stdin.", argument="FILE_OR_RUN|-", piped=True
    )


@dataclass(frozen=True, kw_only=True)
class MethodsRequest(Request, command="methods", examples=("methods",)):
    """List every method with its paper and the data it needs."""

    as_json: bool = option(False, "Print a JSON list on stdout.", flags=("--json",), group=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class PlanRequest(
    Overwrite,
    Json,
    command="plan",
    examples=("plan --n 50000 --eps 3", "plan --n 50000 --eps 3 --q 0.1,1 --epochs 20"),
):
    """Find a sampling rate, noise and steps for a budget.

    Compares the noise that each sampling rate needs. The command reads no data.

    stdout carries the recommended rate, noise multiplier and number of steps on one line, separated by tabs; with
    --json, every row.
    """

    epsilon: float = option(help="Target epsilon, {allowed}.", above=0, most=MAX_EPSILON, flags=("--eps",))
    n_rows: int = option(help="Number of private rows.", least=1, flags=("--n",))
    delta: float = option(DEFAULT_DELTA, "Target delta, below 1/N.")
    epochs: float = option(60.0, "Average number of times a row is sampled.", above=0)
    sampling_rates: tuple[float, ...] = option(
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0),
        "Sampling rates, each {allowed}.",
        above=0,
        most=1,
        flags=("--q", "--sampling-rate"),
        metavar="Q,Q,...",
        commas=True,
        example="0.01,0.1,1",
    )
    accountant: Accountant = option(
        "auto", "Privacy accountant", after="; auto: gdp for q = 1, else pld; gdp: for q = 1 only"
    )
    plot: Path | None = option(None, "Draw noise against sampling rate, .png or .svg.")


@dataclass(frozen=True, kw_only=True)
class AccountRequest(
    Json,
    command="account",
    examples=(
        "account --sigma 20 --steps 50 --q 1 --delta 1e-5",
        "account --sigma 1.5 --steps 1000 --q 0.01 --delta 1e-5",
    ),
):
    """Compute the epsilon of a given noise, sampling rate and steps.

    Every accountant that applies computes it. The command reads no data.

    stdout carries one line per accountant: its name, a tab, its epsilon, rounded up. The first is the one that `train`
    reports. mu of Gaussian DP and rho of zCDP are on stderr.
    """

    sampling_rate: float = option(help="Sampling rate, {allowed}.", above=0, most=1, flags=("--q", "--sampling-rate"))
    noise_multiplier: float = option(help="Noise multiplier, {allowed}.", above=0, flags=("--sigma",))
    n_steps: int = option(help="Number of steps, each a release.", least=1, flags=("--steps",))
    delta: float = option(help="Delta, {allowed}.", above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class AuditRequest(Json, command="audit", examples=("audit --method noisy-gd --eps 3",)):
    """Measure a lower bound on epsilon with planted records.

    Trains on the built-in digits with rows in memory, streamed, and divided between two ranks, each with and without
    per-record losses. stdout carries the lower bound; exit status 4 if it is above the claim.
    """

    method: str = option(help="Training method; `linprobe methods` lists them.", flags=("--method", "-m"))
    epsilon: float = option(help="Claimed epsilon, {allowed}.", above=0, most=MAX_EPSILON, flags=("--eps",))
    delta: float = option(DEFAULT_DELTA, "Claimed delta.")
    steps: int | None = option(
        None,
        "Number of steps.",
        unset=f"{DEFAULT_STEPS}; {SAMPLED_STEPS} with Poisson sampling; {NEWTON_STEPS} dp-newton",
    )
    sampling_rate: float | None = option(
        None,
        "With Poisson sampling: probability that a row joins a step, {allowed}.",
        above=0,
        most=1,
        unset=str(SAMPLING_RATE),
        flags=("--sampling-rate", "--q"),
    )
    runs: int = option(
        100, f"Number of training runs, {{allowed}}; {RUNS_ON_GPU} or more with a GPU.", least=RUNS_ON_HOST, most=10_000
    )
    canaries: int = option(100, "Planted records per run, {allowed}.", least=10, most=1000)
    confidence: float = option(0.999, "Confidence of the lower bound, {allowed}.", least=0.5, below=1)
    unit: Unit = option("record", "What a canary is", after="; owner: a person with 3 rows")
    device: str = option("cpu", "cuda or cuda:N: audit training on that GPU too.")
    insecure_seed: int | None = option(None, "Seed of coin tosses and noise, for tests.", hidden=True)


@dataclass(frozen=True, kw_only=True)
class CompareFlags(
    WithDryRun,
    Json,
    command="compare",
    examples=("compare features.h5 --methods adamix,noisy-gd --eps 1,3,8 --out compared",),
):
    """Compare methods over several epsilons and seeds.

    Prints the folder with the tables, figures and runs.

    Every run is a release of the private rows; the line under the table gives their total cost. Choosing among runs by
    test accuracy is common in research, but it is not private.
    """

    features: Path | None = option(
        None,
        "Feature file; - reads its path from stdin; without one, the built-in digits.",
        argument="[FEATURES|-]",
        piped=True,
    )
    methods: tuple[str, ...] = option(
        ("adamix", "noisy-gd"),
        "Methods; settings follow a colon: dope-sgd:ensemble=5:steps=100; several values are tuned: "
        "adamix:score-noise=0.3/1/3, adamix:shrink=0/0.5/1.",
        metavar="M,M,...",
        commas=True,
        example="adamix,noisy-gd",
    )
    epsilons: tuple[float, ...] = option(
        (1.0, 3.0),
        "Target epsilons, each {allowed}.",
        above=0,
        most=MAX_EPSILON,
        flags=("--eps",),
        metavar="E,E,...",
        commas=True,
        example="1,3",
    )
    delta: float = option(DEFAULT_DELTA, "Target delta of each run, below 1/N_private.")
    seeds: int = option(
        5, "Runs of each method and epsilon, {allowed}; the seed chooses the public shots.", least=1, most=1000
    )
    shots: tuple[int, ...] = option(
        (),
        "Public rows per class, taken out of the training rows.",
        flags=("--public-shots",),
        metavar="K,K,...",
        commas=True,
        example="1,3",
    )
    public: tuple[str, ...] = option(
        (),
        "Feature file of public rows; repeat for more; the word none adds a comparison without public rows.",
        metavar="FILE|none",
    )
    baselines: bool = option(True, "Also train only-public and non-private.")
    attack: bool = option(False, "Also run the threshold membership attack on every run; the results are private.")
    jobs: int | None = option(
        None, "Number of processes, {allowed}.", unset="one per processor, at most 8", least=1, most=1024
    )
    out: Path | None = option(None, "Folder; an unfinished comparison in it is continued.", unset="comparisons/NAME")
    book: Path | None = option(None, "Budget book of the training rows.", unset="as for `linprobe train`")
    unit: Unit = option("record", "What every run protects", after="; owner: a person with all rows")


@dataclass(frozen=True, kw_only=True)
class BudgetRequest(
    PrivateJson,
    command="budget",
    examples=("budget features.h5", "budget features.h5 --set-cap 8 --delta 1e-5"),
):
    """Print the epsilon of all runs on a set of rows together, as their budget book has it.

    stdout carries that epsilon, rounded up. The book is private: it tells that the rows were used, and when.
    """

    source: Path = option(
        help="Feature file, the word digits, or a budget book; - reads its path from stdin.",
        argument="FEATURES|BOOK|-",
        piped=True,
    )
    delta: float | None = option(
        None, "Delta of the figures, {allowed}.", above=0, below=1, unset="the largest delta of the runs"
    )
    cap: float | None = option(
        None,
        "Set the cap of the book: epsilon of all runs together for every unit, at --delta.",
        above=0,
        most=1e6,
        flags=("--set-cap",),
        metavar="E",
    )
    book: Path | None = option(None, "Budget book of the feature file.", unset="as for `linprobe train`")


@dataclass(frozen=True, kw_only=True)
class DoctorRequest(Json, command="doctor", examples=("doctor", "doctor --json")):
    """Show what this installation has, and what is missing for which command.

    It downloads nothing and reads no rows. The exit status is 1 if something keeps most commands from running.
    """
