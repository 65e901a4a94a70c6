"""Every option of `linprobe train` and every argument of an estimator, declared once.

The class of a method states which options the method takes. `linprobe.options.declaration` derives checks, hints and
help texts. This module imports nothing heavy, as `linprobe --help` imports it.
"""

from pathlib import Path
from typing import Any, Literal

from linprobe.errors import ParameterError, UsageError
from linprobe.options.declaration import METHOD_OPTIONS as METHOD_OPTIONS
from linprobe.options.declaration import Declaration, Options, declared, option, refuse_idle

MAX_EPSILON = 100.0
MAX_CAP = 1e6
MAX_SIGMA = 1e9
MAX_STEPS = 1_000_000
DEFAULT_DELTA = 1e-5
DEFAULT_STEPS = 50
CENTRED_STEPS = 400  # around a private mean; around a public one, if classes have many rows
MOMENTUM_STEPS = 100  # around a private mean, where classes have many rows and a step is large
STEEPEST = 10_000.0  # g s from which steps on centred rows overshoot, if as stable as `CENTRED_STEPS`
MANY_ROWS = 1000
ENOUGH_ROWS = 250  # rows per class from which 50 plain steps around a public mean overshoot
LARGE_STEP = 5e8  # multiply-adds: rows x features x classes
LARGE_STEP_WITH_MOMENTUM = 1e8
SAMPLED_STEPS = 200
NEWTON_STEPS = 8
SAMPLING_RATE = 0.15
LEAST_RATE = 1e-12  # its square is far above the least float64

UNITS = RECORD, OWNER = "record", "owner"  # what a guarantee protects
GROUPS = ("Privacy", "Data", "Speed", "Output")  # headings of the help of training, in order; then Method

AccountantName = Literal["auto", "gdp", "pld", "rdp"]
Condition = Literal["auto", "none", "mean"]
Centre = Literal["auto", "none", "public"]
Init = Literal["auto", "zero", "public", "text", "run"]
Loss = Literal["softmax", "squared", "sigmoid"]  # sigmoid: multilabel rows
Output = Literal["last", "average", "weighted", "ema", "vote"]
VOTE = "vote"
Precision = Literal["float32", "bfloat16", "float16"]
Reference = Literal["init", "zero"]
Wanted = Literal["auto", "yes", "no"]

CLASS_COUNTS_HELP = "Release a noisy number of private rows of each class"
CLASS_COUNTS_WORDS = "; auto: yes for class weight balanced, else no; costs 5 % of mu^2, so steps get 2.6 % more noise"

# Options of `linprobe train` that are not arguments of estimators.


class Choice(Declaration):
    """The method and the rows."""

    method: str | None = option(
        None,
        "Training method; `linprobe methods` lists them.",
        unset="chosen by whether there are public rows or text weights",
        flags=("--method", "-m"),
        group="Method",
    )
    features: Path | None = option(
        None,
        "Feature file, or 'shards/*.h5' for several as one data set; -: path from stdin. Without it: the "
        "built-in digits.",
        argument="[FEATURES|-]",
        group="Data",
    )


