"""`linprobe report`: the page of a verified run, one HTML file without fonts, addresses or requests.

`page.html.jinja` escapes every value, as class and file names come from the user. The only script is the check of
`verify.html`, which judges a copy of the run's files and stands beside what Python found.
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
from linprobe.accounting.events import INHERITED, OWNER, RECORD
from linprobe.accounting.figures import gaussian_words, limit_percent, rounded_down, rounded_up
from linprobe.atomic_files import write_whole
from linprobe.errors import UsageError, printable, writing
from linprobe.options.requests import ReportRequest
from linprobe.reporting.metric_tables import tables_of
from linprobe.reporting.release_pages import holds_if, recorded_totals, templates, test_text, unit_text, unprotected
from linprobe.runs.check import Recomputed, not_checked, verified
from linprobe.runs.figures import no_better_than_guessing
from linprobe.runs.guarantee import PLAINLY, accountant_of, limit_of
from linprobe.runs.manifest import MANIFEST, MANIFEST_FORMAT, PER_RECORD, SIGNATURE, Manifest, Published
from linprobe.runs.officer_page import Copy, copy_of, policy, report_script
from linprobe.runs.release_rules import PURPOSES
from linprobe.runs.run_folder import RunFolder, inputs_of, new_files

SUFFIXES = (".html", ".htm")
STYLE = files("linprobe.reporting").joinpath("page.css").read_text(encoding="utf-8")
BLANK = "\N{NO-BREAK SPACE}"  # to be filled in by hand
RATES = (0.001, 0.01, 0.1)
ALMOST_NOTHING = 0.99  # share of right guesses from which a promise is worth little, as in verify.html
MOST_IN_MATRIX = 10  # classes of a confusion matrix with names and numbers; more columns would not fit
MANY = {OWNER: "people", RECORD: "records"}


@dataclass(frozen=True)
class Evidence:
    """The contents of the page: what `verified` recomputed, `stated` keys that nothing proves, and the user's words."""

    name: str
    manifest: Manifest
    checked: Recomputed
    histograms: Sequence[dict[str, Any]]
    test_metrics: dict[str, Any] | None = None
    title: str | None = None
    owner: str | None = None
    stated: Sequence[str] = ()
    total: str | None = None
    copy: Copy | None = None
    signed: bool = False


def report(request: ReportRequest) -> str:
    """Verify a run as `verify` does, then write its page; returns a private line on what all runs cost together."""
    html, folder = request.html, request.run
    if html.suffix.lower() not in SUFFIXES:
        raise UsageError(f"page {html} ends in {html.suffix!r}; allowed: {', '.join(SUFFIXES)}; try {html}.html")
    with new_files({"--html": html}, what="page", inputs=inputs_of(folder), overwrite=request.overwrite):
        run = RunFolder(folder)
        checked, manifest = verified(run), run.manifest
        total, private_total = recorded_totals(manifest)
        evidence = Evidence(
            name=folder.resolve().name,
            manifest=manifest,
            checked=checked,
            histograms=run.histograms,
            test_metrics=run.test_metrics,
            # the page is the same without the private file
            stated=[name for name in not_checked(run) if not name.startswith(PER_RECORD.removesuffix(".npz"))],
            title=request.title,
            owner=request.owner,
            total=total,
            copy=copy_of(run[MANIFEST], {name: run[name] for name in manifest.files}),
            signed=SIGNATURE in run.names,
        )
        text = page(evidence)
        with writing(f"page {html}", "--html"):
            write_whole(html, text)
    return private_total


