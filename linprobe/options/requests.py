"""The request of every command, declared once. A docstring is the help text of a command.

To add a command, declare its request here, and give the function that carries it out `linprobe.cli.command`.
`extract` and `import` declare theirs beside the command.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from linprobe.options.declaration import Request, option
from linprobe.options.shared import (
    DEFAULT_DELTA,
    MAX_EPSILON,
    MAX_SIGMA,
    MAX_STEPS,
    Accountant,
)

DEFAULT_EPOCHS = 60.0
DEFAULT_RATES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
MAX_PROCESSES = 1024
RATE_FLAGS = ("--sampling-rate", "--q")

# Groups of options that several commands share.


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """The run folder."""

    run: Path = option(help="Run folder; - reads its path from stdin.", argument="RUN|-")


@dataclass(frozen=True, kw_only=True)
class Json:
    """Whether to print JSON."""

    as_json: bool = option(False, "Print one JSON object on stdout.", flags=("--json",))


@dataclass(frozen=True, kw_only=True)
class PrivateJson:
    """Whether to print JSON with private figures."""

    as_json: bool = option(False, "Print one JSON object on stdout. Private.", flags=("--json",))


@dataclass(frozen=True, kw_only=True)
class DryRunFlag:
    """Whether to stop before the command spends or writes anything."""

    dry_run: bool = option(False, "Print what the command would read, spend and write, and how long it takes.")


@dataclass(frozen=True, kw_only=True)
class Overwrite:
    """Whether to replace files."""

    overwrite: bool = option(False, "Replace existing output files.")


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How rows are scored."""

    allow_other_features: bool = option(False, "Score rows that were extracted with other settings than the run's.")


@dataclass(frozen=True, kw_only=True)
class Calibrate:
    """The temperature of the scores."""

    calibrate: Path | None = option(
        None, "Divide the class scores by a temperature from the public rows of this file.", metavar="FILE"
    )


# The requests, in the order of `linprobe --help`.


@dataclass(frozen=True)
class EvaluateRequest(
    Json,
    Calibrate,
    Scoring,
    OfRun,
    Request,
    command="evaluate",
    examples=("evaluate runs/first", "evaluate runs/first later.h5 --json"),
):
    """Print a run's accuracy on test rows, or its macro AUROC if rows have several labels.

    Tables on stderr have balanced accuracy, AUROC, calibration error, and figures of each class with 95 %
    intervals. --json prints all of them and the confusion matrix.
    """

    features: Path | None = option(None, "Feature file.", unset="the run's", argument="[FEATURES]")


@dataclass(frozen=True)
class PredictRequest(
    Calibrate,
    Scoring,
    OfRun,
    Request,
    command="predict",
    examples=("predict runs/first new.h5 > labels.csv", "predict runs/first new.h5 --probabilities"),
):
    """Print id, label and score of every row as CSV; the score is the label's probability.

    If rows have several labels, there is a column for each label: 1 where its probability is above one half, else 0.
    """

    features: Path = option(
        help="Feature file or .npy array of rows; - reads its path from stdin.", argument="FEATURES|-"
    )
    group: str | None = option(None, "Group of the feature file: rows, test, train, public.", unset="rows, else test")
    probabilities: bool = option(False, "Add a column for every class.")


@dataclass(frozen=True)
class InfoRequest(Json, Request, command="info", examples=("info features.h5", "info runs/first --json")):
    """Describe a feature file or a run folder."""

    path: Path = option(help="Feature file or run folder; - reads its path from stdin.", argument="FILE_OR_RUN|-")


@dataclass(frozen=True)
class MethodsRequest(Request, command="methods", examples=("methods", "methods --json")):
    """List every method with its paper and the data it needs."""

    as_json: bool = option(False, "Print a JSON list on stdout.", flags=("--json",))


@dataclass(frozen=True)
class PlanRequest(Overwrite, Json, Request, command="plan", examples=("plan --n 50000 --eps 3",)):
    """Find a sampling rate, noise and steps for a budget.

    Compares the noise that each sampling rate needs. The command reads no data.

    stdout carries the recommended rate, noise multiplier and number of steps on one line, separated by tabs; with
    --json, every row.
    """

    epsilon: float = option(help="Target epsilon.", above=0, most=MAX_EPSILON, flags=("--eps",))
    n_rows: int = option(help="Number of private rows.", least=1, flags=("--n",))
    delta: float = option(DEFAULT_DELTA, "Target delta, below 1/N.")
    epochs: float = option(DEFAULT_EPOCHS, "Average number of times a row is sampled.", above=0)
    sampling_rates: Sequence[float] = option(
        DEFAULT_RATES,
        "Sampling rates.",
        above=0,
        most=1,
        commas=True,
        asked="q",
        metavar="Q,Q,...",
    )
    accountant: Accountant = option(
        "auto", "Privacy accountant", after="; auto is gdp for q = 1, else pld; gdp needs q = 1"
    )
    plot: Path | None = option(None, "Draw noise against sampling rate, .png or .svg.")


@dataclass(frozen=True)
class AccountRequest(
    Json,
    Request,
    command="account",
    examples=(
        "account --sigma 20 --steps 50 --q 1 --delta 1e-5",
        "account --sigma 1.5 --steps 1000 --q 0.01 --delta 1e-5",
    ),
):
    """Compute the epsilon of a given noise, sampling rate and steps.

    Every accountant that applies computes it. The command reads no data.

    stdout carries one line per accountant: its name, a tab, its epsilon, rounded up. The first is the one that
    `train` reports. mu of Gaussian DP and rho of zCDP are on stderr.
    """

    sampling_rate: float = option(help="Sampling rate.", above=0, most=1, flags=RATE_FLAGS)
    noise_multiplier: float = option(help="Noise multiplier.", above=0, most=MAX_SIGMA, asked="sigma")
    steps: int = option(help="Number of steps, each one release.", least=1, most=MAX_STEPS)
    delta: float = option(help="Delta.", above=0, below=1)


@dataclass(frozen=True)
class DoctorRequest(Json, Request, command="doctor", examples=("doctor", "doctor --json")):
    """Show what this installation has, and what is missing for which command.

    It downloads nothing and reads no rows. The exit status is 1 if something keeps most commands from running.
    """