class RunOptions(Declaration):
    out: Path | None = option(None, "Run folder.", unset="runs/METHOD-epsE-TIME", group="Output")
    public: Path | None = option(
        None,
        "Feature file of public rows from the same backbone, in place of the group public of FEATURES, and beside any "
        "public shots.",
        group="Data",
    )
    unlabelled: Path | None = option(
        None,
        "Feature file of public rows without labels, from the same backbone. Their mean can centre the private "
        "rows, and they refine the weights after training; noisy counts of similar private rows and of correct "
        "predictions decide whether they are used, and how strongly.",
        metavar="FILE",
        group="Data",
    )
    public_shots: int | None = option(
        None,
        "Public rows per class, taken out of the training rows; with --unit owner, whole people.",
        unset="0; 2 for the built-in digits without a file",
        group="Data",
    )
    split_seed: int = option(0, "Seed that chooses the public shots.", group="Data")
    unit: Literal["record", "owner"] | None = option(
        None,
        "Unit of privacy",
        after="; owner: a person, with all rows of that person",
        unset="record; required if rows have owners",
        group="Privacy",
    )
    per_owner_rows: int | None = option(
        None, "With --unit owner: largest number of rows used per person.", unset="all", least=1, group="Data"
    )
    class_weight: Any = option(  # text, or a dictionary in Python
        None,
        "Public weights of classes: LABEL=WEIGHT,..., a JSON file, or public for 1 / number of public rows; or "
        "balanced: scores for equal classes, from noisy class counts.",
        from_text=lambda _, text: text,
        unset="1 for every class",
        metavar="LABEL=W,...",
        group="Data",
    )
    class_counts: Wanted = option("auto", CLASS_COUNTS_HELP, after=CLASS_COUNTS_WORDS, group="Privacy")
    precision: Precision = option(
        "float32", "Type of rows in memory", after="; bfloat16 and float16 halve the memory", group="Data"
    )
    device: str = option("cpu", "cpu, cuda or cuda:N; on a GPU: {methods_on_gpu}.", group="Speed")
    checkpoint_every: float | None = option(
        None,
        "Seconds between checkpoints; 0 writes one after every step.",
        unset="60",
        least=0,
        unit=" seconds",
        flags=("--checkpoint",),
        metavar="SECONDS",
        group="Speed",
    )
    resume: bool = option(
        False,
        "Resume the unfinished run in --out from its checkpoint, or begin one.",
        flags=("--resume",),
        group="Speed",
    )
    preset: Literal["default", "paper", "paper-clip"] = option(
        "default", "Settings", after=" (the AdaMix paper's, for features of ResNet-50 or CLIP)", group="Method"
    )
    test_epsilon: float | None = option(
        None,
        "Part of --eps to spend on a noisy accuracy and AUROC on private test rows.",
        unset="no release",
        above=0,
        most=MAX_EPSILON,
        group="Privacy",
    )
    cap: float | None = option(
        None,
        "Refuse the run if all runs on these rows together would cost more than this epsilon, at the unit and delta "
        "of this run.",
        unset="the cap in the budget book, if it has one",
        above=0,
        most=MAX_CAP,
        group="Privacy",
    )
    book: Path | None = option(
        None,
        "Budget book: the ledger of all runs on the training rows.",
        unset="the book of these training rows, in $XDG_STATE_HOME/linprobe or ~/.local/state/linprobe",
        group="Privacy",
    )
    sign: Path | None = option(None, "Ed25519 private key (PEM) that signs the run.", metavar="KEY", group="Output")


class Confirmation(Declaration):
    insecure_seed: bool = option(
        False, "Confirm that --noise-seed voids the guarantee.", flags=("--insecure-seed",), group="Privacy"
    )


# Arguments that the estimators of several methods share.


class Target(Declaration):
    epsilon: float = option(
        help=f"Target epsilon, above 0, at most {MAX_EPSILON:g}.",
        above=0,
        most=MAX_EPSILON,
        flags=("--eps", "--epsilon"),
        group="Privacy",
    )
    delta: float = option(DEFAULT_DELTA, "Target delta, below 1 / number of private rows or people.", group="Privacy")


class Classes(Declaration):
    """The classes, which must not come from private labels."""

    classes: Any = option(None, "List of classes.", unset="the classes of the public labels")
    class_weight: Any = option(
        None,
        "Public weights by class, or 'public' for one over the number of public rows; or 'balanced', scores for equal "
        "classes from noisy class counts.",
        unset="1 for every class",
    )
    class_counts: Wanted = option("auto", CLASS_COUNTS_HELP, after=CLASS_COUNTS_WORDS)


def _steps(unset: str) -> Any:
    return option(None, "Number of steps; the noise follows.", unset=unset, asked="steps", group="Privacy")


class Noise(Declaration):
    noise_multiplier: float | None = option(
        None, "Noise multiplier; the number of steps follows.", asked="sigma", group="Privacy"
    )
    n_steps: int | None = _steps(f"{DEFAULT_STEPS}, or up to {CENTRED_STEPS} for centred rows")


class NewtonSteps(Declaration):
    n_steps: int | None = _steps(str(NEWTON_STEPS))


class Samples(Declaration):
    """Poisson samples instead of all rows."""

    n_steps: int | None = _steps(str(SAMPLED_STEPS))
    sampling_rate: float = option(
        SAMPLING_RATE,
        "Probability that a step samples a row.",
        least=LEAST_RATE,
        most=1,
        flags=("--sampling-rate", "--q"),
        group="Privacy",
    )
    accountant: AccountantName = option("auto", "Privacy accountant", group="Privacy")


