"""The tables of this folder: methods, budgets, seeds and rows; and a digest of all that decides their numbers.

`settings_of` states it without the data: the declaration of the table, the plan of each run at the size of the data,
the constants of step sizes and private means, and the length of the weights that a seeded run of each row gives on the
built-in digits. `run.py` writes it into TABLE.json, and a test compares it with what holds today. So a figure that was
measured with other defaults or another algorithm fails, and a refactoring or a new option does not.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from linprobe import options
from linprobe.data.blocks import ArraySource, normalise_rows
from linprobe.data.dataset import Dataset, open_features
from linprobe.data.rows import ArrayRows
from linprobe.evaluation.comparison_plan import PARAGON, PUBLIC_BASELINE, MethodRow
from linprobe.methods import METHODS
from linprobe.methods import _descent as descent
from linprobe.methods.dope_sgd import gaussian_rows
from linprobe.training import plan as plans
from linprobe.training.execute import Trained, execute
from linprobe.training.plan import Settings, make_settings, plan_facts, plan_run

SAMPLED = {"per_record": False}  # tables without per-record figures
DELTA = 1e-5
ALL = slice(None)
TRIAL_SHOTS, TRIAL_SEED, TRIAL_STEPS = 2, 1, 100


def rows(*names: str, **settings: Any) -> list[MethodRow]:
    """Methods by name, all with the same settings."""
    return [MethodRow(name, name, dict(settings)) for name in names]


def ensembles(method: str) -> list[MethodRow]:
    """One method with each way to combine its iterates into a model."""
    kinds = [("last", None), *((kind, size) for kind in ("average", "ema", "vote") for size in (5, 20, 100))]
    return [
        MethodRow(
            f"{method}, {kind}" + ("" if size is None else f" of {size}"),
            method,
            {**SAMPLED, "output": kind} | ({} if size is None else {"ensemble": size}),
        )
        for kind, size in kinds
    ]


@dataclass(frozen=True)
class Data:
    """Size of a feature file, and the start of the digests of its training and test rows."""

    n_rows: int
    n_features: int
    n_classes: int
    digests: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Drawn:
    """Rows of a run in memory: `part` names the column of its table."""

    private: ArraySource
    test: ArraySource
    public: ArraySource | None = None
    text_weights: NDArray[np.float64] | None = None
    part: str = ""


@dataclass(frozen=True)
class Table:
    """Runs of a table.

    Attributes:
        data: name of its rows in `DATA`.
        public: number of public rows from other files. drawn: seed -> rows in memory, in place of a feature file.
        baselines: whether only-public and non-private are trained too.
    """

    methods: list[MethodRow]
    epsilons: tuple[float, ...]
    seeds: int = 3
    shots: tuple[int, ...] = (2,)
    attack: bool = False
    data: str = "flowers102"
    public: int = 0
    drawn: Callable[[int], Iterator[Drawn]] | None = None
    baselines: bool = True


DATA = {
    "digits": Data(1388, 64, 10),
    "flowers102": Data(6552, 1280, 102, ("28507e6836824015", "2afcb6ee63253edd")),
    "flowers102-distinct": Data(6549, 1280, 102, ("d11c91b90559aac7", "2afcb6ee63253edd")),  # each row once
    "flowers102-rest": Data(
        5532, 1280, 102, ("109e336c0358529c", "2afcb6ee63253edd")
    ),  # without the rows whose photographs are public
    "fashion-pixels": Data(60000, 784, 10, ("84429bd55a62621a", "b3f13e4d1ec64fc8")),
    "fashion-scattering": Data(60000, 3969, 10, ("b67019df34204681", "953ea1fcb10e3b96")),  # extracted on a CPU
    "two-clouds": Data(1000, 2, 2),
}
PER_CLASS = (2, 4, 8, 16, 32, 64, 120)  # of the digits
AUGMENTED = 400  # drawn from Gaussians: 20 times the public rows of the digits
SHOTS = (2, 4, 8, 16)  # public rows of each class
OFFSETS = (1, 10, 100, 1000, 10000)  # mu of theorem 3


def digits() -> tuple[ArraySource, ArraySource]:
    """Training and test rows of the built-in digits."""
    with open_features(None) as opened:
        train, test = (
            ArraySource(opened.rows(group, ALL).astype(np.float32), opened.labels(group).astype(np.int64))
            for group in ("train", "test")
        )
    return train, test


def arrays(source: ArraySource) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Raw rows (n, n_features) and labels (n,)."""
    x, y = zip(*source.blocks(), strict=True)
    return np.concatenate(x), np.concatenate(y)


