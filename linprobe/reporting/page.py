"""The page for a privacy reviewer: one HTML file without scripts, fonts, addresses or requests.

Every element is made by `tag`, which escapes whatever is not itself an element: names of classes and files are a
user's words. Figures are SVG written here; each has its numbers in a table as well.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from linprobe.accounting.accountants import ACCOUNTANTS, composed_epsilon
from linprobe.accounting.events import Releases
from linprobe.evaluation.attacks import tpr_limit

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
PRIVATE = "PRIVATE: this page holds figures computed from private rows without noise; do not publish it"
FEW_CLASSES = 20  # up to as many are listed in one table; of more, the worst and the best ten come first
RATES = (0.001, 0.01, 0.1)
PURPOSES = {
    "gradient": "training steps",
    "histogram": "published histogram of per-record losses",
    "inherited": "released by the run it started from",
}

# text on its ground has contrast 7:1 or more, graphics 4.5:1 or more, in both colour schemes
STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --ground: #fff; --soft: #f2f4f6; --line: #8a929a; --mark: #1d5a9e;
  --area: #cfe0f2; --good: #0d4a22; --good-ground: #e4f4e9; --bad: #7d1010; --bad-ground: #fdeaea; }
@media (prefers-color-scheme: dark) { :root { --text: #e9e9e9; --ground: #15181b; --soft: #22272c; --line: #8b959e;
  --mark: #86b9f2; --area: #24405f; --good: #b5ecc5; --good-ground: #12301d; --bad: #ffc4c4; --bad-ground: #421616; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 48rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--ground); overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.25rem 0 0.25rem; }
.verdict, .private { padding: 0.75rem 1rem; border-left: 0.4rem solid; font-weight: bold; }
.good { color: var(--good); background: var(--good-ground); }
.bad, .private { color: var(--bad); background: var(--bad-ground); }
table { border-collapse: collapse; width: 100%; margin: 0.75rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding: 0.25rem 0; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.6rem 0.2rem 0; border-bottom: 1px solid var(--line); }
tbody th { font-weight: normal; }
td.bar { width: 35%; }
td.bar svg { display: block; width: 100%; height: 0.8rem; margin-top: 0.35rem; }
bdi, code { overflow-wrap: anywhere; }
pre, code { font: 0.9rem/1.5 ui-monospace, monospace; }
pre { background: var(--soft); padding: 0.75rem; white-space: pre-wrap; }
figure { margin: 1rem 0; max-width: 34rem; }
figure svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
.mark { fill: var(--mark); }
.curve { fill: none; stroke: var(--mark); stroke-width: 2.5; }
.guess { fill: none; stroke: var(--text); stroke-dasharray: 4 4; }
.area { fill: var(--area); }
.axis { fill: none; stroke: var(--line); }
summary { cursor: pointer; padding: 0.4rem 0; }
@media (max-width: 30rem) { body { padding: 0.75rem; } th, td { padding-right: 0.3rem; font-size: 0.85rem; }
  thead th { font-size: 0.75rem; } }
@media (max-width: 22rem) { th, td { font-size: 0.75rem; } }
@media print {
  :root { color-scheme: light; --text: #000; --ground: #fff; --soft: #fff; --line: #777; --mark: #1d5a9e;
    --area: #dde8f4; --good: #0d4a22; --good-ground: #fff; --bad: #7d1010; --bad-ground: #fff; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h1, h2, h3, caption { break-after: avoid; }
  @page { margin: 15mm; }
  figure { max-width: 10cm; }
  table, tr, figure, pre, .verdict, .private { break-inside: avoid; }
  details::details-content { display: block; content-visibility: visible; }
  summary { list-style: none; }
}
"""