class PerRecord(Declaration):
    per_record: bool = option(True, "Compute each record's own privacy loss.", shown="on", group="Privacy")


class Centring(Declaration):
    centre: Centre = option("auto", "Subtract the public mean", group="Data")


class Conditioning(Declaration):
    condition: Condition = option(
        "auto",
        "Without public rows, subtract a noisy private mean",
        after="; auto: mean if its noise is small; the mean gets 5 to 25 % of epsilon",
        group="Data",
    )


class Intercept(Declaration):
    intercept: float | None = option(
        None,
        "Value of a constant bias column; 0 for none.",
        unset="0 for single-label rows centred on a public mean, unless training starts from text or a class has twice "
        "as many public rows as another; otherwise 2 / sqrt(features), rounded to a power of 2",
        least=0,
        most=10,
        group="Data",
    )


class Seed(Declaration):
    insecure_seed: int | None = option(None, "Seed for the noise: NOT PRIVATE.", asked="noise_seed", group="Privacy")


TRAIN = (Choice, Target, Noise, Samples, PerRecord, RunOptions, Centring, Conditioning, Intercept, Seed, Confirmation)
PRIVATE = (Target, Classes, Noise, PerRecord, Seed)
ONE_STEP = (Target, Classes, PerRecord, Seed)  # one release in place of steps; the budget alone fixes its noise
ROWS = (Centring, Intercept)
COLD_ROWS = (Centring, Conditioning, Intercept)

# Options that several methods share.


class WeightDecay(Declaration):
    """lambda, on the sum of losses."""

    weight_decay: float = option(1e-2, "L2 penalty on the summed loss.", above=0, most=1e9)


class TextScale(Declaration):
    """beta, the scale of text weights."""

    text_scale: float | None = option(
        None,
        "Scale of text weights.",
        above=0,
        most=1e6,
        unset="100 for zero-shot; otherwise at most 100, smaller for a larger budget or more private rows per class",
    )


class Start(Declaration):
    """W_1, and the point that weight decay pulls towards."""

    init: Init = option(
        "auto", "Initial weights", also=("run", "a run folder"), after=", whose releases then count towards epsilon"
    )
    reference: Reference = option("init", "What weight decay pulls towards")


class ClipNorm(Declaration):
    clip_norm: float = option(0.5, "Clip norm, the L2 bound on one record's contribution.", above=1e-9, most=100)


class ClipFloor(Declaration):
    """Lower bound on a clip norm from public gradients. Step sizes are proportional to its inverse."""

    clip_floor: float = option(0.02, "Lower bound of the clip norm.", above=1e-9, most=1e6)


class Steps(WeightDecay):
    """Step size, and the output as a function of the iterates."""

    learning_rate: float | None = option(
        None, "Constant step size on summed gradients.", unset="from --score-noise", above=0, most=1e9
    )
    score_noise: float | None = option(
        None,
        "Noise that the whole run adds to a class score, in nats.",
        unset="from the budget and the numbers of rows and classes",
        above=0,
        most=1e6,
    )
    output: Output = option("average", "Released weights")
    ensemble: int | None = option(
        None, "Number of last iterates to average, or to let vote.", unset="a tenth of the steps", above=0, most=1e6
    )

    def check_together(self) -> None:
        """UsageError for both a score noise and a learning rate, which sets the step size, or an unused ensemble."""
        if self.learning_rate is not None:
            refuse_idle(self, ("score_noise",), f"learning-rate {self.learning_rate:g}")
        if self.output in ("last", "weighted"):
            refuse_idle(self, ("ensemble",), f"output {self.output}")


class Variant(Declaration):
    variant: Literal["practical", "theory"] = option("practical", "Version of the algorithm", on_gpu=("practical",))


class Radius(Declaration):
    radius: float | None = option(
        None,
        "Largest distance from the reference weights; for adamix, variant theory only.",
        unset="no limit",
        above=0,
        most=1e8,
    )


class NoiseRidge(Declaration):
    """Ridge that makes a noisy matrix invertible."""

    noise_ridge: float = option(
        0.15, "Constant added to the noisy covariance or Hessian, in units of its noise.", least=1e-3, most=1e6
    )


