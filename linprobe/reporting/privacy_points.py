"""The points of NIST SP 800-226 (2025) on evaluating differential privacy guarantees, answered for a run.

`docs/privacy.md` gives the reasons. The model card and the registry entry of a release quote these answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linprobe.accounting.events import Releases
from linprobe.accounting.figures import gaussian_words, rounded_up
from linprobe.accounting.selection import SelectionEvent
from linprobe.runs import units


def unit_of(manifest: dict[str, Any]) -> str:
    """The unit of privacy, in words."""
    if units.unit_of(manifest) == units.OWNER:
        return "one person: all private rows of that person together"
    return "one record: one row of features, made from one image where the rows come from images"


def data_of(manifest: dict[str, Any]) -> str:
    """The private rows that were used, in words; the number of rows of people is private."""
    if units.unit_of(manifest) == units.OWNER:
        return f"the private rows of {manifest['n_private']} people"
    return f"{manifest['n_private']} private rows"


def releases_of(manifest: dict[str, Any]) -> list[Releases]:
    """Everything in the ledger, with equal releases counted together; empty for a run that used no private row."""
    return [Releases(**release) for release in manifest["releases"] or ()]


def composition_of(manifest: dict[str, Any]) -> str:
    """What was composed, and by which accountants."""
    if "selection" in manifest:
        event = SelectionEvent.from_dict(manifest["selection"])
        runs = ", or ".join(dict.fromkeys(_listed(run) for run in event.runs))
        return (
            f"private selection of the best of a geometric number of runs, {event.mean_repetitions} on average. One "
            f"accountant ({manifest['accountant']}) bounds the selection as a whole, with the runs that were dropped; "
            f"the Gaussian releases of one run are {runs}. A second one ({manifest['cross_check']}) checks it"
        )
    releases = releases_of(manifest)
    if not releases:
        return "nothing was released from private rows"
    return (
        f"one accountant ({manifest['accountant']}) composes all Gaussian releases of the run: {_listed(releases)}. A "
        f"second one ({manifest['cross_check']}) checks it"
    )


def _listed(releases: Sequence[Releases]) -> str:
    return "; ".join(
        f"{release.count} of purpose {release.purpose!r} with noise multiplier {release.noise_multiplier:g} and "
        f"sampling rate {release.sampling_rate:g}"
        for release in releases
    )


def tuning_of(manifest: dict[str, Any]) -> str:
    """What the figures cover of the choice of options."""
    if "selection" in manifest:
        chosen = "options were chosen on these rows by private selection, whose cost is in this figure"
        return f"{chosen}. Other runs on the same rows are not: they add to it"
    return TUNING


def parameters_of(manifest: dict[str, Any]) -> str:
    """Epsilon, delta and, where they exist, mu and rho, rounded up."""
    figures = gaussian_words(manifest["gdp_mu"], manifest["zcdp_rho"])
    return f"epsilon {rounded_up(manifest['epsilon'])}, delta {rounded_up(manifest['delta'])}; {figures}"


def unprotected_of(manifest: dict[str, Any]) -> str:
    """What the guarantee does not cover, in words."""
    return "; ".join(manifest["public"])


FLOATING_POINT = (
    "covered: every released number is the rounding of the sum plus a real Gaussian, and rounding cannot raise the "
    "share of one record in a sum above its clip norm. The proof rests on a measured bound on the error of one function"
)
TIMING = (
    "not covered: the time of a training run may depend on the private rows; only the owner of the rows may time it"
)
RANDOMNESS = "ChaCha20 with a fresh 256-bit key from the operating system for every run, and a new nonce for every draw"
TUNING = (
    "the defaults of linprobe were set without these rows. Other runs on the same rows, also those that were tried and "
    "dropped, are not in this figure: they add to it"
)
ACCESS = (
    "the rows, the feature file and each record's own loss stay with the owner, in files that only the owner can read; "
    "linprobe neither encrypts them nor logs who reads them. They are not in this folder"
)
TRUST = (
    "central: the owner of the rows runs linprobe and is trusted with them. Nobody else is, among them everyone who "
    "sees this folder and knows all other records"
)
COLLECTION = (
    "the guarantee begins at the file of features; it does not cover how rows were collected, nor a network that was "
    "itself trained on private images"
)


def points(manifest: dict[str, Any]) -> Sequence[tuple[str, str]]:
    """Title and answer of each point, for a verified run that is private."""
    per_class = "the accuracy of every class is in this card" if manifest["test_accuracy_per_class"] else "not measured"
    return (
        ("Privacy parameters and variant", f"approximate differential privacy: {parameters_of(manifest)}"),
        ("Unit of privacy", f"{unit_of(manifest)}; {manifest['adjacency']}"),
        ("Total budget and composition", f"{composition_of(manifest)}. Runs in other folders add to it"),
        ("Mechanism", f"{manifest['mechanism']}; {RANDOMNESS}"),
        ("Trust model", TRUST),
        ("Data collection", COLLECTION),
        ("Side channels: floating point", FLOATING_POINT),
        ("Side channels: time", TIMING),
        ("Side channels: messages", "not covered: what the owner saw on the terminal is not part of this folder"),
        ("Security and access", ACCESS),
        ("Utility", "noise and clipping lower accuracy; the figures are in this card"),
        ("Bias", f"small classes lose most, because noise does not shrink with a class; {per_class}"),
        ("Tuning of hyper-parameters", tuning_of(manifest)),
        ("What is not protected", unprotected_of(manifest)),
        ("Inference about groups", "what is true of many records, such as the look of a class, is learnt, by purpose"),
    )
