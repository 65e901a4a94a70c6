"""Write the tables of the pages in `PAGES`, and `manifest.schema.json`: `python docs/generate_tables.py`.

A table stands between two comments that name it. A test compares the pages with `render`, and the schema with `schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from math import ceil, exp
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.stats import norm

from linprobe.accounting.accountants import ACCOUNTANTS, tpr_limit
from linprobe.accounting.events import UNITS
from linprobe.accounting.figures import largest_mu
from linprobe.atomic_files import json_text
from linprobe.mechanisms.noise import INSECURE, SECURE
from linprobe.methods import CHOICES, METHODS, Method, choose
from linprobe.options import METHOD_OPTIONS
from linprobe.options.declaration import Option, arguments_of, declared, estimator_name
from linprobe.runs.guarantee import (
    ADJACENCIES,
    PROTECTED,
    SELECTION_CROSS_CHECK,
    WITH_FIRST,
    mechanism_text,
    selection_accountant_text,
    selection_mechanism_text,
    without_noise,
)
from linprobe.runs.manifest import json_schema
from linprobe.runs.release_rules import FACTS

DOCS = Path(__file__).parent
SCHEMA = DOCS / "manifest.schema.json"
ATTACKED = (0.1, 0.5, 1, 2, 3, 5, 8, 10)  # epsilons of the table of attacks
FALSE_ALARMS = (0.01, 0.001)
DELTA = 1e-5
SHOWN = (0.5, 1.0, 3.0)  # epsilons of the tables of methods
RARE = ("abalone-19", "page-blocks", "shuttle")  # held-out data sets with a rare class
REFERENCES = {  # of the benchmark of a step
    "plain_matmul_float32": "a direct implementation in NumPy, without noise",
    "opacus_ghost": "Opacus with ghost clipping",
    "opacus_hooks": "Opacus with per-example gradients",
    "jax_privacy": "JAX Privacy",
    "limit_float32": "the machine's limit: the slower of reading the rows once and multiplying",
}
GROUPS: dict[str, Callable[[Method], bool]] = {  # of classes, in the table of arguments
    "all with epsilon": lambda method: method.spends,
    "all with Poisson samples": lambda method: method.samples,
}
FIT_NEEDS = {"public": "`X_public`, `y_public`", "text": "`text_weights`, shape (n_features, n_classes)"}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell or '-' for cell in line)} |" for line in lines)


def methods() -> str:
    """What each method reads and what it guarantees."""
    header = ("method", "private rows", "public rows", "text weights", "GPU", "guarantee for private rows")
    return _table(header, [_method_row(method) for method in METHODS.values()])


def _method_row(method: Method) -> list[str]:
    link = f"[{method.name}]({method.name}.md)"
    return [link, _private_rows(method), _public_rows(method), _text_weights(method), _gpu(method), _guarantee(method)]


def choices() -> str:
    """The method of a run that names none."""
    rows = [[choice.when, f"[{choice.method}]({choice.method}.md)", choice.why] for choice in CHOICES]
    return _table(("if", "method", "because"), rows)


def _evidence() -> list[dict[str, Any]]:
    """Rows of `benchmarks/accuracy/results.json`, each with the figures that count: balanced accuracy for `rare`."""
    path = DOCS.parent / "benchmarks" / "accuracy" / "results.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    return [{**row, "figures": row["balanced" if row["data"] == "rare" else "accuracies"]} for row in rows]


def _studies() -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The rows of each data set and number of public shots."""
    studies: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in _evidence():
        studies.setdefault((row["data"], row["shots"]), []).append(row)
    return studies


def evidence() -> str:
    """A figure for each data set."""
    studies = _studies()
    figures = (f"### {data}\n\n![{_seen(data, studies)}](images/evidence-{data}.png)" for data, _ in studies)
    return "\n\n".join(dict.fromkeys(figures))


def by_method() -> str:
    """With public rows and without: methods by data set, and in each cell the mean at each epsilon of `SHOWN`."""
    studies, parts = _studies(), []
    for shots in dict.fromkeys(shots for _, shots in studies):
        rows = {data: rows for (data, of), rows in studies.items() if of == shots}
        names = dict.fromkeys(row["row"] for found in rows.values() for row in found)
        lines = [[name, *(_means(found, name) for found in rows.values())] for name in names]
        lines.append(["largest SD", *(f"{max(_deviations(found)):.1f}" for found in rows.values())])
        parts.append(f"{_with_public(shots).capitalize()}:\n\n{_table(('method', *rows), lines)}")
    return "\n\n".join(parts)