def page(evidence: Evidence) -> str:
    manifest = evidence.manifest
    limit, public_from, options = limit_of(manifest), manifest.public_from, dict(manifest.options)
    for path in filter(None, (manifest.features, manifest.public_file)):
        public_from = public_from.replace(path, Path(path).name)
    if options.get("init"):
        options["init"] = Path(options["init"]).name
    published = [release for release in manifest.published if release.file is not None]
    script = "" if evidence.copy is None else report_script()
    return _pages.get_template("page.html.jinja").render(
        vars(evidence),
        title=evidence.title or f"Privacy report: {manifest.method}, run {evidence.name}",
        owner=evidence.owner or BLANK,
        blank=BLANK,
        features=Path(manifest.features).name,
        public_from=public_from,
        unprotected=unprotected(manifest),
        test_text=test_text(manifest),
        options=options,
        plainly=PLAINLY[manifest.unit],
        unit_words=unit_text(manifest),
        holds_if=holds_if(manifest),
        quoted_name=shlex.quote(evidence.name),
        style=STYLE,
        script=script,
        policy=policy(script, STYLE),
        manifest_format=MANIFEST_FORMAT,
        limits=None if limit is None else _limits(manifest, limit),
        releases=[] if manifest.accountant is None or not manifest.releases else _releases(manifest),
        started_from_a_run=any(release.purpose == INHERITED for release in manifest.releases or ()),
        accuracy=None if evidence.test_metrics is None else _accuracy(evidence.test_metrics, manifest),
        histograms=[
            _histogram(number, histogram, release, manifest.unit)
            for number, (histogram, release) in enumerate(
                zip(evidence.histograms, published, strict=bool(evidence.histograms)), 1
            )
        ],
        versions={**manifest.software, **(manifest.accountant_versions or {})},
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f}\N{NO-BREAK SPACE}%"


def _percent_above(share: float) -> str:
    return f"{limit_percent(share)}\N{NO-BREAK SPACE}%"


def _figure(value: float | None) -> str:
    return "none" if value is None else rounded_up(value)


_pages = templates(finalize=lambda value: printable(value) if type(value) is str else value, html=True)
_pages.filters |= {
    "percent": _percent,
    "percent_above": _percent_above,
    "figure": _figure,
    "down": rounded_down,
    "gaussian": lambda manifest: gaussian_words(manifest.gdp_mu, manifest.zcdp_rho),
    "thousands": "{:,}".format,
}


def _limits(manifest: Manifest, limit: AttackLimit) -> dict[str, Any]:
    """What the guarantee allows an attacker: as a factor, in right guesses, and at the rates of `RATES`."""
    epsilon, delta = manifest.bound
    # the largest share of right guesses whether a record was in the data, at even odds: Phi(mu / 2), or by pairs
    pairs = _right_guesses_at(limit.epsilons, limit.deltas)
    guesses = pairs.min() if limit.mu is None else ndtr(limit.mu / 2)
    return {
        "factor": rounded_up(math.exp(min(epsilon, LARGEST_EXPONENT)), 4),
        "once_in": math.floor(1 / delta + 1e-6) if delta else None,
        "guesses": float(guesses),
        "weak": guesses >= ALMOST_NOTHING,
        "guesses_of_any": float(_right_guesses_at(epsilon, delta)),
        "rows": [(_percent(rate), _percent_above(float(limit(rate))), _percent(rate)) for rate in RATES],
        "source": limit.source,
    }


def _right_guesses_at(epsilon: Any, delta: Any) -> Any:
    """(e^epsilon + delta) / (1 + e^epsilon): right guesses by a pair alone (Kairouz, Oh, Viswanath 2015)."""
    return expit(epsilon) + delta * expit(-epsilon)


def _releases(manifest: Manifest) -> list[tuple[str, ...]]:
    accountant, (_, delta) = accountant_of(manifest), manifest.bound
    return [
        (
            PURPOSES.get(release.purpose, release.purpose),
            f"{release.count:,}",
            rounded_down(release.noise_multiplier),
            f"{release.sampling_rate:.6g}",
            _figure(accountant.epsilon([release], delta)),
        )
        for release in manifest.releases or ()
    ]


def _accuracy(figures: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    tables = tables_of(figures)
    always = {**vars(tables), "warning": no_better_than_guessing(figures, manifest)}
    if "per_label" in figures:
        return always
    shortened = {"The ten classes of lowest recall": tables.lowest, "The ten classes of highest recall": tables.highest}
    matrix, names = figures["confusion_matrix"] or (), list(figures["per_class"])
    return {
        **always,
        "shortened": shortened if tables.lowest else {},
        "matrix": list(zip(names, matrix, strict=True)) if 0 < len(matrix) <= MOST_IN_MATRIX else (),
        "mistakes": _frequent_mistakes(figures),
    }


def _frequent_mistakes(figures: dict[str, Any]) -> list[tuple[str, str, str, str]]:
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
    edges, counts = histogram["bin_edges"], histogram["noisy_counts"]
    bins = zip(edges[:-1], edges[1:], counts, strict=True)
    return {
        "label": f"Noisy number of {MANY[unit]} by their own epsilon, histogram {number}",
        "release": release,
        "rows": [(f"{rounded_up(low)} to {rounded_up(high)}", f"{count:,}") for low, high, count in bins],
    }
