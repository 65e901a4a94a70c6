"""Rules that the lines of a ledger, the history and the keys about releases must keep together.

Each rule is a sentence about what linprobe writes. A run that breaks one was edited. A function yields what contradicts
its rules, in words, and `refuse` raises the first of them.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from typing import Any, NamedTuple

from linprobe.accounting.calibrate import GRADIENT
from linprobe.accounting.events import HISTOGRAM, INHERITED, TEST_ACCURACY, GaussianEvent, Releases
from linprobe.accounting.selection import SelectionEvent
from linprobe.errors import PrivacyError
from linprobe.mechanisms.correct_predictions import GAIN, SENSITIVITY, USUAL_GAIN, NoisyGain, correct_counts_sensitivity
from linprobe.mechanisms.score_histogram import TEST_AUROC, n_histograms
from linprobe.methods import METHODS, Method
from linprobe.methods._directions import COVARIANCE
from linprobe.methods.class_counts import CLASS_COUNTS, sensitivity_of_counts
from linprobe.methods.private_mean import MEAN
from linprobe.methods.similar_rows import SAME_KIND, SIMILAR_ROWS, SimilarRows
from linprobe.options.declaration import declared
from linprobe.runs.manifest import UNIFORM, UNLABELLED_CENTRE, Manifest

SELECTION = "selection"
PURPOSES = {
    GRADIENT: "training steps",
    MEAN: "mean of the private rows",
    CLASS_COUNTS: "noisy numbers of private rows by class",
    SIMILAR_ROWS: "noisy number of private rows near the rows without labels",
    GAIN: "noisy number by which more private rows are labelled right after refinement",
    COVARIANCE: "covariance of the features",
    TEST_ACCURACY: "number of correct predictions on private test rows",
    TEST_AUROC: "histograms of the scores of private test rows",
    SELECTION: "noisy numbers of correct predictions on private rows, which chose a setting",
    HISTOGRAM: "published histogram of privacy losses",
    INHERITED: "released by the run it started from",
}
QUANTILES = ("median", "radius", "quantile")  # of the theory variant of dpsgd-f
EARLIER_PAPERS = {"dope-sgd": "Nasr et al. 2023 (DOPE-SGD), Algorithm 2 and equation 2"}  # in version 0.2
STEP, CLIP_NORM = "step", "clip_norm"
OF_STEPS = {"count": "n_steps", "noise_multiplier": "noise_multiplier", "sampling_rate": "sampling_rate"}  # options
MOST_DEVIATIONS = 40  # of noise: beyond, the probability is below 1e-340
FACTS = frozenset({
    CLIP_NORM, "learning_rate", "captured_energy", "public_loss", "ridge", "scale_spread", "origin_norm", "alpha",
})  # fmt: skip
INIT_WORDS = ("auto", "zero", "public", "text")
JSON_TYPES = {bool: "boolean", int: "number", float: "number", str: "string"}
CENTRES = ("none", "public", "private", UNLABELLED_CENTRE)


def refuse(contradictions: Iterable[str]) -> None:
    """PrivacyError with the first of what contradicts a run, if anything does."""
    for words in contradictions:
        raise PrivacyError(f"{words}; do not trust it")


def of_lines(content: bytes, events: Sequence[GaussianEvent]) -> Iterator[str]:
    """A ledger holds the lines that linprobe writes: no other key, each once, steps in order."""
    for number, (line, event) in enumerate(zip(BytesIO(content), events, strict=True)):
        found, fields = json.loads(line), event.as_dict()
        if list(found) != list(fields) or json.dumps(found).encode() + b"\n" != line:
            yield f"ledger line {number + 1} is not as linprobe writes it"
        if event.step != number:
            yield f"ledger line {number + 1} has step {event.step}, not {number}"


def of_selection_line(content: bytes, selection: SelectionEvent) -> Iterator[str]:
    plain = not any(isinstance(figure, bool) for one in selection.releases for figure in (one.sampling_rate, one.count))
    if not plain or json.dumps(selection.as_dict()).encode() + b"\n" != content:
        yield "the ledger's selection is not as linprobe writes it"


def read_history(content: bytes, steps: int | None) -> list[dict[str, float]]:
    """The public facts of each step. Raises PrivacyError: other columns, another number of lines, or no number."""
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


def of_sensitivities(
    manifest: Manifest, events: Sequence[GaussianEvent], history: Sequence[Mapping[str, float]]
) -> Iterator[str]:
    """A sensitivity follows from the purpose of the release, and that of a step from the clip norm."""
    allowed, clips = _sensitivities(manifest), iter(history)
    for event in events:
        known = allowed.get(event.purpose)
        if event.purpose == GRADIENT:
            known = (next(clips, {}).get(CLIP_NORM, 1.0),)
        if known is None and not clips_by_release(manifest):
            yield f"the ledger has a release for {event.purpose!r}, which linprobe never makes"
        if known is not None and event.sensitivity not in known:
            has = f"the {event.purpose} release of step {event.step} has sensitivity {event.sensitivity:g}"
            yield f"{has}, and the run gives {known[0]:g}"
    given = manifest.options.get(CLIP_NORM)
    wrong = [row[CLIP_NORM] for row in history if given is not None and row.get(CLIP_NORM, given) != given]
    if wrong and not clips_by_release(manifest):
        yield f"history.csv has clip_norm {wrong[0]:g}, and option clip_norm is {given}"


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
        GAIN: (1.0,),
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


def all_releases(manifest: Manifest) -> tuple[Releases, ...]:
    return (manifest.releases or ()) if manifest.selection is None else manifest.selection.releases


def of_purposes(manifest: Manifest) -> Iterator[str]:
    """A key that needs a release has one in the ledger, and a key explains each release."""
    releases = all_releases(manifest)
    made = {release.purpose for release in releases}
    if manifest.centre not in CENTRES:
        yield f"centre is {manifest.centre[:40]!r}; allowed: {', '.join(CENTRES)}"
    if manifest.centre == "private" and MEAN not in made:
        yield "centre is private, and no mean was released"
    if INHERITED in made and start_of(manifest) is None:
        yield f"init is {manifest.options.get('init')!r:.60}, and the ledger has {INHERITED} releases"
    if (manifest.tuning is not None) != (SELECTION in made):
        yield "tuning and a release for a selection need each other"
    if TEST_ACCURACY in made and manifest.test_rows != "private":
        yield f"test_rows is {manifest.test_rows}, and noisy counts on private ones were released"
    if (TEST_AUROC in made) != (manifest.test_scores is not None):
        yield "test_scores and a release for an AUROC on test rows need each other"
    if manifest.test_scores is not None and manifest.test_counts is None:
        yield "test_scores has no test_counts"
    yield from _of_counts(manifest, releases)
    yield from _of_refinement(manifest, releases)
    if manifest.tuning is not None:
        yield from _of_tuning(manifest.tuning, releases, of_grid=manifest.selection is not None)


def of_method(manifest: Manifest, method: Method) -> Iterator[str]:
    """The method makes the releases of the ledger, and has the public rows that it needs."""
    if manifest.selection is not None:
        yield from _of_runs(manifest, manifest.selection.runs, manifest.tuning or {})
    elif manifest.accountant is not None:
        words = _not_made(manifest.releases or (), method, _numbers(manifest, _setting_of(manifest, {})))
        if words is not None:
            yield f"the ledger has {words}"
    public, known = manifest.n_public > 0, not method.joins_public
    if known and public != (manifest.public_from != "nowhere"):
        yield f"public_from is {manifest.public_from!r:.60}, and n_public is {manifest.n_public}"
    if known and public != (manifest.public_digest is not None):
        yield f"public_digest is {manifest.public_digest!r:.20}, and n_public is {manifest.n_public}"
    if "public" in method.needs and not public:
        yield f"method {method.name} needs public rows, and n_public is {manifest.n_public}"


def registered(name: object) -> Method:
    """The method of a run, by name. Raises PrivacyError: it is not registered, as one that others wrote may be."""
    if not isinstance(name, str) or name not in METHODS:
        raise PrivacyError(
            f"method is {name!r:.40}, which is not registered here; import the module that registers it, or ask its "
            "author"
        )
    return METHODS[name]


class _Setting(NamedTuple):
    """A method, and the arguments that are stated for it, by name. The others have their defaults."""

    method: Method
    stated: Mapping[str, Any]


def _setting_of(manifest: Manifest, given: Mapping[str, Any]) -> _Setting:
    """The arguments of a setting of a grid, else of the manifest.

    Raises PrivacyError: no known method that adds noise, or an option that it lacks or of another type.
    """
    method = registered(given.get("method", manifest.method))
    if not method.spends:
        raise PrivacyError(f"method {method.name} makes no releases, and the ledger has some; do not trust it")
    unknown = given.keys() - {"method", *(argument.parameter for argument in method.arguments.values())}
    if unknown:
        raise PrivacyError(f"tuning has option {min(unknown)!r:.40}, which {method.name} lacks; do not trust it")
    values = {}
    for key, argument in method.arguments.items():
        value = given.get(argument.parameter, manifest.options.get(key))
        wanted = JSON_TYPES.get(argument.kind)
        if None not in (value, wanted) and JSON_TYPES.get(type(value)) != wanted:
            raise PrivacyError(f"option {key} is {value!r:.40}; allowed: {argument.values}; do not trust it")
        values[key] = value
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
        sampled = one.purpose == INHERITED or (one.purpose == GRADIENT and method.samples)
        if one.sampling_rate < 1 and not sampled:
            return (
                f"a {one.purpose} release with sampling rate {one.sampling_rate:g}, and method {method.name} makes it "
                "of all rows"
            )
    return None


def _of_runs(manifest: Manifest, runs: Sequence[Sequence[Releases]], tuning: Mapping[str, Any]) -> Iterator[str]:
    """Each run of a selection has a setting of the grid, and each setting and the choice a run."""
    yield from _of_chosen(manifest, tuning)
    settings, chosen = [_setting_of(manifest, given) for given in tuning["settings"]], tuning["chosen"]
    always = {SELECTION: (1,), CLASS_COUNTS: (int(manifest.class_counts is not None),)}
    numbers = [{**_numbers(manifest, setting), **always} for setting in settings]
    unlike = [[_unlike(run, *planned) for planned in zip(settings, numbers, strict=True)] for run in runs]
    for number, words in enumerate(unlike):
        if None not in words:
            yield f"run {number} of the selection has {words[chosen]}"
    for place in range(len(settings)):
        if all(words[place] is not None for words in unlike):
            yield f"the selection has no run with setting {place} of tuning"
    steps = steps_of(manifest)
    own = [run for run, words in zip(runs, unlike, strict=True) if words[chosen] is None and steps in run]
    if not own:
        yield f"the manifest states {steps}, which no run with the chosen setting has"
    if manifest.centre == "private" and all(one.purpose != MEAN for run in own for one in run):
        yield "centre is private, and no run with the chosen setting has a mean"


def _unlike(run: Sequence[Releases], setting: _Setting, numbers: Mapping[str, tuple[int, ...]]) -> str | None:
    """The first release of a run, in words, that a setting does not make, or None. `numbers`: of all but the steps."""
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
    stated = manifest.noise_multiplier, manifest.sampling_rate, manifest.steps
    return Releases(GRADIENT, *stated)  # type: ignore[arg-type]  # not None beside an accountant


def _of_counts(manifest: Manifest, releases: Sequence[Releases]) -> Iterator[str]:
    """Class counts have a release, its noise and possible numbers, and balanced scores need them."""
    counts, sensitivity = manifest.class_counts, sensitivity_of_counts(manifest.n_classes, manifest.several_labels)
    noise = {one.noise_multiplier * sensitivity for one in releases if one.purpose == CLASS_COUNTS}
    if (counts is not None) != bool(noise):
        yield "class_counts and a release for class counts need each other"
    if counts is not None and noise != {counts.std}:
        yield "class_counts has another noise than its release"
    if counts is not None and not all(_possible(one, counts.std, manifest) for one in counts.by_class.values()):
        yield f"class_counts has a number that {manifest.n_private} units cannot have"
    if counts is None and manifest.class_prior == UNIFORM:
        yield "class_prior is uniform, without class counts"


def _possible(count: float, std: float, manifest: Manifest, least: int = 0) -> bool:
    """Whether noise makes such a number of `least` to n_private units, with any probability to speak of."""
    return least - MOST_DEVIATIONS * std <= count <= manifest.n_private + MOST_DEVIATIONS * std


def similar_share(manifest: Manifest) -> float | None:
    """Lower bound on the share of private units near the unlabelled rows of a run; None if it was not released."""
    similar = None if manifest.refined is None else manifest.refined.similar
    return None if similar is None else similar.share(manifest.n_private)


def _of_refinement(manifest: Manifest, releases: Sequence[Releases]) -> Iterator[str]:
    """Both counts of a refinement by training have a release and its noise, are possible, and allow what was done."""
    refined = manifest.refined
    trained = manifest.accountant is not None and refined is not None and refined.run is None
    similar, gain = (None, None) if refined is None else (refined.similar, refined.gain)
    for name, purpose, found in (("similar", SIMILAR_ROWS, similar), ("gain", GAIN, gain)):
        noise = {one.noise_multiplier for one in releases if one.purpose == purpose}
        if (found is not None) != trained or noise != ({found.std} if found else set()):
            yield f"refined.{name}, a release for {purpose} with its noise and a refinement by training need each other"
    yield from _of_near_rows(manifest, releases)
    if refined is not None and similar is not None and gain is not None:
        yield from _of_what_was_counted(manifest, similar, gain, refined.strength)


def _of_near_rows(manifest: Manifest, releases: Sequence[Releases]) -> Iterator[str]:
    """Private rows near those without labels allow to centre on their mean; public shots are counted in their place."""
    centred, share, shots = manifest.centre == UNLABELLED_CENTRE, similar_share(manifest), manifest.public_shots
    if centred and (share or 0) < SAME_KIND:
        yield f"centre is {UNLABELLED_CENTRE}, and too few rows are similar to them"
    if centred and MEAN in {one.purpose for one in releases}:
        yield f"centre is {UNLABELLED_CENTRE}, and a mean was released"
    near = None if manifest.refined is None else manifest.refined.near_shots
    public = shots or manifest.accountant is None  # without noise, all labelled public rows
    if near and not (public and near["near"] <= near["of"] <= manifest.n_public and share is None):
        beside = f"public_shots {shots}, n_public {manifest.n_public} and a share {share} of similar private rows"
        yield f"refined.near_shots is {near}, beside {beside}"


def _of_what_was_counted(manifest: Manifest, similar: SimilarRows, gain: NoisyGain, strength: float) -> Iterator[str]:
    n = manifest.n_private
    for name, found, least in (("similar", similar, 0), ("gain", gain, -n)):
        if not _possible(found.count, found.std, manifest, least):
            yield f"refined.{name}.count is {found.count:g} of {n}"
    if abs(gain.expected) > USUAL_GAIN:
        yield f"refined.gain.expected is {gain.expected:g}; allowed: from {-USUAL_GAIN:g} to {USUAL_GAIN:g}"
    if strength and gain.harms(n):
        yield f"refined.strength is {strength:g}, and refined.gain says that refinement harms"


def _of_chosen(manifest: Manifest, tuning: Mapping[str, Any]) -> Iterator[str]:
    """The chosen setting of a grid was offered, and is the setting of the run."""
    settings, chosen = tuning.get("settings", ()), tuning.get("chosen")
    if not isinstance(chosen, int) or not 0 <= chosen < len(settings):
        yield f"tuning chose setting {chosen} of {len(settings)}"
    (method, offered), (own, stated) = _setting_of(manifest, settings[chosen]), _setting_of(manifest, {})
    if method is not own:
        yield f"tuning chose method {method.name}, and the run has {own.name}"
    for name, argument in method.arguments.items():
        value, found = (one.get(name, argument.default) for one in (offered, stated))
        if found != value:
            yield f"tuning chose {name} {value!s:.40}, and the run has {found!s:.40}"


def _of_tuning(tuning: Mapping[str, Any], releases: Sequence[Releases], *, of_grid: bool) -> Iterator[str]:
    """A choice has the noise of its release, and a factor and a grid that were offered."""
    noise = {release.noise_multiplier for release in releases if release.purpose == SELECTION}
    factors, counts, std = tuning.get("factors", ()), tuning.get("counts", ()), tuning.get("std")
    if not of_grid and ("settings" in tuning or len(factors) < 2):
        yield "tuning is of a grid, and the ledger has no selection"
    agree = bool(factors) and len(counts) == len(factors)
    agree = agree and {multiplier * correct_counts_sensitivity(len(factors)) for multiplier in noise} == {std}
    if not agree or tuning.get("shrink") != factors[max(range(len(counts)), key=counts.__getitem__)]:
        yield "tuning does not follow from the release for the selection"