def chosen(rows_of: ArraySource, n: int, seed: int) -> tuple[ArraySource, ArraySource]:
    """`n` rows of each class, chosen by a seed, and the others."""
    x, y = arrays(rows_of)
    order = np.random.default_rng(seed).permutation(len(y))
    places = np.concatenate([order[y[order] == label][:n] for label in range(int(y.max()) + 1)])
    others = np.setdiff1d(order, places)
    return ArraySource(x[places], y[places]), ArraySource(x[others], y[others])


def with_shots(seed: int) -> Iterator[Drawn]:
    """The digits with two public rows of each class."""
    train, test = digits()
    public, private = chosen(train, 2, seed)
    yield Drawn(private, test, public)


def more_shots(seed: int) -> Iterator[Drawn]:
    """The digits with more and more public rows of each class."""
    train, test = digits()
    for n in SHOTS:
        public, private = chosen(train, n, seed)
        yield Drawn(private, test, public, part=f"{n}")


def with_augmented(seed: int) -> Iterator[Drawn]:
    """The digits with two public rows of each class, alone and beside rows drawn from Gaussians around the classes."""
    for drawn in with_shots(seed):
        assert drawn.public is not None
        yield replace(drawn, part="public rows alone")
        x, y = arrays(drawn.public)
        shown = ArrayRows(normalise_rows(x.astype(np.float32)), y)
        more = gaussian_rows(shown, DATA["digits"].n_classes, AUGMENTED)
        public = ArraySource(np.concatenate([shown.x, more.x]), np.concatenate([y, more.y]))
        yield replace(drawn, public=public, part="our augmentation")


def without_public(seed: int) -> Iterator[Drawn]:
    """The digits without public rows."""
    yield Drawn(*digits())


def some_per_class(seed: int) -> Iterator[Drawn]:
    """The digits with a few training rows of each class."""
    train, test = digits()
    for n in PER_CLASS:
        yield Drawn(chosen(train, n, seed)[0], test, part=f"{n}")


def with_encodings(seed: int) -> Iterator[Drawn]:
    """The digits with text weights in the place of a language model: means of two held-out rows, less their mean."""
    train, test = digits()
    held, private = chosen(train, 2, seed)
    x, y = arrays(held)
    means = np.stack([(x[y == label] / norms(x[y == label])).mean(axis=0) for label in range(10)], axis=1)
    means -= means.mean(axis=1, keepdims=True)
    yield Drawn(private, test, text_weights=means / np.linalg.norm(means, axis=0))


def norms(x: NDArray[np.floating]) -> NDArray[np.floating]:
    """The length of each row, shape (n, 1)."""
    return np.asarray(np.linalg.norm(x, axis=1, keepdims=True))


def two_clouds(seed: int) -> Iterator[Drawn]:
    """Theorem 3 of the DPSGD-F paper: x = (mu, y), y = 1 or -1, here with a spread of 0.1 in the second feature."""
    g, n_rows = np.random.default_rng(seed), DATA["two-clouds"].n_rows
    y = np.arange(n_rows) % 2
    for offset in OFFSETS:
        second = [(2 * y - 1) * (1 + 0.1 * g.standard_normal(n_rows)) for _ in range(2)]
        x = [np.stack([np.full(n_rows, offset), one], axis=1).astype(np.float32) for one in second]
        yield Drawn(ArraySource(x[0], y), ArraySource(x[1], y), part=f"{offset}")