def held_out() -> str:
    """Data sets that no default was chosen on, by method; in each cell the mean at each epsilon of `SHOWN`."""
    path = DOCS.parent / "benchmarks" / "accuracy" / "held_out.json"
    found = json.loads(path.read_text(encoding="utf-8"))["results"]
    names, lines = ("only-public", "non-private", "adamix", "noisy-gd"), []
    for data, shots, kind in dict.fromkeys(
        (row["data"], row["shots"], kind) for row in found for kind in _kinds(row["data"])
    ):
        rows = [{**row, "figures": row[kind]} for row in found if (row["data"], row["shots"]) == (data, shots)]
        rows = [row for row in rows if row["row"] in names]
        what = ", balanced" if kind == "balanced" else ""
        line = [data + what, str(shots), *(_means(rows, name) for name in names)]
        lines.append([*line, f"{max(_deviations(rows)):.1f}"])
    return _table(("data", "public rows per class", *names, "largest SD"), lines)


def _means(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """The mean of a method at each epsilon of `SHOWN`, or its only mean."""
    found = {row["epsilon"]: row["figures"] for row in rows if row["row"] == name and row["epsilon"] in (None, *SHOWN)}
    return " / ".join(f"{100 * mean(found[epsilon]):.1f}" for epsilon in sorted(found, key=lambda one: one or 0))


def _deviations(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Standard deviations in percent of the figures that `_means` shows."""
    return [100 * stdev(row["figures"]) for row in rows if row["epsilon"] in (None, *SHOWN)]


def _kinds(data: str) -> tuple[str, ...]:
    """The figures of a data set: balanced accuracy too if one of its classes is rare."""
    return ("accuracies", "balanced") if data in RARE else ("accuracies",)


def _seen(data: str, studies: Mapping[tuple[str, int], list[dict[str, Any]]]) -> str:
    """What the figure of a data set shows, for readers who do not see it: the default method."""
    words = []
    for shots in (shots for other, shots in studies if other == data):
        rows = studies[data, shots]
        chosen = choose(public=shots > 0, text=False).method
        first, *_, last = sorted((row for row in rows if row["row"] == chosen), key=lambda row: row["epsilon"])
        ends = " to ".join(f"{100 * mean(row['figures']):.1f}" for row in (first, last))
        words.append(f"{chosen} {_with_public(shots)} {ends}")
    kind = "Balanced accuracy" if data == "rare" else "Accuracy"
    return f"{kind} in percent from epsilon {first['epsilon']:g} to {last['epsilon']:g}: {'; '.join(words)}."


def _with_public(shots: int) -> str:
    return f"with {shots} public rows per class" if shots else "without public rows"


def reached() -> str:
    """The README's table: the method that `CHOICES` gives between its floor and its ceiling, and the time of a step."""
    columns = [(data, epsilon) for data in ("digits", "flowers102") for epsilon in (1.0, 3.0)]
    found = {(row["row"], row["data"], row["epsilon"]): row for row in _evidence() if row["shots"]}
    chosen = choose(public=True, text=False).method
    lines = [[f"{chosen}, the default", *(_shown(found[chosen, *column]) for column in columns)]]
    for name, noted in (("only-public", "only-public, epsilon 0"), ("non-private", "non-private, no epsilon")):
        lines.append([noted, *(_shown(found[name, data, None]) for data, _ in columns)])
    seeds = len(found[chosen, *columns[0]]["figures"])
    table = _table(("method", *(f"{data}, eps {epsilon:g}" for data, epsilon in columns)), lines)
    steps = _steps()
    ratios = [f"{step['noisy_gd_float32'] / step['opacus_ghost']:.2f}" for step in steps.values()]
    return (
        f"{table}\n\nTest accuracy in percent, 2 public rows per class, delta 1e-5: mean ± SD over {seeds} "
        f"seeds\n(the chart: `docs/draw_figures.py`). A noisy step "
        f"on 50,000 rows of 2,048 features with {_listed(list(steps))} classes takes\n"
        f"{_listed(ratios)} of the time of Opacus with ghost clipping "
        "([benchmarks](benchmarks/README.md#time-of-a-step))."
    )


def speed() -> str:
    """Time of a noisy step relative to references that were measured in the same run."""
    steps = _steps()
    lines = []
    for name, words in REFERENCES.items():
        ratios = [step["noisy_gd_float32"] / step[name] for step in steps.values()]
        lines.append([words, *(f"{ratio:.{1 if ratio > 1 else 2 if ratio > 0.1 else 3}f}" for ratio in ratios)])
    return _table(("time of a step relative to", *(f"{classes} classes" for classes in steps)), lines)


def _steps() -> dict[str, dict[str, float]]:
    """Seconds of a step by number of classes, from `benchmarks/speed/results.json`."""
    path = DOCS.parent / "benchmarks" / "speed" / "results.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    return {f"{classes:,}": results[f"c{classes}"] for classes in (10, 100, 1000)}


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def attack_success() -> str:
    """The most that an attacker can reach: from epsilon and delta alone, and from mu of Gaussian DP."""
    header = ("epsilon", "right guesses", *(f"found at {100 * rate:g} % false alarms" for rate in FALSE_ALARMS))
    rates = np.array(FALSE_ALARMS)
    any_method, all_rows = [], []
    for epsilon in ATTACKED:
        mu = largest_mu(epsilon, DELTA)
        sure = (exp(epsilon) + DELTA) / (1 + exp(epsilon))
        any_method.append([f"{epsilon:g}", *map(_limit, (sure, *tpr_limit(rates, epsilon, DELTA)))])
        all_rows.append([f"{epsilon:g}", *map(_limit, (norm.cdf(mu / 2), *norm.cdf(norm.ppf(rates) + mu)))])
    return (
        f"Any method, from epsilon and delta alone:\n\n{_table(header, any_method)}\n\n"
        f"Methods that sum over all rows, in one step or many:\n\n{_table(header, all_rows)}"
    )


def _limit(share: float) -> str:
    """Per cent, rounded up."""
    digits = 2 if share < 0.1 else 1
    return f"{ceil(100 * 10**digits * share) / 10**digits:.{digits}f} %"


def _shown(row: Mapping[str, Any]) -> str:
    figures = row["figures"]
    return f"{100 * mean(figures):.1f} ± {100 * stdev(figures):.1f}"


def _private_rows(method: Method) -> str:
    if "private" not in method.needs:
        return "not used"
    if not method.spends:
        return "all"
    before = method.shares(method.make_options({}))
    if method.one_step:
        return "all, twice" if before else "all, once"
    if not method.samples:
        return "all, every step"
    return "all once, then Poisson samples" if before else "Poisson samples"


def _public_rows(method: Method) -> str:
    if method.joins_public:
        return "protected too"
    if "public" in method.needs:
        return "needed"
    return "if given" if "private" in method.needs else "not used"


def _text_weights(method: Method) -> str:
    if "text" in method.needs:
        return "needed"
    return "if given" if "init" in declared(method.options) else "no"


def _gpu(method: Method) -> str:
    if not method.options.on_gpu:
        return "no"
    limited = [option for option in declared(method.options).values() if option.on_gpu is not None]
    values = {
        option.spellings[0]: "|".join(f"{value:g}" if value == 0 else value for value in option.on_gpu or ())
        for option in limited
    }
    return ", ".join([method.options.on_gpu, *(f"`{flag} {value}` only" for flag, value in values.items())])


def _guarantee(method: Method) -> str:
    if not method.private:
        return "none"
    if not method.spends:
        return "epsilon = 0"
    return "(epsilon, delta)" + (", public rows included" if method.joins_public else "")


def classes() -> str:
    """The estimator of each method."""
    rows = []
    for name, method in METHODS.items():
        needs = ", ".join(FIT_NEEDS[need] for need in method.needs if need in FIT_NEEDS)
        rows.append([f"`{estimator_name(method.options)}`", f"[{name}](methods/{name}.md)", needs])
    return _table(("class", "method", "needs in `fit` besides `X, y`"), rows)


def arguments() -> str:
    """Every argument of an estimator; a row for each meaning that it has."""
    takers: dict[tuple[str, str], dict[str, list[str]]] = {}
    for options in METHOD_OPTIONS.values():
        for name, option in arguments_of(options).items():
            defaults = takers.setdefault((name, _meaning(option)), {})
            defaults.setdefault(_default(option), []).append(estimator_name(options))
    order = list(dict.fromkeys(name for name, _ in takers))
    rows = []
    for (name, meaning), defaults in sorted(takers.items(), key=lambda item: order.index(item[0][0])):
        most = max(defaults, key=lambda one: len(defaults[one]))
        others = (f"; {_classes(names)}: {default}" for default, names in defaults.items() if default != most)
        taking = {name for names in defaults.values() for name in names}
        names = [one for one in map(estimator_name, METHOD_OPTIONS.values()) if one in taking]
        rows.append([f"`{name}`", "".join([most, *others]), meaning, _classes(names)])
    return _table(("argument", "default", "meaning", "classes"), rows)


def _default(option: Option) -> str:
    if option.default is MISSING:
        return "required"
    if option.default is None:
        return f"None: {_python(option.unset)}" if option.unset else "None"
    return f'"{option.default}"' if isinstance(option.default, str) else str(option.default)


def _meaning(option: Option) -> str:
    meaning = _python(option.help.removesuffix(".").removesuffix(f", {option.allowed}"))
    return f"{meaning}: {option.listed_words}{option.after}" if option.words else meaning


def _python(text: str) -> str:
    """Flags as arguments of Python."""
    return re.sub(r"--([a-z-]+)", lambda flag: f"`{flag[1].replace('-', '_')}`", text)


def _classes(names: list[str]) -> str:
    others = [other for options in METHOD_OPTIONS.values() if (other := estimator_name(options)) not in names]
    if not others:
        return "all"
    for words, holds in GROUPS.items():
        if set(names) == {estimator_name(method.options) for method in METHODS.values() if holds(method)}:
            return words
    if len(others) < len(names):
        return f"all but {', '.join(f'`{name}`' for name in others)}"
    return ", ".join(f"`{name}`" for name in names)


def words() -> str:
    """The fixed words of a manifest, for another verifier."""
    rows = [["`adjacency`", f"`unit` {unit}", ADJACENCIES[unit]] for unit in UNITS]
    rows += [["`guarantee`, what is protected", f"`unit` {unit}", PROTECTED[unit]] for unit in UNITS]
    for unit in UNITS:
        rows += [["`mechanism`", f"`unit` {unit}, `sampling_rate` 1", mechanism_text(False, unit)]]
        rows += [["`mechanism`", f"`unit` {unit}, `sampling_rate` below 1", mechanism_text(True, unit)]]
        rows += [["`mechanism`", f"`unit` {unit}, with `selection`", selection_mechanism_text(unit)]]
    rows.append(["`mechanism`, its end", "with `inherited` releases; earlier manifests lack it", WITH_FIRST.strip()])
    for one in ACCOUNTANTS.values():
        rows.append(["`accountant`, `cross_check`", f"`{one.name}`", f"{one.words}; {one.cross_check.words}"])
    selecting = selection_accountant_text(ACCOUNTANTS["gdp"])
    rows += [
        [
            "`accountant`, `cross_check`",
            "with `selection`, single runs by `gdp`",
            f"{selecting}; {SELECTION_CROSS_CHECK}",
        ],
        ["`noise_source`, `seed_kind`", "`private`, with noise", f"{SECURE}; os"],
        ["`noise_source`, `seed_kind`", "with `--noise-seed`", f"{INSECURE}; insecure"],
        ["`noise_source`, `seed_kind`", "without noise", "none drawn; none"],
    ]
    rows += [
        ["`guarantee`", f"without noise, `private` {str(private).lower()}", without_noise(private)["guarantee"]]
        for private in (True, False)
    ]
    rows.append(["columns of `history.csv`", "after `step`", ", ".join(f"`{fact}`" for fact in sorted(FACTS))])
    return _table(("where", "when", "words"), rows)


def papers() -> str:
    """What a manifest says about each method, for another verifier."""
    rows = [[f"`{name}`", method.paper] for name, method in METHODS.items()]
    silent = _listed([f"`{name}`" for name, method in METHODS.items() if not method.spends])
    several = _listed([f"`{name}`" for name, method in METHODS.items() if method.several_labels])
    table = _table(("`method`", "`paper`"), rows)
    return f"{table}\n\nAll but {silent} add noise. `task` may be multilabel for {several}."


PAGES: dict[Path, list[Callable[[], str]]] = {
    DOCS / "python.md": [classes, arguments],
    DOCS / "methods" / "README.md": [methods, choices],
    DOCS / "verifier.md": [words, papers],
    DOCS / "evidence.md": [held_out, by_method, evidence],
    DOCS / "enough.md": [attack_success],
    DOCS.parent / "README.md": [reached],
    DOCS.parent / "benchmarks" / "README.md": [speed],
}


def render(page: Path) -> str:
    """A page with its tables as the code has them."""
    text = page.read_text(encoding="utf-8")
    for table in PAGES[page]:
        begin, end = f"<!-- {table.__name__}: made by docs/generate_tables.py -->\n", f"\n<!-- end {table.__name__} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(
                f"{page} has no place for the table {table.__name__}; put {begin.strip()} and {end.strip()}"
            )
        text = f"{before}{begin}\n{table()}\n{end}{after}"
    return text


def schema() -> str:
    """The JSON Schema of a manifest."""
    return json_text(json_schema())


if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
    for page in PAGES:
        page.write_text(render(page), encoding="utf-8")
