"""Every option of `linprobe train` and every argument of an estimator, declared once.

A declaration states the name, type and default of an option, its range or words, its help text, and which of its values
work on a GPU. The class of a method states which options the method takes. `linprobe.options.declaration` derives the
checks, hints and help texts.

To add a method, declare a class for it below the others. Its fields are the options that no class of
`linprobe.options.shared` has. A subclass may change a default by repeating the field.

This module imports nothing heavy, as `linprobe --help` imports it.
"""

from dataclasses import dataclass
from typing import Literal

from linprobe.options.declaration import METHOD_OPTIONS as METHOD_OPTIONS
from linprobe.options.declaration import Options, option, refuse_idle
from linprobe.options.shared import CENTRED_STEPS as CENTRED_STEPS
from linprobe.options.shared import COLD_ROWS as COLD_ROWS
from linprobe.options.shared import DEFAULT_DELTA as DEFAULT_DELTA
from linprobe.options.shared import DEFAULT_STEPS as DEFAULT_STEPS
from linprobe.options.shared import GROUPS as GROUPS
from linprobe.options.shared import MANY_ROWS as MANY_ROWS
from linprobe.options.shared import MANY_ROWS_FROM_TEXT as MANY_ROWS_FROM_TEXT
from linprobe.options.shared import MAX_EPSILON as MAX_EPSILON
from linprobe.options.shared import MAX_SIGMA as MAX_SIGMA
from linprobe.options.shared import MAX_STEPS as MAX_STEPS
from linprobe.options.shared import NEWTON_STEPS as NEWTON_STEPS
from linprobe.options.shared import ONE_STEP as ONE_STEP
from linprobe.options.shared import PRIVATE as PRIVATE
from linprobe.options.shared import ROWS as ROWS
from linprobe.options.shared import SAMPLED_STEPS as SAMPLED_STEPS
from linprobe.options.shared import SAMPLING_RATE as SAMPLING_RATE
from linprobe.options.shared import TRAIN as TRAIN
from linprobe.options.shared import AccountantName as AccountantName
from linprobe.options.shared import Budget as Budget
from linprobe.options.shared import Centre as Centre
from linprobe.options.shared import Centring as Centring
from linprobe.options.shared import Choice as Choice
from linprobe.options.shared import Classes as Classes
from linprobe.options.shared import ClipFloor as ClipFloor
from linprobe.options.shared import ClipNorm as ClipNorm
from linprobe.options.shared import Condition as Condition
from linprobe.options.shared import Conditioning as Conditioning
from linprobe.options.shared import Confirmation as Confirmation
from linprobe.options.shared import Init as Init
from linprobe.options.shared import Intercept as Intercept
from linprobe.options.shared import Loss as Loss
from linprobe.options.shared import Noise as Noise
from linprobe.options.shared import NoiseRidge as NoiseRidge
from linprobe.options.shared import NoisyCovariance as NoisyCovariance
from linprobe.options.shared import Output as Output
from linprobe.options.shared import PerRecord as PerRecord
from linprobe.options.shared import Precision as Precision
from linprobe.options.shared import Radius as Radius
from linprobe.options.shared import Reference as Reference
from linprobe.options.shared import RunOptions as RunOptions
from linprobe.options.shared import Samples as Samples
from linprobe.options.shared import Seed as Seed
from linprobe.options.shared import Start as Start
from linprobe.options.shared import Steps as Steps
from linprobe.options.shared import TextScale as TextScale
from linprobe.options.shared import Tracker as Tracker
from linprobe.options.shared import Variant as Variant
from linprobe.options.shared import WeightDecay as WeightDecay

UNITS = RECORD, OWNER = "record", "owner"  # what a guarantee protects

# The methods, in the order of `linprobe methods`.


@dataclass(frozen=True, kw_only=True)
class NoisyGDOptions(
    Radius, TextScale, Steps, ClipNorm, Start, Options, method="noisy-gd", takes=(*PRIVATE, *COLD_ROWS), on_gpu=True
):
    """Options of `noisy-gd`."""

    schedule: Literal["constant", "theory"] = option("constant", "Schedule of step sizes")


@dataclass(frozen=True, kw_only=True)
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
    on_gpu=True,
):
    """Options of `adamix`. Variant `theory` has only the options `radius` and `strong_convexity`."""

    clip_quantile: float = option(0.9, "Quantile of the public gradient norms used as the clip norm.", above=0, most=1)
    subspace: Literal["none", "gradient", "features"] = option(
        "none", "Project private gradients on a subspace", on_gpu=("none",)
    )
    subspace_dim: int | None = option(None, "Dimension of the subspace.", unset="classes - 1", above=0, most=1e9)
    strong_convexity: float = option(
        0.5, "Assumed strong convexity of the public loss, variant theory only.", above=0, most=1e9
    )

    def check_together(self) -> None:
        """UsageError for an option that does nothing beside another."""
        super().check_together()
        if self.subspace == "none":
            refuse_idle(self, ("subspace_dim",), "subspace none")


@dataclass(frozen=True, kw_only=True)
class NGDOptions(TextScale, Steps, ClipNorm, Start, Options, method="ngd", takes=(*PRIVATE, *ROWS), on_gpu=True):
    """Options of `ngd`."""


@dataclass(frozen=True, kw_only=True)
class PPGDOptions(Steps, ClipFloor, Options, method="ppgd", takes=(*PRIVATE, *ROWS)):
    """Options of `ppgd`. `weight_decay` is lambda of both stages."""