class NoisyCovariance(NoiseRidge):
    covariance_epsilon_share: float = option(0.65, "Share of epsilon spent on the covariance.", above=0, most=0.99)


# The methods, in the order of `linprobe methods`.


class NoisyGDOptions(
    Radius, TextScale, Steps, ClipNorm, Start, Options, method="noisy-gd", takes=(*PRIVATE, *COLD_ROWS), on_gpu="steps"
):
    schedule: Literal["constant", "theory"] = option("constant", "Schedule of step sizes")

    def check_together(self) -> None:
        super().check_together()
        if self.schedule == "theory":
            refuse_idle(self, ("learning_rate", "score_noise"), "schedule theory")


class AdaMixOptions(
    Radius,
    Variant,
    TextScale,
    Steps,
    ClipFloor,
    Start,
    Options,
    method="adamix",
    takes=(*PRIVATE, *ROWS),
    on_gpu="steps",
):
    """Options of `adamix`. Variant `theory` has only the options `radius` and `strong_convexity`."""

    clip_quantile: float = option(0.9, "Quantile of the public gradient norms used as the clip norm.", above=0, most=1)
    subspace: Literal["none", "gradient", "features"] = option("none", "Project private gradients on a subspace")
    subspace_dim: int | None = option(
        None, "Dimension of the subspace.", unset="classes - 1; for multilabel rows, classes", above=0, most=1e9
    )
    strong_convexity: float = option(
        0.5, "Strong convexity of the public loss, variant theory only.", above=0, most=1e9
    )

    def check_together(self) -> None:
        super().check_together()
        if self.subspace == "none":
            refuse_idle(self, ("subspace_dim",), "subspace none")
        theory = ("radius", "strong_convexity")
        practical = [name for name in declared(type(self)) if name not in ("variant", *theory)]
        refuse_idle(self, practical if self.variant == "theory" else theory, f"variant {self.variant}")


class NGDOptions(TextScale, Steps, ClipNorm, Start, Options, method="ngd", takes=(*PRIVATE, *ROWS), on_gpu="steps"):
    """Options of `ngd`."""


class PPGDOptions(Steps, ClipFloor, Options, method="ppgd", takes=(*PRIVATE, *ROWS), on_gpu="sums"):
    """Options of `ppgd`. `weight_decay` is lambda of both stages."""


class DescentOptions(TextScale, Steps, ClipNorm, Start, Options):
    """Options of methods on samples. `momentum` scales directions by 1 - beta; `adam` makes them unit-free."""

    optimizer: Literal["sgd", "momentum", "adam"] = option("momentum", "Optimizer")
    momentum: float = option(0.9, "Momentum coefficient.", above=0, most=0.999)
    loss: Literal["softmax", "squared"] | None = option(
        None, "Loss of rows with one class each", unset="softmax; sigmoid for multilabel rows"
    )

    def check_together(self) -> None:
        super().check_together()
        if self.optimizer != "momentum":
            refuse_idle(self, ("momentum",), f"optimizer {self.optimizer}")


class DPSGDOptions(DescentOptions, method="dp-sgd", takes=(*PRIVATE, Samples, *COLD_ROWS), on_gpu="sums"):
    """Options of `dp-sgd`."""


class DPSGDFOptions(Variant, DescentOptions, method="dpsgd-f", takes=(*PRIVATE, Samples)):
    clip_norm: float = 0.1
    centre: Literal["auto", "private", "public"] = option("auto", "Mean to subtract from rows")
    feature_epsilon_share: float | None = option(
        None, "Share of epsilon spent on the private mean.", unset="0.15", above=0, most=0.98
    )
    bias_scale: float = option(0.1, "Value of the bias column.", above=0, most=10)

    def check_together(self) -> None:
        super().check_together()
        if self.variant == "theory":
            refuse_idle(self, ("centre", "feature_epsilon_share", "bias_scale", "clip_norm"), "variant theory")
        if self.centre == "public":
            refuse_idle(self, ("feature_epsilon_share",), "centre public")