PAPER = {**SAMPLED, "preset": "paper"}
ADAMIX = ("fully-private", "ppgd", "ngd", "noisy-gd", "adamix")
RATES, EPOCHS = (0.01, 0.04, 0.16, 0.64, 1.0), 60
EXTENDED = {**SAMPLED, "augment_public": AUGMENTED, "extended": 1.0}
digits_table = partial(Table, data="digits", drawn=with_shots, baselines=False)
CURVES = ("adamix-figure3",)  # tables of per-record epsilons
TABLES = {
    "adamix-table1": Table(rows(*ADAMIX), (1, 3), seeds=5, attack=True),
    "adamix-preset": Table(
        [
            *(MethodRow(name, name, PAPER) for name in ("fully-private", "ppgd", "adamix")),
            MethodRow("fully-private, learning rate 0.02", "fully-private", {**PAPER, "learning_rate": 0.02}),
        ],
        (1, 3),
        baselines=False,
    ),
    "adamix-figure1": Table(rows(*ADAMIX, **SAMPLED), (0.1, 0.25, 0.5, 1, 3, 8), seeds=5),
    "adamix-figure2-left": Table(
        [MethodRow("private", "noisy-gd", SAMPLED), MethodRow("public", PARAGON)],
        (0.25, 1),
        seeds=5,
        shots=(),
        data="digits",
        drawn=some_per_class,
        baselines=False,
    ),
    "adamix-figure2": Table(
        [*rows("noisy-gd", "adamix", **SAMPLED), *rows(PUBLIC_BASELINE)],
        (1, 3),
        shots=(1, 4, 16),
        data="flowers102-distinct",
        baselines=False,
    ),
    "adamix-figure3": Table(rows("fully-private", "noisy-gd", "adamix"), (3,), seeds=3, baselines=False),
    "adamix-figure6": digits_table(rows("adamix", **SAMPLED), (1,)),
    "adamix-figure7": digits_table(
        [MethodRow(f"{level:g}", "adamix", {**SAMPLED, "clip_quantile": level}) for level in (0.1, 0.5, 0.75, 0.9, 1)],
        (0.25, 1),
        seeds=10,
    ),
    "adamix-figure8": digits_table(
        [
            MethodRow(f"{method}, sigma {sigma:g}", method, {**SAMPLED, "sigma": sigma})
            for method in ("ngd", "adamix")
            for sigma in (2.5, 5, 10, 20, 40)
        ],
        (3,),
        seeds=5,
    ),
    "adamix-attack": Table(rows("adamix", **SAMPLED), (8, 100), attack=True, baselines=False),  # table 1 has 1 and 3
    "adamix-figure4": Table(
        [
            MethodRow("noisy-gd from text", "noisy-gd", {**SAMPLED, "init": "text"}),
            MethodRow("noisy-gd from zero", "noisy-gd", {**SAMPLED, "init": "zero"}),
            MethodRow("text alone", "zero-shot"),
        ],
        (0.1, 0.25, 1),
        seeds=10,
        shots=(),
        data="digits",
        drawn=with_encodings,
        baselines=False,
    ),
    "dope-table1": Table(
        [
            MethodRow("dp-sgd, cold", "dp-sgd", {**SAMPLED, "init": "zero"}),
            MethodRow("dp-sgd, warm", "dp-sgd", SAMPLED),
            MethodRow("dope-sgd", "dope-sgd", SAMPLED),
            MethodRow("dope-sgd, augmented", "dope-sgd", {**SAMPLED, "augment_public": AUGMENTED}),
            MethodRow("dope-sgd, extended", "dope-sgd", EXTENDED),
            MethodRow("dope-sgd, ensemble", "dope-sgd", {**EXTENDED, "output": "vote", "ensemble": 20}),
        ],
        (0.25, 1),
        seeds=10,
        data="digits",
        drawn=with_shots,
    ),
    "dope-algorithm1": digits_table(
        [
            MethodRow(f"{name}, {start}", method, {**SAMPLED, **settings, "init": init})
            for start, init in (("cold", "zero"), ("warm", "public"))
            for name, method, settings in (
                ("dp-sgd", "dp-sgd", {}),
                ("origin from public rows", "dope-sgd", {}),
                ("origin from history", "dope-sgd", {"origin": "history"}),
            )
        ],
        (0.25, 1),
        seeds=5,
    ),
    "dope-table4": Table(
        [MethodRow("dope-sgd", "dope-sgd", SAMPLED), MethodRow("dope-sgd, extended", "dope-sgd", EXTENDED)],
        (0.25, 1),
        seeds=5,
        data="digits",
        drawn=more_shots,
        baselines=False,
    ),
    "dope-table5": digits_table(
        [
            MethodRow(f"{n}", "dope-sgd", {**SAMPLED, "augment_public": n, "extended": 1.0})
            for n in (0, 50, 100, 200, 400, 800)
        ],
        (0.25, 1),
        seeds=10,
    ),
    "dope-augmentation": Table(
        rows("dp-sgd", "mirror-descent", "adadps", "dope-sgd", **SAMPLED),
        (0.25, 2, 4, 6),
        seeds=5,
        data="digits",
        drawn=with_augmented,
        baselines=False,
    ),
    "convergence": Table(
        [*rows("noisy-gd", "dp-sgd", **SAMPLED), *rows(PARAGON)],
        (0.1, 0.25, 0.5, 1, 3, 8, 30, 100),
        seeds=5,
        shots=(),
        data="digits",
        drawn=without_public,
        baselines=False,
    ),
    "dope-figure2": digits_table(rows("dp-sgd", "dope-sgd", **SAMPLED, optimizer="sgd"), (1,)),
    "dope-table3": Table(rows("dp-sgd", "mirror-descent", "adadps", "dope-sgd", **SAMPLED), (2, 4, 6)),
    "dope-figure4": Table(ensembles("dp-sgd"), (2,)),
    "scattering": Table(
        rows("noisy-gd", "dp-sgd", "dpsgd-f", **SAMPLED),
        (3,),
        seeds=5,
        shots=(),
        data="fashion-scattering",
        baselines=False,
    ),
    "dp-transfer": Table(
        rows("noisy-gd", "dp-fc", "dp-ls", **SAMPLED),
        (0.5, 1, 3, 8),
        seeds=5,
        shots=(),
        data="fashion-pixels",
        baselines=False,
    ),
    # settings chosen on the test rows, as in the paper
    "dpsgdf-table1": Table(
        [
            MethodRow("dp-sgd", "dp-sgd", {**SAMPLED, "steps": 400, "clip_norm": 0.1, "score_noise": 2.5}),
            MethodRow("dpsgd-f", "dpsgd-f", {**SAMPLED, "steps": 400}),
        ],
        (1, 2),
        shots=(),
        data="fashion-pixels",
    ),
    "dpsgdf-theorem3": Table(
        [
            MethodRow("dp-sgd", "dp-sgd", {**SAMPLED, "condition": "none", "intercept": 0.0}),
            MethodRow("dp-sgd around a private mean", "dp-sgd", SAMPLED),
            MethodRow("dpsgd-f", "dpsgd-f", SAMPLED),
            MethodRow("dpsgd-f, variant theory", "dpsgd-f", {**SAMPLED, "variant": "theory"}),
        ],
        (1,),
        shots=(),
        seeds=10,
        data="two-clouds",
        drawn=two_clouds,
        baselines=False,
    ),
    "large-rates": Table(
        [
            MethodRow(f"{rate:g}", "dp-sgd", {**SAMPLED, "sampling_rate": rate, "steps": round(EPOCHS / rate)})
            for rate in RATES
        ],
        (0.25, 1),
        shots=(),
        data="digits",
        drawn=without_public,
        baselines=False,
    ),
    "domain-shift": Table(rows("noisy-gd", "adamix", **SAMPLED), (1, 3), shots=(), data="flowers102-rest", public=204),
}