@dataclass(frozen=True)
class Evidence:
    """What the page is made of.

    Attributes:
        name: of the run folder. manifest: its manifest, which has been verified.
        checked: what `check_manifest` recomputed.
        histograms: the published files, in the manifest's order.
        attacks: what attacks on this run found, as `linprobe attack --json` prints it. Private.
    """

    name: str
    manifest: dict[str, Any]
    checked: dict[str, Any]
    histograms: Sequence[dict[str, Any]]
    attacks: Sequence[dict[str, Any]]


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *parts: object, **attributes: object) -> Html:
    """An element with `parts` inside, escaped unless they are elements; `class_` is class, `aria_label` aria-label."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    inside = "".join(part if isinstance(part, Html) else escape(str(part)) for part in parts)
    return Html(f"<{name}{given}>{inside}" + ("\n" if name == "meta" else f"</{name}>\n"))


def attack_limit(fpr: float, manifest: dict[str, Any]) -> float:
    """The best true-positive rate that a private run's guarantee leaves any attacker at a false-positive rate.

    Phi(Phi^-1(fpr) + mu) for a mu-GDP run (Dong, Roth, Su 2022), its best test against one record; elsewhere
    that of (epsilon, delta), `evaluation.attacks.tpr_limit`.

    Args:
        fpr: a share, above 0 and below 1.
    """
    if manifest["gdp_mu"] is not None:
        return float(ndtr(ndtri(fpr) + manifest["gdp_mu"]))
    return float(tpr_limit(np.array(fpr), manifest["epsilon"], manifest["delta"]))


def page(evidence: Evidence) -> str:
    """The whole page."""
    manifest = evidence.manifest
    title = f"Privacy report: {manifest['method']}, run {evidence.name}"
    banner = [tag("p", PRIVATE, class_="private")] if evidence.attacks else []
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "PRIVATE. " if evidence.attacks else "", title),
        tag("style", Html(STYLE)),
    )
    sections = (
        _guarantee(manifest),
        _ledger(evidence),
        _accuracy(manifest),
        _losses(evidence),
        *([_attacks(evidence)] if evidence.attacks else []),
        _making(manifest),
        _verifying(evidence),
    )
    body = tag("body", tag("main", *banner, tag("h1", title), *_verdict(manifest), *sections))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en")


def _factor(epsilon: float) -> float:
    return math.exp(min(epsilon, 700.0))  # a larger one is beyond every float, and bounds nothing


def _percent(share: float) -> str:
    return f"{100 * share:.2f}\N{NO-BREAK SPACE}%"


def _percent_above(share: float) -> str:
    """A bound in per cent, rounded up."""
    return _percent(math.ceil(1e4 * share - 1e-9) / 1e4)


def _figure_of(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _table(caption: str, header: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table whose first column names the rows; without words in its header, it has none."""
    lines = [
        tag("tr", tag("th", first, scope="row"), *(cell if _is_cell(cell) else tag("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    head = [tag("thead", tag("tr", *(tag("th", name, scope="col") for name in header)))] if header else []
    return tag("table", tag("caption", caption), *head, tag("tbody", *lines))


def _is_cell(value: object) -> bool:
    return isinstance(value, Html) and value.startswith("<td")


def _given(value: object, none: str) -> object:
    """A value of the manifest; words may be long ones of the user's, and break anywhere."""
    return none if value is None else tag("bdi", value) if isinstance(value, str) else value


def _list(items: Iterable[object]) -> Html:
    return tag("ul", *(tag("li", item) for item in items))


def _verdict(manifest: dict[str, Any]) -> list[Html]:
    if manifest["private"] and manifest["accountant"] is None:
        kind, words = "good", "Verified: the private rows were not used. Epsilon is 0 and delta is 0."
    elif manifest["private"]:
        kind, words = "good", f"Verified: {manifest['guarantee']}."
    elif manifest["seed_kind"] == "insecure":
        kind, words = (
            "bad",
            "NOT PRIVATE: the noise came from a seed that the user gave. Whoever knows it can subtract the noise.",
        )
    else:
        kind, words = "bad", "NO GUARANTEE: the method is not private. It used the private rows without protection."
    meaning = (
        "Files, ledger and figures of the run folder agree with each other and were recomputed when this page was "
        "made. What that does and does not show is under “How to verify”."
    )
    paper = tag("p", f"Method {manifest['method']} ({manifest['paper']}), made {manifest['created']}.")
    return [paper, tag("p", words, class_=f"verdict {kind}"), tag("p", meaning)]


def _guarantee(manifest: dict[str, Any]) -> Html:
    title = tag("h2", "The guarantee")
    if not manifest["private"]:
        words = (
            "There is none. The model may reveal single private records. Treat the model, and everything in its "
            "folder, as you treat the private rows themselves."
        )
        return tag("section", title, tag("p", words))
    epsilon, delta = manifest["epsilon"], manifest["delta"]
    parts = [
        tag(
            "p", f"Epsilon {_figure_of(epsilon)}, delta {delta:g}. Two data sets are compared: {manifest['adjacency']}."
        )
    ]
    if manifest["accountant"] is None:
        parts.append(tag("p", "The model would be the same whatever the private rows hold. It tells nothing of them."))
    else:
        chance = f"{delta:g} (1 in {1 / delta:,.0f})"
        parts += [
            tag(
                "p",
                "An attacker may know the method, all options and every other record, and sees the model. For them, "
                "the odds that a given record was in the data change at most by the factor e",
                tag("sup", "epsilon"),
                f" = {_factor(epsilon):.4g}, but for probability {chance}. Odds of 1 to 1 become at most a chance of "
                f"{_percent_above(1 / (1 + math.exp(-epsilon)))}.",
            ),
            tag(
                "p",
                "The same as a test: the attacker names records that they take for members. Suppose only a small share "
                "of the records that were not in the data is named by mistake. Then the share of members they can find "
                "is limited, whatever they compute:",
            ),
            _limit_figure(manifest),
            _table(
                "The best attack that the guarantee allows",
                ("named by mistake", "members found, at most", "by guessing"),
                ((_percent(rate), _percent_above(attack_limit(rate, manifest)), _percent(rate)) for rate in RATES),
            ),
        ]
        exact = "exact, from mu of the whole ledger" if manifest["gdp_mu"] is not None else "from epsilon and delta"
        parts.append(tag("p", f"These limits are {exact}. They hold for any one record and are rounded up."))
    parts += [
        tag("h3", "What counts as public"),
        _list(manifest["public"]),
        tag("h3", "What is not covered"),
        _list(
            (
                f"Public rows ({manifest['n_public']:,} here): used without noise, and may be read back from the "
                "model.",
                "Test rows: the accuracy on them is exact.",
                "Other runs on the same private rows: their costs add up with this one's. This page counts this run, "
                "and the one it started from, if any.",
                "Settings that were chosen by trying several on private rows: each try is a run.",
                "A person with several rows: one record is one row; k rows together are protected less.",
                "The network that made the features, if it was trained on the private images.",
            )
        ),
    ]
    return tag("section", title, *parts)


def _svg(label: str, description: str, height: int, *parts: Html) -> Html:
    """A figure of 360 units' width, a phone's, so that its text is readable there."""
    titles = (tag("title", label), tag("desc", description))
    return tag("svg", *titles, *parts, viewBox=f"0 0 360 {height}", role="img", aria_label=f"{label}. {description}")


def _words(x: float, y: float, words: str, anchor: str = "start", **more: object) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, **more)


def _line(points: Iterable[tuple[float, float]], kind: str) -> Html:
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=kind)


def _limit_figure(manifest: dict[str, Any]) -> Html:
    """What the guarantee allows against guessing, both axes logarithmic from 0.1 % to 100 %."""
    left, right, top, bottom = 56, 345, 12, 250

    def place(fpr: float, tpr: float) -> tuple[float, float]:
        across, up = (1 + math.log10(max(value, RATES[0])) / 3 for value in (fpr, tpr))
        return left + across * (right - left), bottom - up * (bottom - top)

    rates = np.geomspace(RATES[0], 1, 91).tolist()
    curve = [place(rate, attack_limit(rate, manifest)) for rate in rates[:-1]] + [place(1, 1)]
    ticks = [(10.0**power, f"{10.0**power:.1%}".replace(".0%", "%").replace("%", " %")) for power in range(-3, 1)]
    label = "Members an attacker can find, against records named by mistake"
    points = ", ".join(f"{_percent_above(attack_limit(rate, manifest))} at {_percent(rate)}" for rate in RATES)
    return tag(
        "figure",
        _svg(
            label,
            f"The guarantee allows at most {points}; guessing finds as many as it names by mistake. Logarithmic axes.",
            295,
            _line([*curve, place(RATES[0], RATES[0])], "area"),
            _line(curve, "curve"),
            _line([place(RATES[0], RATES[0]), place(1, 1)], "guess"),
            _line([(left, top), (left, bottom), (right, bottom)], "axis"),
            *(_words(place(rate, 1)[0], bottom + 17, words, "end" if rate == 1 else "middle") for rate, words in ticks),
            *(_words(left - 6, place(RATES[0], rate)[1] + 4, words, "end") for rate, words in ticks),
            _words((left + right) / 2, bottom + 36, "named by mistake (false positives)", "middle"),
            _words(12, (top + bottom) / 2, "members found", "middle", transform=f"rotate(-90 12 {(top + bottom) / 2})"),
            _line([(215, 212), (240, 212)], "curve"),
            _words(247, 216, "guarantee’s limit"),
            _line([(215, 230), (240, 230)], "guess"),
            _words(247, 234, "guessing"),
        ),
    )


def _ledger(evidence: Evidence) -> Html:
    manifest, checked = evidence.manifest, evidence.checked
    title = tag("h2", "The ledger")
    if manifest["accountant"] is None:
        return tag("section", title, tag("p", "Empty: nothing was released with noise."))
    accountant = next(name for name, words in ACCOUNTANTS.items() if words == manifest["accountant"])
    releases = [Releases(**release) for release in manifest["releases"]]
    suffix = "" if manifest["private"] else ", if the seed were secret"
    rows = (
        (
            PURPOSES.get(release.purpose, release.purpose),
            f"{release.count:,}",
            f"{release.noise_multiplier:.6g}",
            f"{release.sampling_rate:.6g}",
            _figure_of(composed_epsilon([release], manifest["delta"], accountant)),
        )
        for release in releases
    )
    parts = [
        tag(
            "p",
            f"{checked['releases']:,} sums over private rows were released with Gaussian noise. The noise multiplier "
            "is the noise’s standard deviation in units of the most that one record moves the sum. The sampling rate "
            "is the probability with which a record joins the sum.",
        ),
        _table(
            f"Releases, alike ones counted, at delta {manifest['delta']:g}{suffix}",
            ("for", "count", "noise multiplier", "sampling rate", "epsilon, alone"),
            rows,
        ),
        _table(
            "All releases together" + suffix,
            (),
            (
                (f"epsilon by {manifest['accountant']}, of record", _figure_of(checked["epsilon"])),
                (f"epsilon by {manifest['cross_check']}, cross-check", _figure_of(checked["epsilon_cross_check"])),
                ("epsilon asked for, at most", _figure_of(manifest["epsilon_target"])),
                ("mu of Gaussian differential privacy", _figure_of(manifest["gdp_mu"])),
                ("rho of zero-concentrated differential privacy", _figure_of(manifest["zcdp_rho"])),
            ),
        ),
    ]
    if len(releases) > 1:
        parts.append(tag("p", "Together the releases cost less than the sum of their epsilons."))
    if manifest["gdp_mu"] is None:
        parts.append(tag("p", "Mu and rho describe no composition that has Poisson samples in it."))
    if any(release.purpose == "inherited" for release in releases):
        parts.append(tag("p", "The run started from an earlier one, whose releases are counted here in full."))
    return tag("section", title, *parts)


def _accuracy(manifest: dict[str, Any]) -> Html:
    accuracies: dict[str, float | None] = manifest["test_accuracy_per_class"]
    ranked = sorted((item for item in accuracies.items() if item[1] is not None), key=lambda item: float(item[1] or 0))
    header = ("class", "accuracy", "as a bar")

    def table(caption: str, items: Iterable[tuple[str, float | None]]) -> Html:
        return _table(caption, header, (_accuracy_row(name, share) for name, share in items))

    if len(accuracies) <= FEW_CLASSES:
        tables = [table("Accuracy by class, in label order", accuracies.items())]
    else:
        tables = [
            table("The ten classes with the lowest accuracy", ranked[:10]),
            table("The ten classes with the highest accuracy", ranked[:-11:-1]),
            tag(
                "details",
                tag("summary", f"All {len(accuracies):,} classes"),
                table("Accuracy by class, in label order", accuracies.items()),
            ),
        ]
    overall = (
        f"{_percent(manifest['test_accuracy'])} of {manifest['n_test']:,} test rows. Test rows are public by "
        "convention: these figures are exact, and test records have no protection. The accuracy on private rows is "
        "private, and is not computed. Verifying does not recompute accuracy; linprobe evaluate does."
    )
    return tag("section", tag("h2", "Accuracy"), tag("p", overall), *tables)


def _accuracy_row(name: str, share: float | None) -> tuple[object, ...]:
    if share is None:
        return tag("bdi", name), "no test rows", ""
    bar = tag("svg", tag("rect", width=f"{100 * share:.1f}%", height="100%", class_="mark"), aria_hidden="true")
    return tag("bdi", name), _percent(share), tag("td", bar, class_="bar")


def _losses(evidence: Evidence) -> Html:
    manifest = evidence.manifest
    title = tag("h2", "What single records lost")
    if evidence.histograms:
        return tag(
            "section",
            title,
            tag(
                "p",
                "Epsilon bounds what the worst record can lose; most lose less. The run’s owner released how many "
                "records lost how much, with noise, and the ledger above has paid for it. With noise, a count can be "
                "below 0.",
            ),
            *(
                part
                for number, (histogram, release) in enumerate(
                    zip(evidence.histograms, manifest["published"], strict=True), 1
                )
                for part in _histogram(number, histogram, release)
            ),
        )
    words = "Each record’s own loss is private, and is not on this page."
    if manifest["accountant"] is None:
        words = "Nothing was released with noise, so that there are no losses of single records to tell of."
    elif manifest["private"]:
        words += " A histogram of the losses can be released with noise, which costs some epsilon:"
        command = f"linprobe pdp-report {shlex.quote(evidence.name)} --publish-epsilon 0.1"
        return tag("section", title, tag("p", words), tag("pre", tag("code", command)))
    return tag("section", title, tag("p", words))


def _histogram(number: int, histogram: dict[str, Any], release: dict[str, Any]) -> list[Html]:
    edges: list[float] = histogram["bin_edges"]
    counts: list[int] = histogram["noisy_counts"]
    left, right, top, bottom = 56, 345, 12, 200
    lowest, highest = min(0, *counts), max(1, *counts)
    width = (right - left) / len(counts)

    def height(count: float) -> float:
        return bottom - (count - lowest) / (highest - lowest) * (bottom - top)

    label = f"Noisy number of records by their own epsilon, histogram {number}"
    bars = (
        tag(
            "rect",
            x=f"{left + index * width + 1:.1f}",
            y=f"{min(height(count), height(0)):.1f}",
            width=f"{width - 2:.1f}",
            height=f"{abs(height(count) - height(0)):.1f}",
            class_="mark",
        )
        for index, count in enumerate(counts)
    )
    ticks = {0, highest, lowest}
    figure = tag(
        "figure",
        _svg(
            label,
            f"{len(counts)} bars from epsilon 0 to {edges[-1]:.3g}; noise of standard deviation "
            f"{release['noise_multiplier']:.3g} in every count. The numbers are in the table below.",
            245,
            *bars,
            _line([(left, top), (left, bottom)], "axis"),
            _line([(left, height(0)), (right, height(0))], "axis"),
            *(_words(left - 6, height(count) + 4, f"{count:,}", "end") for count in ticks),
            *(
                _words(left + place * (right - left), bottom + 17, f"{place * edges[-1]:.3g}", "middle")
                for place in (0, 0.5, 1)
            ),
            _words((left + right) / 2, bottom + 36, "a record’s own epsilon", "middle"),
            _words(12, (top + bottom) / 2, "records", "middle", transform=f"rotate(-90 12 {(top + bottom) / 2})"),
        ),
    )
    bins = zip(edges, edges[1:], counts, strict=False)
    table = _table(
        label,
        ("own epsilon", "records, noisy"),
        ((f"{low:.3g} to {high:.3g}", f"{count:,}") for low, high, count in bins),
    )
    noise = (
        f"Every count has noise of standard deviation {release['noise_multiplier']:.4g}. The release was charged "
        f"epsilon {release['epsilon']:g}."
    )
    return [figure, tag("p", noise), tag("details", tag("summary", "The same as a table"), table)]


def _attacks(evidence: Evidence) -> Html:
    attacks, manifest = evidence.attacks, evidence.manifest
    rows: list[list[object]] = [["area under the curve (0.5 is guessing)", *(f"{one['auc']:.3f}" for one in attacks)]]
    intervals = ((one["auc_low"], one["auc_high"]) for one in attacks)
    rows.append(["its interval", *("none" if None in ends else "{:.3f} to {:.3f}".format(*ends) for ends in intervals)])
    for rate in ("0.001", "0.01"):
        at = f"at {100 * float(rate):g} % named by mistake"
        rows.append([f"members found {at}", *(_percent(one["tpr_at_fpr"][rate]) for one in attacks)])
        limit = _percent_above(attack_limit(float(rate), manifest)) if manifest["private"] else "anything"
        rows.append([f"the guarantee allows, {at}", *(limit for _ in attacks)])
    rows += [[name.replace("_", "-"), *(f"{one[name]:,}" for one in attacks)] for name in ("members", "non_members")]
    rows.append(["shadow models", *(_given(one["shadows"], "none") for one in attacks)])
    return tag(
        "section",
        tag("h2", "Attacks"),
        tag("p", PRIVATE + ".", class_="private"),
        tag(
            "p",
            "Membership inference, run by the owner on the run’s own private rows: how well can it be told from the "
            "model whether a record was among them? An attack that fails proves nothing; the guarantee bounds every "
            "attack.",
        ),
        _table("What the attacks found", ("figure", *(one["attack"] for one in attacks)), rows),
    )


def _making(manifest: dict[str, Any]) -> Html:
    names = {str(path): Path(path).name for path in (manifest["features"], manifest["public_file"]) if path}
    public_from = manifest["public_from"]
    for path, name in names.items():  # folders are of no use to a reader elsewhere, and tell of the owner's machine
        public_from = public_from.replace(path, name)
    options = {**manifest["options"]}
    if options.get("init"):
        options["init"] = Path(options["init"]).name
    facts = {
        "mechanism": manifest["mechanism"],
        "private rows": f"{manifest['n_private']:,}",
        "public rows": f"{manifest['n_public']:,}, from {public_from}",
        "public shots per class": manifest["public_shots"],
        "split seed": manifest["split_seed"],
        "features": f"{names[manifest['features']]}, {manifest['n_features']:,} a row",
        "backbone": manifest["backbone"] or "not stated",
        "classes": f"{manifest['n_classes']:,}, from: {manifest['class_names_from']}",
        "steps": manifest["steps"],
        "noise multiplier": manifest["noise_multiplier"],
        "sampling rate": manifest["sampling_rate"],
        "source of noise": manifest["noise_source"],
        "kind of seed": manifest["seed_kind"],
        "preset": manifest["preset"],
        "centre": manifest["centre"],
        "created": manifest["created"],
    }
    versions = {**manifest["software"], **manifest.get("accountant_versions", {})}
    return tag(
        "section",
        tag("h2", "How it was made"),
        _table("Run", (), ((name, _given(value, "none")) for name, value in facts.items())),
        _table(
            "Options as given",
            (),
            ((name, _given(value, "not given")) for name, value in options.items()),
        ),
        _table("Software", (), versions.items()),
    )


def _verifying(evidence: Evidence) -> Html:
    manifest = evidence.manifest
    run, version = shlex.quote(evidence.name), manifest["software"]["linprobe"]
    commands = f"pip install linprobe=={version}\nlinprobe verify {run}"
    parts = [
        tag("p", "With the run folder at hand:"),
        tag("pre", tag("code", commands)),
    ]
    if manifest["private_commitment"] is not None:
        parts += [
            tag(
                "p", "Where the private rows and the folder’s private per_record.npz are, the rows can be checked too:"
            ),
            tag("pre", tag("code", f"linprobe verify {run} --features FILE")),
            tag("p", "This page was made without that last check."),
        ]
    parts += [
        tag(
            "p",
            "Verifying recomputes epsilon from the ledger with two accountants and compares all figures and digests. "
            "It catches edits and damage. It does not catch someone who forges ledger, manifest and digests "
            "together, or who did not run an unmodified linprobe: where that matters, ask for a signature of the "
            "manifest.",
        ),
        _table(
            "SHA-256 of the run’s files",
            ("file", "digest"),
            ((name, tag("code", digest)) for name, digest in manifest["files"].items()),
        ),
        tag("p", "Digest of the manifest’s content: ", tag("code", manifest["manifest_digest"])),
    ]
    return tag("section", tag("h2", "How to verify"), *parts)
