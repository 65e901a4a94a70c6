"""Rules that the lines of a ledger, the history and the keys about releases must keep together.

Each rule is a sentence about what linprobe writes. A run that breaks one was edited.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO
from typing import Any, NamedTuple

from linprobe.accounting.calibrate import GRADIENT
from linprobe.accounting.events import INHERITED, GaussianEvent, Releases
from linprobe.accounting.selection import SelectionEvent
from linprobe.errors import PrivacyError
from linprobe.mechanisms.correct_predictions import SENSITIVITY, TEST_ACCURACY, correct_counts_sensitivity
from linprobe.mechanisms.score_histogram import TEST_AUROC, n_histograms
from linprobe.methods import METHODS, Method
from linprobe.methods._directions import COVARIANCE
from linprobe.methods.class_counts import CLASS_COUNTS, sensitivity_of_counts
from linprobe.methods.private_mean import MEAN
from linprobe.methods.similar_rows import SAME_KIND, SIMILAR_ROWS, SimilarRows
from linprobe.options.declaration import declared
from linprobe.runs.manifest import UNIFORM, UNLABELLED_CENTRE, Manifest

HISTOGRAM, SELECTION = "histogram", "selection"
PURPOSES = {
    GRADIENT: "training steps",
    MEAN: "mean of the private rows",
    CLASS_COUNTS: "noisy numbers of private rows by class",
    SIMILAR_ROWS: "noisy number of private rows near the rows without labels",
    COVARIANCE: "covariance of the features",
    TEST_ACCURACY: "number of correct predictions on private test rows",
    TEST_AUROC: "histograms of the scores of private test rows",
    SELECTION: "noisy numbers of correct predictions on private rows, which chose a setting",
    HISTOGRAM: "published histogram of privacy losses",
    INHERITED: "released by the run it started from",
}
QUANTILES = ("median", "radius", "quantile")  # of the theory variant of dpsgd-f
STEP, CLIP_NORM = "step", "clip_norm"
OF_STEPS = {"count": "n_steps", "noise_multiplier": "noise_multiplier", "sampling_rate": "sampling_rate"}  # options
MOST_DEVIATIONS = 40  # of noise: beyond, the probability is below 1e-340
FACTS = frozenset(
    (
        *(CLIP_NORM, "learning_rate", "captured_energy", "public_loss", "ridge"),
        *("scale_spread", "origin_norm", "alpha"),
    )
)
INIT_WORDS = ("auto", "zero", "public", "text")
CENTRES = ("none", "public", "private", UNLABELLED_CENTRE)


def check_lines(content: bytes, events: Sequence[GaussianEvent]) -> None:
    """PrivacyError unless a ledger holds the lines that linprobe writes: no other key, each once, steps in order."""
    expected = [event.as_dict() for event in events]
    for number, (line, fields) in enumerate(zip(BytesIO(content), expected, strict=True), start=1):
        found = json.loads(line)
        if list(found) != list(fields) or json.dumps(found).encode() + b"\n" != line:
            raise PrivacyError(f"ledger line {number} is not as linprobe writes it; do not trust it")
        if fields["step"] != number - 1:
            raise PrivacyError(f"ledger line {number} has step {fields['step']}, not {number - 1}; do not trust it")


def check_selection_line(content: bytes, selection: SelectionEvent) -> None:
    """PrivacyError unless the ledger of a selection is the line that linprobe writes."""
    plain = not any(isinstance(figure, bool) for one in selection.releases for figure in (one.sampling_rate, one.count))
    if not plain or json.dumps(selection.as_dict()).encode() + b"\n" != content:
        raise PrivacyError("the ledger's selection is not as linprobe writes it; do not trust it")


def read_history(content: bytes, steps: int | None) -> list[dict[str, float]]:
    """The public facts of each step.

    Raises PrivacyError: other columns than linprobe writes, another number of lines, or a cell that is no number.
    """
    rows, n_steps = [], steps or 0
    try:
        text = content.decode()
        lines = list(csv.reader(StringIO(text, newline="")))
        header, body = next(iter(lines), []), lines[1:]
        if len(body) != n_steps or (body and (header[:1] != [STEP] or not FACTS.issuperset(header[1:]))):
            raise ValueError(f"{len(body)} lines and the columns {', '.join(header)[:80]}")
        if len(set(header)) != len(header) or "".join(f"{','.join(line)}\n" for line in lines) != text:
            raise ValueError("a column twice, or quotes")
        for number, line in enumerate(body, start=1):
            numbers = list(map(float, line))
            if list(map(str, numbers)) != line or not all(map(math.isfinite, numbers)):
                raise ValueError(f"{','.join(line)[:80]} in line {number}")
            rows.append(dict(zip(header, numbers, strict=True)))
            if rows[-1][STEP] != number:
                raise ValueError(f"step {line[0]} in line {number}")
    except (ValueError, csv.Error) as error:
        raise PrivacyError(
            f"history.csv has {error}; allowed: a line of public facts for each of {n_steps} steps; do not trust it"
        ) from None
    return rows


def check_sensitivities(
    manifest: Manifest, events: Sequence[GaussianEvent], history: Sequence[Mapping[str, float]]
) -> None:
    """PrivacyError if a sensitivity does not follow from the purpose of the release, or a step from the clip norm."""
    allowed, clips = _sensitivities(manifest), iter(history)
    for event in events:
        known = allowed.get(event.purpose)
        if event.purpose == GRADIENT:
            known = (next(clips, {}).get(CLIP_NORM, 1.0),)
        if known is None and not clips_by_release(manifest):
            raise PrivacyError(
                f"the ledger has a release for {event.purpose!r}, which linprobe never makes; do not trust it"
            )
        if known is not None and event.sensitivity not in known:
            raise PrivacyError(
                f"the {event.purpose} release of step {event.step} has sensitivity {event.sensitivity:g}, and the run "
                f"gives {known[0]:g}; do not trust it"
            )
    given = manifest.options.get(CLIP_NORM)
    wrong = [row[CLIP_NORM] for row in history if given is not None and row.get(CLIP_NORM, given) != given]
    if wrong and not clips_by_release(manifest):
        raise PrivacyError(f"history.csv has clip_norm {wrong[0]:g}, and option clip_norm is {given}; do not trust it")


def clips_by_release(manifest: Manifest) -> bool:
    """Whether a run is of dpsgd-f's theory variant, whose clip norm and mean depend on releases that are not kept."""
    return manifest.method == "dpsgd-f" and manifest.options.get("variant") == "theory"