class MirrorDescentOptions(DescentOptions, method="mirror-descent", takes=(*PRIVATE, Samples, *ROWS), on_gpu="sums"):
    update: Literal["first-order", "exact"] = option("first-order", "Update rule")
    alpha: float | None = option(None, "Constant weight of private gradients.", unset="cosine", above=0, most=1)
    horizon: int | None = option(None, "K of the cosine schedule.", unset="4 times the steps", above=0, most=1e9)
    ridge: float = option(1.0, "Ridge of the mirror map, update exact only.", least=1e-6, most=1e9)
    extra_clip: float | None = option(None, "Norm bound of the noised mean gradient.", unset="none", above=0, most=1e9)

    def check_together(self) -> None:
        super().check_together()
        exact = self.update == "exact"
        refuse_idle(self, ("alpha", "horizon") if exact else ("ridge",), f"update {self.update}")
        if exact and self.optimizer == "adam":
            raise ParameterError("optimizer is 'adam' with update exact; allowed: sgd, momentum")
        if self.alpha is not None and self.horizon is not None:
            raise ParameterError(f"alpha is {self.alpha} and horizon {self.horizon}; allowed: one of the two")


class DopeSGDOptions(DescentOptions, method="dope-sgd", takes=(*PRIVATE, Samples, *ROWS), on_gpu="sums"):
    """Options of `dope-sgd`, whose `clip_norm` bounds the distance of a gradient from the origin."""

    origin: Literal["public", "history"] = option(
        "public", "Point around which gradients are clipped", after="; history: the mean of released gradients"
    )
    origin_norm: float | None = option(None, "Norm bound of the origin.", unset="no bound", above=0, most=1e9)
    public_batch: int | None = option(None, "Public rows per step.", unset="all", above=0, most=1e9)
    augment_public: int = option(0, "Number of public rows to draw from fitted Gaussians.", least=0, most=1e9)
    extended: float = option(
        0.0, "Share of the public rows that are sampled and clipped like private rows.", least=0, most=1, on_gpu=(0.0,)
    )

    def check_together(self) -> None:
        super().check_together()
        if self.origin == "history":
            refuse_idle(self, ("public_batch",), "origin history")
            if self.optimizer == "sgd":
                raise UsageError(
                    "origin history is a mean of gradients, which sgd does not have; give --optimizer momentum or adam"
                )


class AdaDPSOptions(DescentOptions, method="adadps", takes=(*PRIVATE, Samples, *ROWS)):
    """Options of `adadps`, whose `clip_norm` bounds a scaled gradient."""

    scale_floor: float = option(1.0, "Constant added to the scale.", least=1e-3, most=1e6)


class DPLSOptions(NoisyCovariance, WeightDecay, Options, method="dp-ls", takes=(*ONE_STEP, *ROWS)):
    """Options of `dp-ls`."""


class DPFCOptions(NoisyCovariance, TextScale, Steps, ClipNorm, Start, Options, method="dp-fc", takes=(*PRIVATE, *ROWS)):
    """Options of `dp-fc`. `score_noise` is in the scores of rows like the private ones."""

    covariance_epsilon_share: float = 0.2
    noise_ridge: float = 1.0


class DPNewtonOptions(
    NoiseRidge,
    WeightDecay,
    TextScale,
    ClipNorm,
    Start,
    Options,
    method="dp-newton",
    takes=(*PRIVATE, NewtonSteps, *ROWS),
):
    """Options of `dp-newton`. `clip_norm` bounds a record's gradient and Hessians together."""

    clip_norm: float = 1.0
    noise_ridge: float = 0.3
    hessian_share: float = option(0.1, "Largest share of the squared clip norm for the Hessians.", above=0, most=0.99)


class PrototypesOptions(Options, method="prototypes", takes=(*ONE_STEP, *ROWS), on_gpu="sums"):
    """Options of `prototypes`."""


class FullyPrivateOptions(
    Steps, ClipNorm, Options, method="fully-private", takes=(*PRIVATE, Conditioning, Intercept), on_gpu="steps"
):
    """Options of `fully-private`."""


class OnlyPublicOptions(WeightDecay, Options, method="only-public", takes=(Classes, *ROWS)):
    init: Literal["auto", "public"] = option("auto", "Weights that fit the public rows: near text weights, or near 0")


class ZeroShotOptions(TextScale, Options, method="zero-shot", takes=(Classes,)):
    """Options of `zero-shot`."""


class NonPrivateOptions(WeightDecay, Options, method="non-private", takes=(Classes, *ROWS)):
    """Options of `non-private`."""
