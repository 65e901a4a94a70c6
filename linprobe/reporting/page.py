"""The page for a privacy reviewer: one HTML file without scripts, fonts, addresses or requests.

The text is in `page.html.jinja`, which escapes every value, as class and file names come from the user. Figures are
computed here, drawn in `drawings.py`, and listed in tables too.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from scipy.special import expit, ndtr

from linprobe.accounting.accountants import LARGEST_EXPONENT, AttackLimit
from linprobe.accounting.events import INHERITED, OWNER
from linprobe.accounting.figures import ONE, gaussian_words, limit_percent, rounded_up
from linprobe.errors import printable
from linprobe.metrics.figures import no_better_than_guessing, of_labels
from linprobe.reporting.drawings import attack_limit_drawing, confusion_drawing, histogram_drawing
from linprobe.reporting.metric_tables import CLASS_HEADER, FEW_CLASSES, class_rows, overall_rows, ranked_rows, tables_of
from linprobe.reporting.release_pages import composition_text, templates, unit_text
from linprobe.runs.check import Recomputed
from linprobe.runs.guarantee import NOUNS, PLAINLY, accountant_of, limit_of
from linprobe.runs.manifest import MANIFEST_FORMAT, Manifest, Published
from linprobe.runs.release_rules import HISTOGRAM, TEST_ACCURACY

STYLE = files("linprobe.reporting").joinpath("page.css").read_text(encoding="utf-8")
PRIVATE = "PRIVATE: this page holds figures computed from private rows without noise; do not publish it"
MOST_CLASSES_DRAWN = 150  # a smaller cell of the confusion matrix is less than two units wide
BLANK = "\N{NO-BREAK SPACE}"  # to be filled in by hand
RATES = (0.001, 0.01, 0.1)
PURPOSES = {
    "gradient": "training steps",
    "mean": "mean of the private rows",
    "covariance": "covariance of the features",
    TEST_ACCURACY: "number of correct predictions on private test rows",
    "selection": "noisy numbers of correct predictions on private rows, which chose a setting",
    HISTOGRAM: "published histogram of privacy losses",
    INHERITED: "released by the run it started from",
}


@dataclass(frozen=True)
class Evidence:
    """The contents of the page.

    Attributes:
        name: of the run folder. manifest: its manifest, which has been verified.
        checked: what `verified` recomputed.
        histograms: the published files, in the manifest's order.
        attacks: results of attacks on this run, as `linprobe attack --json` prints them. Private.
        test_metrics: what `figures_by_task` found on public test rows; None without such rows.
        title, owner: of the page, and who answers for the data, in the user's words; None for a title from the run, and
            for a blank line to fill in.
        stated: keys and files that nothing in the folder proves.
    """

    name: str
    manifest: Manifest
    checked: Recomputed
    histograms: Sequence[dict[str, Any]]
    attacks: Sequence[dict[str, Any]]
    test_metrics: dict[str, Any] | None = None
    title: str | None = None
    owner: str | None = None
    stated: Sequence[str] = ()


def page(evidence: Evidence) -> str:
    """The whole page as HTML."""
    manifest = evidence.manifest
    limit = limit_of(manifest)
    published = [release for release in manifest.published if release.file is not None]
    return _pages.get_template("page.html.jinja").render(
        name=evidence.name,
        title=evidence.title or f"Privacy report: {manifest.method}, run {evidence.name}",
        data=_data(manifest),
        plainly=PLAINLY[manifest.unit],
        one_unit=manifest.unit,
        stated=evidence.stated,
        claim=_claim(manifest) if manifest.private else None,
        sign_off={
            "data set": Path(manifest.features).name,
            "owner of the data": evidence.owner or BLANK,
            **dict.fromkeys(("reviewer", "decision", "date and signature"), BLANK),
        },
        quoted_name=shlex.quote(evidence.name),
        style=STYLE,
        private_note=PRIVATE,
        manifest=manifest,
        manifest_format=MANIFEST_FORMAT,
        checked=evidence.checked,
        limits=None if limit is None else _limits(manifest, limit),
        releases=[] if manifest.accountant is None or not manifest.releases else _releases(manifest),
        started_from_a_run=any(release.purpose == INHERITED for release in manifest.releases or ()),
        accuracy=None if evidence.test_metrics is None else _accuracy(evidence.test_metrics),
        several_labels=manifest.several_labels,
        histograms=[
            _histogram(number, histogram, release, manifest.unit)
            for number, (histogram, release) in enumerate(
                zip(evidence.histograms, published, strict=bool(evidence.histograms)), 1
            )
        ],
        attacks=evidence.attacks,
        attack_rows=_attack_rows(evidence, limit),
        made=_made(manifest),
        options=_options(manifest),
        versions={**manifest.software, **(manifest.accountant_versions or {})},
    )


def _data(manifest: Manifest) -> str:
    """The data set and its numbers; paths are shortened, as folders could reveal facts about the owner's machine."""
    noun = NOUNS[manifest.unit]
    tests = f", {manifest.n_test:,} test rows" if manifest.n_test else ""
    return f"{manifest.n_private:,} private {noun}, {manifest.n_public:,} public rows{tests}"