def _sensitivities(manifest: Manifest) -> dict[str, tuple[float, ...]]:
    """The sensitivities that a release may have, by purpose. The steps are left out."""
    factors = len((manifest.tuning or {}).get("factors", ()))
    widths = (1, manifest.n_features, manifest.n_features + 1)  # with the column of an intercept
    known: dict[str, tuple[float, ...]] = {
        MEAN: (1.0,),
        CLASS_COUNTS: (sensitivity_of_counts(manifest.n_classes, manifest.several_labels),),
        SIMILAR_ROWS: (1.0,),
        COVARIANCE: (1.0,),
        HISTOGRAM: (1.0,),
        INHERITED: (1.0,),
        TEST_ACCURACY: (SENSITIVITY, math.sqrt(2)),
        TEST_AUROC: (math.nextafter(math.sqrt(n_histograms(manifest.n_classes)), math.inf),),
        SELECTION: (correct_counts_sensitivity(factors),) if factors else (),
    }
    if clips_by_release(manifest):
        del known[MEAN]
        known |= dict.fromkeys(QUANTILES, tuple(math.nextafter(math.sqrt(width), math.inf) for width in widths))
    return {purpose: values or (math.nan,) for purpose, values in known.items()}


def start_of(manifest: Manifest) -> str | None:
    """The folder of the run that a run started from; None if it names none."""
    init = manifest.options.get("init")
    return init if isinstance(init, str) and init not in INIT_WORDS else None


def all_releases(manifest: Manifest, selection: SelectionEvent | None) -> tuple[Releases, ...]:
    """The releases of a run; of a private selection, those of every run that it may make."""
    return (manifest.releases or ()) if selection is None else selection.releases