def digest(facts: object) -> str:
    """The first 16 digits of the SHA-256 of JSON-ready facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def settings_of(name: str) -> dict[str, Any]:
    """What decides the numbers of a table: three digests, and the length of the weights of each row's trial."""
    table = TABLES[name]
    trials = {
        row.name: trial(row.method, tuple(sorted(row.settings.items())), table.epsilons[0], _has_public(table))
        for row in _trained(table)
    }
    return {**digests_of(name), "trial": trials}


def digests_of(name: str) -> dict[str, str]:
    """The settings of a table without a run: digests of its declaration, of its plans and of constants."""
    table = TABLES[name]
    declared = [name, *([row.name, row.method, row.settings] for row in table.methods), table.epsilons, table.seeds]
    declared += [table.shots, table.attack, table.data, table.public, table.baselines]
    declared += [] if table.drawn is None else [inspect.getsource(table.drawn)]
    return {
        "declaration": digest(declared),
        "plans": digest([_plan(row, table.epsilons[0], table) for row in _trained(table)]),
        "constants": digest([_numbers(descent), _of_centring()]),
    }


def _has_public(table: Table) -> bool:
    return bool(table.shots or table.public)


def _trained(table: Table) -> list[MethodRow]:
    """The rows of a table, and its baselines."""
    baselines = (PARAGON, *[PUBLIC_BASELINE][: _has_public(table)]) if table.baselines else ()
    return [*table.methods, *rows(*baselines)]