def _claim(manifest: Manifest) -> str:
    """What may be said of the model in public."""
    return (
        f"Trained with {manifest.method} ({manifest.paper}) in linprobe {manifest.software['linprobe']}, with "
        f"{manifest.guarantee}. Unit of privacy: {unit_text(manifest)}. What was composed: "
        f"{composition_text(manifest)}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f}\N{NO-BREAK SPACE}%"


def _percent_above(share: float) -> str:
    """A bound in per cent, rounded up."""
    return f"{limit_percent(share)}\N{NO-BREAK SPACE}%"


def _figure(value: float | None) -> str:
    """A privacy figure, rounded up."""
    return "none" if value is None else rounded_up(value)


def _gaussian(manifest: Manifest) -> str:
    return gaussian_words(manifest.gdp_mu, manifest.zcdp_rho)


_pages = templates(finalize=lambda value: printable(value) if type(value) is str else value, html=True)
_pages.filters |= {
    "percent": _percent,
    "percent_above": _percent_above,
    "figure": _figure,
    "gaussian": _gaussian,
    "thousands": "{:,}".format,
}


def _limits(manifest: Manifest, limit: AttackLimit) -> dict[str, Any]:
    """What the guarantee allows an attacker: in odds, at the rates of `RATES`, and drawn."""
    allowed = {rate: _percent_above(float(limit(rate))) for rate in RATES}
    points = ", ".join(f"{most} at {_percent(rate)}" for rate, most in allowed.items())
    description = (
        f"The guarantee allows at most {points}. Guessing finds the share that it names by mistake. Logarithmic axes."
    )
    epsilon, delta = manifest.bound
    return {
        "factor": rounded_up(math.exp(min(epsilon, LARGEST_EXPONENT)), 4),
        "once_in": math.floor(1 / delta + 1e-6) if delta else None,
        "chance": 1 / (1 + math.exp(-epsilon)),
        "guesses": _right_guesses(limit),
        "guesses_of_any": float(_right_guesses_at(epsilon, delta)),
        "rows": [(_percent(rate), most, _percent(rate)) for rate, most in allowed.items()],
        "source": limit.source,
        "drawing": attack_limit_drawing(lambda fpr: float(limit(fpr)), description),
    }


def _right_guesses(limit: AttackLimit) -> float:
    """The largest share of right guesses whether a record was in the data, at even odds: Phi(mu / 2), or by pairs."""
    if limit.mu is not None:
        return float(ndtr(limit.mu / 2))
    return float(_right_guesses_at(limit.epsilons, limit.deltas).min())


def _right_guesses_at(epsilon: Any, delta: Any) -> Any:
    """(e^epsilon + delta) / (1 + e^epsilon): the same from a pair alone (Kairouz, Oh, Viswanath 2015)."""
    return expit(epsilon) + delta * expit(-epsilon)


def _releases(manifest: Manifest) -> list[tuple[str, ...]]:
    """A row for each kind of release: purpose, count, noise multiplier, sampling rate, epsilon."""
    accountant, (_, delta) = accountant_of(manifest), manifest.bound
    return [
        (
            PURPOSES.get(release.purpose, release.purpose),
            f"{release.count:,}",
            f"{release.noise_multiplier:.6g}",
            f"{release.sampling_rate:.6g}",
            _figure(accountant.epsilon([release], delta)),
        )
        for release in manifest.releases or ()
    ]


def _accuracy(figures: dict[str, Any]) -> dict[str, Any]:
    """Tables of the figures on public test rows, the confusion matrix drawn, and a warning if it applies."""
    if of_labels(figures):
        tables = tables_of(figures)
        return {
            "overall": tables.overall,
            "warning": no_better_than_guessing(figures),
            "header": tables.header,
            "rows": tables.rows,
        }
    rows = class_rows(figures)
    shortened = {}
    if len(rows) > FEW_CLASSES:
        lowest, highest = ranked_rows(figures)
        shortened = {"The ten classes of lowest recall": lowest, "The ten classes of highest recall": highest}
    matrix, drawing = figures["confusion_matrix"], None
    if matrix is not None and len(matrix) <= MOST_CLASSES_DRAWN:
        description = (
            f"{len(matrix)} by {len(matrix)} classes; the darker a cell, the larger its share of the true class. "
            "The most frequent mistakes are in the table below."
        )
        drawing = confusion_drawing(
            "Confusion matrix of the test rows", description, matrix, list(figures["per_class"])
        )
    return {
        "overall": overall_rows(figures),
        "warning": no_better_than_guessing(figures),
        "header": CLASS_HEADER,
        "shortened": shortened,
        "rows": rows,
        "drawing": drawing,
        "mistakes": _frequent_mistakes(figures),
    }


def _frequent_mistakes(figures: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """True class, predicted class, rows and share of the true class, of the ten most frequent mistakes."""
    matrix, names = figures["confusion_matrix"] or (), list(figures["per_class"])
    found = [
        (count, true, predicted)
        for true, line in enumerate(matrix)
        for predicted, count in enumerate(line)
        if count and true != predicted
    ]
    found.sort(key=lambda one: (-one[0], one[1], one[2]))
    return [
        (names[true], names[predicted], f"{count:,}", f"{_percent(count / sum(matrix[true]))} of {sum(matrix[true]):,}")
        for count, true, predicted in found[:10]
    ]


def _histogram(number: int, histogram: dict[str, Any], release: Published, unit: str) -> dict[str, Any]:
    """A published histogram: its label, drawing and rows, and the release that paid for it."""
    edges, counts = histogram["bin_edges"], histogram["noisy_counts"]
    one, many = ONE[unit], "people" if unit == OWNER else "records"
    label = f"Noisy number of {many} by their own epsilon, histogram {number}"
    description = (
        f"{len(counts)} bars from epsilon 0 to {rounded_up(edges[-1], 3)}; noise of standard deviation "
        f"{release.noise_multiplier:.3g} in every count. The numbers are in the table below."
    )
    bins = zip(edges[:-1], edges[1:], counts, strict=True)
    return {
        "label": label,
        "release": release,
        "drawing": histogram_drawing(label, description, edges[-1], counts, one=one, many=many),
        "rows": [(f"{rounded_up(low)} to {rounded_up(high)}", f"{count:,}") for low, high, count in bins],
    }


def _attack_rows(evidence: Evidence, limit: AttackLimit | None) -> list[list[str]]:
    """A row for each figure, a column for each attack."""
    attacks = evidence.attacks
    intervals = ((one["auc_low"], one["auc_high"]) for one in attacks)
    rows = [
        [
            "area under the curve (0.5 is guessing)",
            *(f"{one['auc']:.3f}, {one['members']:,} members and {one['non_members']:,} others" for one in attacks),
        ],
        ["its interval", *("none" if None in ends else "{:.3f} to {:.3f}".format(*ends) for ends in intervals)],
    ]
    for rate in ("0.001", "0.01"):
        at = f"at {100 * float(rate):g} % named by mistake"
        most = "anything" if limit is None else _percent_above(float(limit(float(rate))))
        rows += [
            [f"members found {at}", *(f"{_percent(one['tpr_at_fpr'][rate])} of {one['members']:,}" for one in attacks)],
            [f"the guarantee allows, {at}", *(most for _ in attacks)],
        ]
    return [*rows, ["shadow models", *("none" if one["shadows"] is None else one["shadows"] for one in attacks)]]


def _made(manifest: Manifest) -> dict[str, Any]:
    """How the run was made. Paths are shown without folders, which could reveal facts about the owner's machine."""
    public_from, unit = manifest.public_from, manifest.unit
    for path in filter(None, (manifest.features, manifest.public_file)):
        public_from = public_from.replace(path, Path(path).name)
    return {
        "mechanism": manifest.mechanism,
        f"private {NOUNS[unit]}": f"{manifest.n_private:,}",
        "public rows": f"{manifest.n_public:,}, from {public_from}",
        "public shots per class": manifest.public_shots,
        "split seed": manifest.split_seed,
        "features": f"{Path(manifest.features).name}, {manifest.n_features:,} a row",
        "backbone": manifest.backbone or "not stated",
        "classes": f"{manifest.n_classes:,}, from: {manifest.class_names_from}",
        "task": manifest.task,
        "steps": manifest.steps,
        "noise multiplier": manifest.noise_multiplier,
        "sampling rate": manifest.sampling_rate,
        "source of noise": manifest.noise_source,
        "kind of seed": manifest.seed_kind,
        "preset": manifest.preset,
        "centre": manifest.centre,
        "created": manifest.created,
    }


def _options(manifest: Manifest) -> dict[str, Any]:
    """The options given; `init` without its folder."""
    options = dict(manifest.options)
    if options.get("init"):
        options["init"] = Path(options["init"]).name
    return options