def check_purposes(manifest: Manifest, selection: SelectionEvent | None) -> None:
    """PrivacyError if a key needs a release that the ledger lacks, or the ledger has one that no key explains."""
    releases = all_releases(manifest, selection)
    made = {release.purpose for release in releases}
    init, tuning = manifest.options.get("init"), manifest.tuning
    rules = (
        (manifest.centre not in CENTRES, f"centre is {manifest.centre[:40]!r}; allowed: {', '.join(CENTRES)}"),
        (manifest.centre == "private" and MEAN not in made, "centre is private, and no mean was released"),
        (
            INHERITED in made and start_of(manifest) is None,
            f"init is {init!r:.60}, and the ledger inherits {made & {INHERITED} or 'nothing'}",
        ),
        ((tuning is not None) != (SELECTION in made), "tuning and a release for a selection need each other"),
        (
            (TEST_ACCURACY in made) and manifest.test_rows != "private",
            f"test_rows is {manifest.test_rows}, and noisy counts on private ones were released",
        ),
        (
            (TEST_AUROC in made) != (manifest.test_scores is not None),
            "test_scores and a release for an AUROC on test rows need each other",
        ),
        (manifest.test_scores is not None and manifest.test_counts is None, "test_scores has no test_counts"),
    )
    for broken, words in rules:
        if broken:
            raise PrivacyError(f"{words}; do not trust it")
    _check_counts(manifest, releases)
    _check_similar(manifest, releases)
    if tuning is not None:
        _check_tuning(tuning, releases, of_grid=selection is not None)


def check_method(manifest: Manifest, method: Method) -> None:
    """PrivacyError if the method does not make the releases of the ledger, or contradicts the stated public rows."""
    if manifest.selection is not None:
        _check_runs(manifest, manifest.selection.runs, manifest.tuning or {})
    elif manifest.accountant is not None:
        words = _not_made(manifest.releases or (), method, _numbers(manifest, _setting_of(manifest, {})))
        if words is not None:
            raise PrivacyError(f"the ledger has {words}; do not trust it")
    public, digest, known = manifest.n_public > 0, manifest.public_digest is not None, not method.joins_public
    rules = (
        (known and public != (manifest.public_from != "nowhere"), f"public_from is {manifest.public_from!r:.60}"),
        (known and public != digest, f"public_digest is {manifest.public_digest!r:.20}"),
        ("public" in method.needs and not public, f"method {method.name} needs public rows"),
    )
    for broken, words in rules:
        if broken:
            raise PrivacyError(f"{words}, and n_public is {manifest.n_public}; do not trust it")


def registered(name: object) -> Method:
    """The method of a run, by name. Raises PrivacyError: it is not registered, as one that others wrote may be."""
    if not isinstance(name, str) or name not in METHODS:
        raise PrivacyError(
            f"method is {name!r:.40}, which is not registered here; import the module that registers it, or ask its "
            "author to verify"
        )
    return METHODS[name]


class _Setting(NamedTuple):
    """A method, and the arguments that are stated for it, by name. The others have their defaults."""

    method: Method
    stated: Mapping[str, Any]


def _setting_of(manifest: Manifest, given: Mapping[str, Any]) -> _Setting:
    """The arguments of a run: those of a setting of a grid, then those of the manifest.

    Raises PrivacyError: a method that is not registered, or releases nothing.
    """
    method = registered(given.get("method", manifest.method))
    if not method.spends:
        raise PrivacyError(f"method {method.name} makes no releases, and the ledger has some; do not trust it")
    arguments = {key: (argument.parameter, manifest.options.get(key)) for key, argument in method.arguments.items()}
    values = {key: given.get(parameter, value) for key, (parameter, value) in arguments.items()}
    return _Setting(method, {key: value for key, value in values.items() if value is not None})