def fitted(row: MethodRow, epsilon: float, dataset: Dataset, **seed: Any) -> Trained:
    """A run on rows in memory, with fresh noise or that of a seed."""
    return execute(plan_run(run_settings(row, epsilon, **seed), dataset), dataset)


def run_settings(row: MethodRow, epsilon: float, **seed: Any) -> Settings:
    """The settings of a run of `train` at this epsilon."""
    budget = {"epsilon": epsilon, "delta": DELTA, **seed} if METHODS[row.method].spends else {}
    return make_settings(row.request(**budget), METHODS[row.method])


def dataset_of(
    row: MethodRow,
    private: ArraySource,
    public: ArraySource | None,
    data: Data,
    text: NDArray[np.float64] | None = None,
) -> Dataset:
    """Rows in memory; a method that needs text weights gets random ones if there are none."""
    method = METHODS[row.method]
    with_text = row.settings.get("init") == "text" or "text" in method.needs
    if with_text and text is None:
        text = np.random.default_rng(0).standard_normal((data.n_features, data.n_classes))
    return Dataset(private, data.n_classes, public, text if with_text else None, joined=method.joins_public)


def _plan(row: MethodRow, epsilon: float, table: Table) -> Any:
    """The plan of a run on rows of the table's size; noise is rounded to what other processors compute too."""
    data, shots = DATA[table.data], max(table.shots, default=0)
    n_public = table.public or shots * data.n_classes
    n_private = data.n_rows - shots * data.n_classes
    private = ArraySource(
        np.broadcast_to(np.float32(0), (n_private, data.n_features)), np.zeros(n_private, dtype=np.int64)
    )
    public = None
    if n_public:
        x = np.random.default_rng(0).standard_normal((n_public, data.n_features), dtype=np.float32)
        public = ArraySource(x, np.arange(n_public) % data.n_classes)
    plan = plan_run(run_settings(row, epsilon), dataset_of(row, private, public, data))
    if plan.budget is None:
        return [row.name, plan.centre]
    facts = plan_facts(plan.budget)
    releases = [
        [one["purpose"], float(f"{one['noise_multiplier']:.5g}"), one["sampling_rate"], one["count"]]
        for one in facts["releases"]
    ]
    momentum = 0.0
    if plan.method.has_momentum(plan.settings.options):
        size = SimpleNamespace(
            private_rows=SimpleNamespace(n_rows=plan.n_units),
            n_classes=data.n_classes,
            centred=plan.centre != "none",
            several_labels=False,
        )
        momentum = descent.Pace.of(plan.settings.options, size, plan.schedule, informed=bool(n_public)).momentum
    return [row.name, plan.centre, facts["steps"], float(f"{momentum:.5g}"), releases]


@cache
def trial(method: str, settings: tuple[tuple[str, Any], ...], epsilon: float, has_public: bool) -> float:
    """Length of the weights that a seeded run on the digits gives, to 4 digits."""
    fewer = {name: min(value, TRIAL_STEPS) if name == "steps" else value for name, value in settings}
    row = MethodRow(method, method, fewer)
    x, y = load_digits(return_X_y=True)
    x, y = x.astype(np.float32), y.astype(np.int64)
    places = np.concatenate([np.flatnonzero(y == label)[:TRIAL_SHOTS] for label in range(10)])
    keep = np.ones(len(y), dtype=bool)
    keep[places] = not has_public
    public = ArraySource(x[places], y[places]) if has_public else None
    dataset = dataset_of(row, ArraySource(x[keep], y[keep]), public, DATA["digits"])
    trained = fitted(row, epsilon, dataset, noise_seed=TRIAL_SEED, insecure_seed=True)
    return float(f"{np.linalg.norm(trained.weights):.4g}")


def _of_centring() -> dict[str, float]:
    """The constants of a private mean that plans do not show."""
    return {"SHARE": plans.MEAN_SHARE, "SHORTEST_MEAN": plans.SHORTEST_MEAN}


def _numbers(module: Any) -> dict[str, float]:
    """The constants of a module that are numbers; those of `linprobe.options` show in the plans."""
    named = {name: value for name, value in vars(module).items() if name.isupper() and not hasattr(options, name)}
    return {name: value for name, value in named.items() if isinstance(value, int | float)}
