"""Edits of a run folder that a forger reseals: each is refused, or `verify` lists what was edited."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linprobe.options.requests import VerifyRequest
from linprobe.runs.check import verify_run
from linprobe.runs.manifest import NOISY_TEST, PROVED, VERIFY_PAGE, Manifest
from tests.cli import test_report_check
from tests.conftest import mostly_nightly
from tests.hostile.mutations import KINDS, Mutation, judged
from tests.hostile.officer import Officer, officer
from tests.hostile.runs import ABSENT, as_one_run, charged, charged_selection, sealed

SAMPLE = 3  # mutations of each kind of run
BY_DAY = (*test_report_check.ALIKE, "release", "seeded")  # the page; it judges the other kinds beside their reports
NOT_PRIVATE = ("seeded", "not private")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Officer]:
    """The check of `verify.html`."""
    with officer(tmp_path_factory.mktemp("page")) as found:
        yield found


def _sample(mutations: list[Mutation]) -> list[Mutation]:
    if os.environ.get("LINPROBE_MUTATIONS") == "all":
        return mutations
    places = np.random.default_rng(37).choice(len(mutations), SAMPLE, replace=False)
    return [mutations[place] for place in places]


@pytest.mark.parametrize("kind", mostly_nightly([*KINDS, *NOT_PRIVATE], BY_DAY.__contains__))
def test_the_page_finds_each_kind_of_run_as_private_as_verify_does(
    kinds: dict[str, Path], page: Officer, kind: str
) -> None:
    found, result = page.run(kinds[kind]), verify_run(VerifyRequest(run=kinds[kind]))
    assert "refused" not in found, found
    assert found["private"] == result["private"] == (kind not in NOT_PRIVATE)
    if result["private"]:
        stated = Manifest.read((kinds[kind] / "manifest.json").read_bytes()).epsilon
        assert found["epsilon"] == stated or (found["epsilon"] > stated and "Renyi" in "".join(found["opinion"]))


def _asked(page: Officer, answers: list[dict[str, Any]], mutation: Mutation) -> Mutation:
    """The mutation, with a question to the page about its result."""

    def make(run: Path) -> None:
        mutation.make(run)
        answers.append({"link": True} if any(path.is_symlink() for path in run.iterdir()) else page.run(run))

    return mutation._replace(make=make)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutation_is_refused_or_listed(kinds: dict[str, Path], page: Officer, kind: str) -> None:
    """Whatever `verify` refuses, the page refuses too."""
    answers: list[dict[str, Any]] = []
    found = list(judged(kinds[kind], lambda every: [_asked(page, answers, one) for one in _sample(every)]))
    assert [mutation.name for mutation, outcome in found if outcome == "missed"] == []
    assert any(outcome == "refused" for _, outcome in found)
    # a browser follows links; whether a page beside the run is this one is said to be stated only
    assert [
        mutation.name
        for (mutation, outcome), answer in zip(found, answers, strict=True)
        if outcome == "refused" and not {"refused", "link"} & answer.keys() and mutation.touches != VERIFY_PAGE
    ] == []


def _edits() -> list[Mutation]:
    """Edits of several places, or to a value that only this key may have."""

    def array(run: Path) -> None:
        with np.load(run / "model.npz") as archive:
            arrays = dict(archive)
        np.savez(run / "model.npz", **arrays, rows=np.ones((9, 10)))
        sealed(run)

    tuning = {"factors": [0.5, 1.0], "shrink": 1.0, "counts": [3.0, 4.0], "std": 1.0}
    return [
        Mutation("centre is private", "", lambda run: sealed(run, centre="private")),
        Mutation("test_rows are private", "", lambda run: sealed(run, test_rows="private")),
        Mutation("tuning without a release", "", lambda run: sealed(run, tuning=tuning)),
        Mutation("a third array", "", array),
    ]


def test_what_needs_a_release_is_refused_without_it(kinds: dict[str, Path]) -> None:
    found = {mutation.name: outcome for mutation, outcome in judged(kinds["plain"], lambda _: _edits())}
    assert found == dict.fromkeys(found, "refused")
    assert len(found) == len(_edits())


def _rate(purpose: str, rate: float) -> Callable[[dict[str, Any]], None]:
    def change(line: dict[str, Any]) -> None:
        line["sampling_rate"] = rate if line["purpose"] == purpose else line["sampling_rate"]

    return change


def _without(purpose: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: bool(line["purpose"] != purpose)


def _same(line: dict[str, Any]) -> None:
    """No change."""


def _setting(run: Path, **changes: Any) -> None:
    sealed(run, tuning={**json.loads((run / "manifest.json").read_text())["tuning"], **changes})


def _worst(run: Path) -> None:
    tuning = json.loads((run / "manifest.json").read_text())["tuning"]
    _setting(run, shrink=tuning["factors"][int(np.argmin(tuning["counts"]))])


def _counts(run: Path) -> None:
    counts = json.loads((run / "manifest.json").read_text())["class_counts"]
    sealed(run, class_counts={**counts, "by_class": dict.fromkeys(counts["by_class"], 1e9)})


def _near(run: Path) -> None:
    refined = json.loads((run / "manifest.json").read_text())["refined"]
    sealed(run, refined={**refined, "similar": {**refined["similar"], "count": -1e9}})


def _unpaid(run: Path) -> None:
    """A second histogram, which the manifest lists among the files alone."""
    files = json.loads((run / "manifest.json").read_text())["files"]
    sealed(run, files={**files, "published_histogram_2.json": files["published_histogram_1.json"]})
    shutil.copy(run / "published_histogram_1.json", run / "published_histogram_2.json")


def _price(run: Path) -> None:
    (published,) = json.loads((run / "manifest.json").read_text())["published"]
    sealed(run, published=[{**published, "epsilon": 0.0}])


def _test_accuracy_twice(run: Path) -> None:
    path = run / "test_figures.json"
    path.write_text(path.read_text().replace('"test_accuracy"', '"test_accuracy": 1.0, "test_accuracy"', 1))
    sealed(run)


def _figure(key: str, value: Any) -> Callable[[Path], None]:
    """Test figures with another value of the first class."""

    def change(run: Path) -> None:
        path = run / "test_figures.json"
        figures = json.loads(path.read_text())
        next(iter(figures.get("per_class", figures.get("per_label")).values()))[key] = value
        path.write_text(json.dumps(figures))
        sealed(run)

    return change


def _commonest(run: Path) -> None:
    path = run / "test_figures.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commonest_share": 1.0}))
    sealed(run)


def _edge(text: str) -> Callable[[Path], None]:
    """A published histogram whose first edge is this text."""

    def change(run: Path) -> None:
        path = run / "published_histogram_1.json"
        path.write_text(re.sub(r'(?<="bin_edges": \[)\s*[^,]+', text, path.read_text()))
        sealed(run)

    return change


def _half_a_row(run: Path) -> None:
    path = run / "published_histogram_1.json"
    histogram = json.loads(path.read_text())
    path.write_text(json.dumps({**histogram, "noisy_counts": [0.5, *histogram["noisy_counts"][1:]]}))
    sealed(run)


def _content(run: Path) -> None:
    (run / "published_histogram_1.json").write_text("[]")
    sealed(run)


def _more(value: str, key: str) -> Callable[[Path], None]:
    """A published histogram with one more key."""

    def change(run: Path) -> None:
        path = run / "published_histogram_1.json"
        path.write_text(f'{{"{key}": {value}, {path.read_text().lstrip()[1:]}')
        sealed(run)

    return change


def _little(run: Path) -> None:
    sealed(run, test_accuracy=json.loads((run / "manifest.json").read_text())["test_accuracy"] - 1e-10)


def _without_counts(run: Path) -> None:
    """An invented accuracy on private test rows, which no count contradicts."""
    absent = dict.fromkeys(("test_counts", "test_scores", "test_macro_auroc_std"), ABSENT)
    charged(run, _without("test AUROC"), test_accuracy=1.0, test_accuracy_std=1e-3, test_macro_auroc=None, **absent)


def _tuned(run: Path) -> None:
    std = json.loads((run / "manifest.json").read_text())["tuning"]["std"]
    _setting(run, std=float(np.nextafter(std, np.inf)))


def _selection(change: Callable[[dict[str, Any]], bool | None]) -> Callable[[Path], None]:
    """A change of every release of a selection, in place; False leaves the release out."""
    return lambda run: charged_selection(
        run, lambda runs: [[one for one in each if change(one) is not False] for each in runs]
    )


def _second(**second: Any) -> Callable[[Path], None]:
    """A selection with a second run: of each purpose, the release of the first with other figures, or None for none."""

    def change(runs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        changed = [(one, second.get(one["purpose"], {})) for one in runs[0]]
        return [runs[0], [{**one, **figures} for one, figures in changed if figures is not None]]

    return lambda run: charged_selection(run, change)


def _mean_of_another(run: Path) -> None:
    """The mean that centred the rows only in a second run, whose steps cost next to nothing."""
    steps = {"gradient": {"noise_multiplier": 1e6}}

    def change(runs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        first = [one for one in runs[0] if one["purpose"] != "mean"]
        return [first, [{**one, **steps.get(one["purpose"], {})} for one in runs[0]]]

    charged_selection(run, change)


def _added(purpose: str) -> Callable[[Path], None]:
    release = {"purpose": purpose, "noise_multiplier": 99.0, "sampling_rate": 1.0, "count": 1}
    return lambda run: charged_selection(run, lambda runs: [[*each, release] for each in runs])


def _more_settings(*settings: dict[str, Any]) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        _setting(run, settings=[*json.loads((run / "manifest.json").read_text())["tuning"]["settings"], *settings])

    return change


def _offered(**options: Any) -> Callable[[Path], None]:
    """Other options in each setting of a grid; a number becomes true only where it is 1."""

    def change(run: Path) -> None:
        settings = json.loads((run / "manifest.json").read_text())["tuning"]["settings"]
        for setting in settings:
            setting.update({key: value for key, value in options.items() if value is not True or setting[key] == 1})
        _setting(run, settings=settings)

    return change


def _options(run: Path, **changes: Any) -> dict[str, Any]:
    return {**json.loads((run / "manifest.json").read_text())["options"], **changes}


def _true(option: str) -> Callable[[Path], None]:
    return lambda run: sealed(run, options=_options(run, **{option: True}))


def _without_clip_norms(run: Path) -> None:
    """Steps of half the sensitivity, in a history without clip norms."""
    rows = [line.split(",") for line in (run / "history.csv").read_text().splitlines()]
    place = rows[0].index("clip_norm")
    (run / "history.csv").write_text("".join(",".join(row[:place] + row[place + 1 :]) + "\n" for row in rows))
    charged(run, lambda line: line.update(sensitivity=0.5) if line["purpose"] == "gradient" else None)


def _without_losses(run: Path) -> None:
    (run / "per_record.npz").unlink()
    sealed(run, per_record_commitment=None)


def _one_of_n(run: Path) -> None:
    charged(run, _same, delta=2**-9, options=_options(run, delta=2**-9), n_private=2**9, n_units=2**9)


def _type(run: Path) -> None:
    with np.load(run / "model.npz") as archive:
        np.savez(run / "model.npz", **{name: archive[name].astype(np.float64) for name in archive.files})
    sealed(run)


FORGED: dict[str, tuple[str, Callable[[Path], None]]] = {  # kind of run, and what contradicts its method
    "steps on samples": ("plain", lambda run: charged(run, _rate("gradient", 0.01))),
    "counts on samples": ("class counts", lambda run: charged(run, _rate("class counts", 1e-4))),
    "test rows on samples": ("private test rows", lambda run: charged(run, _rate("test accuracy", 1e-4))),
    "choice on samples": ("shrunk", lambda run: charged(run, _rate("selection", 1e-4))),
    "histogram on samples": ("histogram", lambda run: charged(run, _rate("histogram", 1e-4))),
    "no covariance": ("covariance", lambda run: charged(run, _without("covariance"))),
    "no private unit": ("plain", lambda run: charged(run, _same, n_private=0, n_units=0)),
    "less than samples cost": ("sampled", lambda run: charged(run, _same, epsilon=0.01, epsilon_target=0.01)),
    "public rows from nowhere": ("sampled", lambda run: sealed(run, public_from="nowhere", n_public=9)),
    "public rows without a digest": ("sampled", lambda run: sealed(run, public_digest=None)),
    "a factor that was not the best": ("shrunk", _worst),
    "a setting that was not offered": ("selected", lambda run: _setting(run, chosen=99)),
    "a setting of another method": ("selected", lambda run: _setting(run, settings=[{"method": "ngd"}], chosen=0)),
    "a noise that the run does not have": ("selected", lambda run: _setting(run, settings=[{"sigma": 99.0}], chosen=0)),
    "a setting without a run": ("selected", _more_settings({"method": "dp-fc"})),
    "a setting of an unknown method": ("selected", _more_settings({"method": []})),
    "a setting without releases": ("selected", _more_settings({"method": "only-public"})),
    "a setting with an unknown option": ("selected", _offered(n_steps_=99)),
    "a setting with an option of another method": ("selected", _offered(momentum=0.5)),
    "a setting with true for a number": ("selected", _offered(clip_norm=True)),
    "true for a number": ("plain", _true("weight_decay")),
    "selected with true for a number": ("selected", _true("clip_norm")),
    "selected steps on samples": ("selected", _selection(_rate("gradient", 0.05))),
    "selected without covariance": ("selected with covariance", _selection(_without("covariance"))),
    "selected beside a mean": ("selected", _added("mean")),
    "selected with the mean of another run": ("selected", _mean_of_another),
    "selected beside unknown releases": ("selected", _added("word")),
    "selected beside a second kind of steps": ("selected", _added("gradient")),
    "a run of the grid with fewer steps": ("selected", _second(gradient={"count": 1})),
    "a run of the grid without a choice": ("selected", _second(selection=None, gradient={"noise_multiplier": 99.0})),
    "a run of the grid with a noisier choice": ("selected", _second(selection={"noise_multiplier": 1e6})),
    "a choice without factors": ("selected", lambda run: _setting(run, factors=[], counts=[])),
    "a grid as one run": ("selected", as_one_run),
    "no private mean": ("moved to a private mean", lambda run: charged(run, _without("mean"))),
    "a histogram for nothing": ("histogram", _price),
    "a histogram that no release paid for": ("histogram", _unpaid),
    "a histogram of nothing": ("histogram", _content),
    "a histogram with another key": ("histogram", _more("[1, 2]", "rows")),
    "a histogram with a key twice": ("histogram", _more("[1, 2]", "what")),
    "a histogram from no number on": ("histogram", _edge("NaN")),
    "a histogram from infinity on": ("histogram", _edge("1e999")),
    "a histogram from text on": ("histogram", _edge('"0.0"')),
    "a histogram with half a row": ("histogram", _half_a_row),
    "a precision of nothing": ("plain", _figure("precision", 0.123)),
    "a precision without an interval": ("plain", _figure("precision_interval", None)),
    "an interval of other rows": ("plain", _figure("recall_interval", [0.1, 0.9])),
    "an interval with one end": ("plain", _figure("recall_interval", [0.1])),
    "predictions of other rows": ("plain", _figure("predicted", 10**6)),
    "a precision of a label of nothing": ("several labels", _figure("precision", 0.123)),
    "an interval of a label of other rows": ("several labels", _figure("accuracy_interval", [0.1, 0.9])),
    "another majority class": ("plain", _commonest),
    "test figures with a key twice": ("plain", _test_accuracy_twice),
    "an accuracy off by 1e-10": ("private test rows", _little),
    "an accuracy without counts": ("private test rows", _without_counts),
    "a choice with the next noise": ("shrunk", _tuned),
    "weights in float64": ("plain", _type),
    "more rows than there are": ("class counts", _counts),
    "more near rows than there are": ("refined", _near),
    "hour 24": ("plain", lambda run: sealed(run, created="2026-11-27T24:00:00+00:00")),
    "steps without clip norms": ("plain", _without_clip_norms),
    "no commitment to the private rows": ("plain", lambda run: sealed(run, private_commitment=None)),
    "no commitment to the losses": ("plain", _without_losses),
    "a delta of 1/N": ("plain", _one_of_n),
    "more than the ledger costs": ("plain", lambda run: charged(run, _same, epsilon=10.0, epsilon_target=10.0)),
    "an epsilon above its target": ("plain", lambda run: sealed(run, epsilon_target=1.0)),
    "a private run with a seed": ("plain", lambda run: sealed(run, options=_options(run, insecure_seed=7))),
    "a week": ("plain", lambda run: sealed(run, created="2026-W48-5")),
}


ALIKE = ("counts on samples", "test rows on samples", "choice on samples", "histogram on samples")


@pytest.mark.parametrize("name", mostly_nightly(FORGED, lambda name: name not in ALIKE))
def test_what_contradicts_the_method_is_refused_by_verify_and_by_the_page(
    kinds: dict[str, Path], page: Officer, tmp_path: Path, name: str
) -> None:
    kind, forge = FORGED[name]
    run = shutil.copytree(kinds[kind], tmp_path / "run")  # which both accept, as is tested above
    forge(run)
    assert not verify_run(VerifyRequest(run=run))["verified"]
    assert "refused" in page.run(run)


NAMED = (
    "ledger.jsonl line 0 sensitivity tiny", "ledger.jsonl line 1 step negative", "ledger.jsonl line 2 extra",
    "ledger.jsonl line 0 with a key twice", "history.csv line 1 column 1 b'7.5'", "history.csv without line 3",
    "model.npz bytes before", "model.npz bytes after", "README.md removed",
)  # fmt: skip


def test_edits_that_version_0_2_accepted_are_refused(kinds: dict[str, Path]) -> None:
    found = {
        mutation.name: outcome
        for mutation, outcome in judged(kinds["signed"], lambda every: [one for one in every if one.name in NAMED])
    }
    assert found == dict.fromkeys(NAMED, "refused")


@pytest.mark.parametrize("key", NOISY_TEST)
def test_a_key_of_noisy_test_figures_is_stated_only_where_test_rows_are_private(
    kinds: dict[str, Path], key: str
) -> None:
    for kind in ("plain", "several labels", "private test rows"):
        listed = verify_run(VerifyRequest(run=kinds[kind]))["stated_not_checked"]
        assert (key in listed) == (kind == "private test rows" and key not in PROVED)