def _numbers(manifest: Manifest, setting: _Setting) -> dict[str, tuple[int, ...]]:
    """Allowed numbers of the releases before the steps, by purpose."""
    (method, stated), has_public = setting, manifest.n_public > 0
    condition = stated.get("condition", "auto") if "condition" in method.arguments else "none"
    maybe = condition == "auto" and not has_public  # where the noise of the mean is small
    options = method.options(**{name: stated[name] for name in declared(method.options) if name in stated})
    shares = method.shares(method.resolve(options, has_public))
    means = (1,) if condition == MEAN else (0, 1) if maybe else (0,)
    return {MEAN: means, **{share.purpose: (share.count,) for share in shares}}


def _not_made(releases: Sequence[Releases], method: Method, numbers: Mapping[str, tuple[int, ...]]) -> str | None:
    """The first of the releases, in words, that the method makes in another number or of all rows; None without one."""
    for purpose, allowed in numbers.items():
        made = sum(one.count for one in releases if one.purpose == purpose)
        if made not in allowed:
            return f"{made} {purpose} releases, and method {method.name} makes {' or '.join(map(str, allowed))}"
    for one in releases:
        sampled = one.purpose == INHERITED or (one.purpose == GRADIENT and method.sampling is not None)
        if one.sampling_rate < 1 and not sampled:
            return (
                f"a {one.purpose} release with sampling rate {one.sampling_rate:g}, and method {method.name} makes it "
                "of all rows"
            )
    return None


def _check_runs(manifest: Manifest, runs: Sequence[Sequence[Releases]], tuning: Mapping[str, Any]) -> None:
    """PrivacyError unless each run of a selection has a setting of the grid, and each setting and the choice a run."""
    _check_chosen(manifest, tuning)
    settings, chosen = [_setting_of(manifest, given) for given in tuning["settings"]], tuning["chosen"]
    always = {SELECTION: (1,), CLASS_COUNTS: (int(manifest.class_counts is not None),)}
    numbers = [{**_numbers(manifest, setting), **always} for setting in settings]
    unlike = [[_unlike(run, *planned) for planned in zip(settings, numbers, strict=True)] for run in runs]
    for number, words in enumerate(unlike):
        if None not in words:
            raise PrivacyError(f"run {number} of the selection has {words[chosen]}; do not trust it")
    for place in range(len(settings)):
        if all(words[place] is not None for words in unlike):
            raise PrivacyError(f"the selection has no run with setting {place} of tuning; do not trust it")
    steps = steps_of(manifest)
    own = [run for run, words in zip(runs, unlike, strict=True) if words[chosen] is None and steps in run]
    if not own:
        raise PrivacyError(f"the manifest states {steps}, which no run with the chosen setting has; do not trust it")
    if manifest.centre == "private" and all(one.purpose != MEAN for run in own for one in run):
        raise PrivacyError("centre is private, and no run with the chosen setting has a mean; do not trust it")


def _unlike(run: Sequence[Releases], setting: _Setting, numbers: Mapping[str, tuple[int, ...]]) -> str | None:
    """The first release of a run, in words, that a run with a setting does not make; None without one.

    `numbers`: of all releases but the steps.
    """
    method, stated = setting
    others = {one.purpose: (0,) for one in run if one.purpose not in (GRADIENT, *numbers)}
    words = _not_made(run, method, {**numbers, **others})
    if words is not None:
        return words
    steps = [one for one in run if one.purpose == GRADIENT]
    if len(steps) != 1:
        return f"{len(steps)} kinds of gradient releases, and method {method.name} makes 1"
    for fact, option in OF_STEPS.items():
        found = getattr(steps[0], fact)
        value = stated.get(option, found)
        if found != value:
            return f"gradient releases with {fact} {found:g}, and its setting has {value!s:.40}"
    return None


def steps_of(manifest: Manifest) -> Releases:
    """The training steps that a manifest states."""
    stated = manifest.noise_multiplier, manifest.sampling_rate, manifest.steps
    return Releases(GRADIENT, *stated)  # type: ignore[arg-type]  # not None beside an accountant