@dataclass(frozen=True, kw_only=True)
class DescentOptions(TextScale, Steps, ClipNorm, Start, Options):
    """Options of every method with Poisson sampling.

    `clip_norm` bounds gradients in the geometry of the method. `momentum` scales directions by 1 - beta.
    `learning_rate` multiplies the estimated sum of all gradients, or the unit-free direction of `adam`.
    """

    optimizer: Literal["sgd", "momentum", "adam"] = option("momentum", "Optimizer")
    momentum: float = option(0.9, "Momentum coefficient.", above=0, most=0.999)
    loss: Literal["softmax", "squared"] | None = option(
        None, "Loss of rows with one class each", unset="softmax; sigmoid for rows with several labels"
    )


@dataclass(frozen=True, kw_only=True)
class DPSGDOptions(DescentOptions, method="dp-sgd", takes=(*PRIVATE, Samples, *COLD_ROWS)):
    """Options of `dp-sgd`."""


@dataclass(frozen=True, kw_only=True)
class DPSGDFOptions(Variant, DescentOptions, method="dpsgd-f", takes=(*PRIVATE, Samples)):
    """Options of `dpsgd-f`."""

    clip_norm: float = 0.1
    centre: Literal["auto", "private", "public"] = option("auto", "Mean to subtract from rows")
    feature_epsilon_share: float | None = option(
        None, "Share of epsilon spent on the private mean.", unset="0.05", above=0, most=0.99
    )
    bias_scale: float = option(0.1, "Value of the bias column.", above=0, most=1e3)


@dataclass(frozen=True, kw_only=True)
class MirrorDescentOptions(DescentOptions, method="mirror-descent", takes=(*PRIVATE, Samples, *ROWS)):
    """Options of `mirror-descent`."""

    update: Literal["first-order", "exact"] = option("first-order", "Update rule")
    alpha: float | None = option(None, "Constant weight of private gradients.", unset="cosine", above=0, most=1)
    horizon: int | None = option(None, "K of the cosine schedule.", unset="4 times the steps", above=0, most=1e9)
    ridge: float = option(1.0, "Ridge of the mirror map, update exact only.", above=0, most=1e9)
    extra_clip: float | None = option(None, "Norm bound of the noised mean gradient.", unset="none", above=0, most=1e9)


@dataclass(frozen=True, kw_only=True)
class DopeSGDOptions(DescentOptions, method="dope-sgd", takes=(*PRIVATE, Samples, *ROWS)):
    """Options of `dope-sgd`, whose `clip_norm` bounds the distance of a gradient from the public one."""

    origin_norm: float | None = option(
        None, "Norm bound of the public gradient used as origin.", unset="any", above=0, most=1e9
    )
    public_batch: int | None = option(None, "Public rows per step.", unset="all", above=0, most=1e9)
    augment_public: int = option(0, "Number of public rows to draw from fitted Gaussians.", least=0)
    extended: float = option(
        0.0, "Share of the public rows that are sampled and clipped like private rows.", least=0, most=1
    )


@dataclass(frozen=True, kw_only=True)
class AdaDPSOptions(DescentOptions, method="adadps", takes=(*PRIVATE, Samples, *ROWS)):
    """Options of `adadps`, whose `clip_norm` bounds a scaled gradient."""

    scale_floor: float = option(1.0, "Constant added to the scale.", above=0, most=1e6)


@dataclass(frozen=True, kw_only=True)
class DPLSOptions(NoisyCovariance, WeightDecay, Options, method="dp-ls", takes=(*ONE_STEP, *ROWS)):
    """Options of `dp-ls`."""


@dataclass(frozen=True, kw_only=True)
class DPFCOptions(NoisyCovariance, TextScale, Steps, ClipNorm, Start, Options, method="dp-fc", takes=(*PRIVATE, *ROWS)):
    """Options of `dp-fc`. `score_noise` is in the scores of rows like the private ones."""

    covariance_epsilon_share: float = 0.2
    noise_ridge: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DPNewtonOptions(
    NoiseRidge, WeightDecay, TextScale, ClipNorm, Start, Options, method="dp-newton", takes=(*PRIVATE, *ROWS)
):
    """Options of `dp-newton`. `clip_norm` bounds a record's gradient and Hessians together."""

    clip_norm: float = 1.0
    noise_ridge: float = 0.3
    hessian_share: float = option(
        0.1, "Largest share of the squared clip norm that the Hessians take.", above=0, most=0.99
    )


@dataclass(frozen=True, kw_only=True)
class PrototypesOptions(Options, method="prototypes", takes=(*ONE_STEP, *ROWS)):
    """Options of `prototypes`."""


@dataclass(frozen=True, kw_only=True)
class FullyPrivateOptions(
    Steps, ClipNorm, Options, method="fully-private", takes=(*PRIVATE, Conditioning, Intercept), on_gpu=True
):
    """Options of `fully-private`."""


@dataclass(frozen=True, kw_only=True)
class OnlyPublicOptions(WeightDecay, Options, method="only-public", takes=(Classes, *ROWS)):
    """Options of `only-public`."""


@dataclass(frozen=True, kw_only=True)
class ZeroShotOptions(TextScale, Options, method="zero-shot", takes=(Classes,)):
    """Options of `zero-shot`."""


@dataclass(frozen=True, kw_only=True)
class NonPrivateOptions(WeightDecay, Options, method="non-private", takes=(Classes, *ROWS)):
    """Options of `non-private`."""