def _check_counts(manifest: Manifest, releases: Sequence[Any]) -> None:
    """PrivacyError if class counts have no release, or another noise than it, or scores are balanced without them."""
    counts, sensitivity = manifest.class_counts, sensitivity_of_counts(manifest.n_classes, manifest.several_labels)
    noise = {one.noise_multiplier * sensitivity for one in releases if one.purpose == CLASS_COUNTS}
    if (counts is not None) != bool(noise):
        raise PrivacyError("class_counts and a release for class counts need each other; do not trust it")
    if counts is not None and noise != {counts.std}:
        raise PrivacyError("class_counts has another noise than its release; do not trust it")
    if counts is not None and not all(_possible(one, counts.std, manifest) for one in counts.by_class.values()):
        raise PrivacyError(f"class_counts has a number that {manifest.n_private} units cannot have; do not trust it")
    if counts is None and manifest.class_prior == UNIFORM:
        raise PrivacyError("class_prior is uniform, without class counts; do not trust it")


def _possible(count: float, std: float, manifest: Manifest) -> bool:
    """Whether noise makes such a number of 0 to n_private units, with any probability to speak of."""
    return -MOST_DEVIATIONS * std <= count <= manifest.n_private + MOST_DEVIATIONS * std


def similar_share(manifest: Manifest) -> float | None:
    """Lower bound on the share of private units near the unlabelled rows of a run; None if it was not released."""
    refined = manifest.refined
    similar = None if refined is None else refined.similar
    return None if similar is None else SimilarRows(similar.count, similar.std).share(manifest.n_private)


def _check_similar(manifest: Manifest, releases: Sequence[Any]) -> None:
    """PrivacyError if a number of similar rows has no release, or another noise, or does not allow the centre."""
    noise, share = {one.noise_multiplier for one in releases if one.purpose == SIMILAR_ROWS}, similar_share(manifest)
    similar = None if manifest.refined is None else manifest.refined.similar
    if (similar is not None) != bool(noise):
        raise PrivacyError("refined.similar and a release for similar rows need each other; do not trust it")
    if similar is not None and noise != {similar.std}:
        raise PrivacyError("refined.similar has another noise than its release; do not trust it")
    if similar is not None and not _possible(similar.count, similar.std, manifest):
        raise PrivacyError(f"refined.similar.count is {similar.count:g} of {manifest.n_private}; do not trust it")
    if manifest.centre == UNLABELLED_CENTRE and (share is None or share < SAME_KIND):
        raise PrivacyError(f"centre is {UNLABELLED_CENTRE}, and too few rows are similar to them; do not trust it")


def _check_chosen(manifest: Manifest, tuning: Mapping[str, Any]) -> None:
    """PrivacyError unless the chosen setting of a grid was offered, and is the setting of the run."""
    settings, chosen = tuning.get("settings", ()), tuning.get("chosen")
    if not isinstance(chosen, int) or not 0 <= chosen < len(settings):
        raise PrivacyError(f"tuning chose setting {chosen} of {len(settings)}; do not trust it")
    (method, offered), (own, stated) = _setting_of(manifest, settings[chosen]), _setting_of(manifest, {})
    if method is not own:
        raise PrivacyError(f"tuning chose method {method.name}, and the run has {own.name}; do not trust it")
    for name, argument in method.arguments.items():
        value, found = (one.get(name, argument.default) for one in (offered, stated))
        if found != value:
            raise PrivacyError(f"tuning chose {name} {value!s:.40}, and the run has {found!s:.40}; do not trust it")


def _check_tuning(tuning: Mapping[str, Any], releases: Sequence[Any], *, of_grid: bool) -> None:
    """PrivacyError if a choice states other noise than its release has, or a factor or a grid that was not offered."""
    noise = {release.noise_multiplier for release in releases if release.purpose == SELECTION}
    factors, counts, std = tuning.get("factors", ()), tuning.get("counts", ()), tuning.get("std")
    if not of_grid and ("settings" in tuning or len(factors) < 2):
        raise PrivacyError("tuning is of a grid, and the ledger has no selection; do not trust it")
    agree = bool(factors) and len(counts) == len(factors)
    agree = agree and {multiplier * correct_counts_sensitivity(len(factors)) for multiplier in noise} == {std}
    if not agree or tuning.get("shrink") != factors[max(range(len(counts)), key=counts.__getitem__)]:
        raise PrivacyError("tuning does not follow from the release for the selection; do not trust it")
