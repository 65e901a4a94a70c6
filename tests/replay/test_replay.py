"""No run publishes anything of a private record but its noised sums: every method, option variant and back end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from linprobe.data import rows
from linprobe.gradients import backend as host
from linprobe.mechanisms.correct_predictions import GAIN
from linprobe.methods import METHODS
from linprobe.methods.similar_rows import SIMILAR_ROWS
from linprobe.options.declaration import declared
from linprobe.parallel import available_memory
from tests.methods.test_contract import VARIANTS
from tests.replay.conftest import BASE, FIRST
from tests.replay.datasets import ENDS, JOINED, KINDS, NEIGHBOURS, SHOTS, UNLABELLED, empty_places
from tests.replay.replay import Played, compare, play

STEPS = 4
NIGHTLY = pytest.mark.nightly
# what `VARIANTS` lacks: options of the run, and words that many methods share
MEAN = "--condition mean"
NEAR = f"--unlabelled {UNLABELLED}"
UNCENTRED = ("noisy-gd", f"{NEAR} --public-shots 0 --init zero")  # but for the mean of the rows without labels
FURTHER = [
    ("noisy-gd", "--centre none --intercept 1 --init zero --output ema --precision bfloat16"),
    ("noisy-gd", "--init text --reference zero --no-per-record"),
    ("noisy-gd", f"--init {FIRST} --centre none --intercept 2 --output last --json"),
    ("adamix", "--preset paper"),
    ("adamix", "--subspace gradient --precision float16 --output vote --ensemble 2 --checkpoint 0"),
    ("ppgd", "--output vote --ensemble 2 --centre public"),
    ("fully-private", "--intercept 1 --precision float16"),
    ("fully-private", f"{MEAN} --precision float16"),
    ("noisy-gd", f"{MEAN} --public-shots 0 --init zero --intercept 0"),
    ("dp-sgd", f"{MEAN} --public-shots 0 --init zero --no-per-record"),
    ("dp-sgd", "--no-per-record --optimizer sgd --output vote --ensemble 2 --init public"),
    (
        "dp-sgd",
        "--q 1 --accountant gdp --loss squared --clip-norm 1.1e-9 --weight-decay 1e-9 --centre none --intercept 10",
    ),
    ("dp-sgd", "--centre none --intercept 1 --no-per-record --precision bfloat16 --optimizer adam"),
    ("dpsgd-f", "--no-per-record --loss squared"),
    ("dpsgd-f", "--q 1 --accountant auto"),
    ("dpsgd-f", "--variant theory --no-per-record --precision float16"),
    ("dpsgd-f", "--variant theory --q 1 --accountant gdp"),
    ("mirror-descent", "--no-per-record --update exact --loss squared"),
    ("dope-sgd", "--no-per-record --loss squared --optimizer momentum"),
    ("dope-sgd", "--q 1 --accountant gdp --extended 1 --origin-norm 0.01"),
    ("dope-sgd", "--no-per-record --origin history"),
    ("adadps", "--no-per-record --loss squared"),
    ("adadps", "--q 1 --accountant gdp --precision bfloat16"),
    ("dp-ls", "--centre none --intercept 1 --no-per-record --precision bfloat16"),
    ("dp-fc", "--centre none --intercept 1 --output vote --ensemble 2 --precision float16"),
    ("dp-newton", "--centre none --intercept 1 --no-per-record --precision float16"),
    ("prototypes", "--centre none --intercept 10 --precision float16"),
    ("noisy-gd", "--class-weight ant=1,bee=0.1,dog=0.5 --precision bfloat16"),
    ("adamix", "--class-weight public"),
    ("dp-sgd", "--class-weight bee=5 --loss softmax"),
    ("dp-sgd", "--class-weight bee=5 --no-per-record"),
    ("fully-private", "--class-weight dog=9"),
    ("noisy-gd", "--class-weight balanced --precision bfloat16"),
    ("dp-sgd", "--class-weight balanced --no-per-record --output vote --ensemble 2"),
    ("fully-private", f"{MEAN} --class-weight balanced"),
    ("dp-ls", "--class-counts yes"),
    UNCENTRED,
    ("noisy-gd", f"{NEAR} --public-shots 0 --init zero {MEAN} --class-weight balanced --precision float16"),
    ("adamix", f"{NEAR} --class-counts yes"),
    ("dp-sgd", f"{NEAR} --no-per-record"),
    ("fully-private", NEAR),
    ("only-public", ""),
    ("zero-shot", ""),
]


def words_of(method: str, options: str) -> list[str]:
    """The command line of a short run, without data set and run folder."""
    words, found = options.split(), METHODS[method]
    if found.spends:
        words += ["--eps", "3"]
        words += [] if found.one_step else ["--steps", str(STEPS)]
    if found.samples:
        words += [] if "--q" in words else ["--q", "0.5"]
        words += [] if "--accountant" in words else ["--accountant", "rdp"]
    return ["--method", method, *words]


CASES = [
    *(
        (method.name, " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items()))
        for method, options in VARIANTS
    ),
    *FURTHER,
]
DEFAULTS = [(method.name, "") for method in METHODS.values() if method.spends]
COUNTS = ("noisy-gd", "--class-weight balanced")
PARTS = [("dp-sgd", "--no-per-record"), ("dpsgd-f", "--variant theory"), ("fully-private", MEAN), COUNTS, UNCENTRED]
named = {"ids": lambda case: " ".join(case).strip()}
WEIGHED = [case for case in CASES if "--class-weight" in case[1]]
# the first neighbour differs from the second in its label alone, which only class weights treat as they do no other
MOST = [name for name in NEIGHBOURS if name != "huge first row"]
WHOLE = [*DEFAULTS, *PARTS, *WEIGHED]  # the others add one option or two, and take one of `MOST` in turn

Case = tuple[str, str]


def takes_people(case: Case) -> bool:
    """Whether a case of rows is allowed for people."""
    return METHODS[case[0]].spends and "--variant theory" not in case[1]


def on_neighbours(
    cases: Iterable[Case], neighbours: Sequence[str], kept: Callable[[int, Case], Collection[str]]
) -> pytest.MarkDecorator:
    """Parametrise by case and neighbours; those that are not `kept` for a case are left to the nightly job."""
    found = []
    for place, case in enumerate(cases):
        now = kept(place, case)
        later = [name for name in neighbours if name not in now]
        found += [pytest.param(case, tuple(now), id=" ".join(case).strip())] if now else []
        found += [pytest.param(case, tuple(later), id=" ".join([*case, "others"]), marks=NIGHTLY)] if later else []
    return pytest.mark.parametrize(("case", "neighbours"), found)


def on_path(
    cases: Iterable[Case], neighbours: Collection[str], number: int, *, people: bool = False
) -> pytest.MarkDecorator:
    """Parametrise a path by case and one of the neighbours in turn; the rest is left to the nightly job.

    Of `DEFAULTS`, every second method is played with records, and the others with people; on the path of the next
    `number` it is the other way round. So each method meets each path and each unit, and each path each unit.
    """
    names = list(neighbours)

    def kept(place: int, case: Case) -> Collection[str]:
        other_unit = case in DEFAULTS and (DEFAULTS.index(case) + number + people) % 2
        return [] if other_unit else [names[place // 2 % len(names)]]

    return on_neighbours(cases, names, kept)


def replay(
    datasets: Any, case: Case, neighbours: Collection[str] = NEIGHBOURS, *, kind: str = "private", **how: Any
) -> Played:
    """Play a case on the base, then on every neighbour with the base's releases; returns the first."""
    if METHODS[case[0]].joins_public:
        kind, neighbours = "joined", [*neighbours, *JOINED]
    folder, empty = datasets / kind, empty_places(kind)
    base = play(folder / BASE, words_of(*case), empty, **how)
    assert base.published["exit status"] == 0, base.published["stderr"]
    for name in neighbours:
        place = KINDS[kind][name].place
        compare(base, play(folder / name, words_of(*case), empty - {place}, forced=base, **how), place)
    return base


def by_day(place: int, case: Case) -> Collection[str]:
    """The neighbours of a case by day. Of those with one option more, every second one is played with people."""
    if case in WHOLE:
        return NEIGHBOURS if case in WEIGHED else MOST
    return [] if takes_people(case) and CASES.index(case) % 2 else [MOST[place // 2 % 2]]


@on_neighbours(CASES, list(NEIGHBOURS), by_day)
def test_a_neighbour_publishes_the_same_bits(case, neighbours, datasets) -> None:
    replay(datasets, case, neighbours)


@on_path([*DEFAULTS, UNCENTRED], ENDS, 0)
def test_a_neighbour_publishes_the_same_bits_by_numpy(case, neighbours, datasets, monkeypatch) -> None:
    monkeypatch.setattr(host, "LIBRARY", None)
    replay(datasets, case, neighbours)


@on_path(DEFAULTS, ENDS, 1)
def test_a_neighbour_publishes_the_same_bits_by_the_kernel_for_many_classes(
    case, neighbours, datasets, monkeypatch
) -> None:
    if host.LIBRARY is None:
        pytest.skip("the kernel is not built")
    monkeypatch.setattr(host, "FEW_CLASSES", 1)
    replay(datasets, case, neighbours)


@on_path([*DEFAULTS, *PARTS], ENDS, 2)
def test_a_neighbour_publishes_the_same_bits_from_streamed_rows(case, neighbours, datasets, monkeypatch) -> None:
    monkeypatch.setattr(available_memory, "suffices", lambda n_bytes: False)
    replay(datasets, case, neighbours)


@on_path([*DEFAULTS, *PARTS], ENDS, 3)
def test_a_neighbour_publishes_the_same_bits_in_two_processes(case, neighbours, datasets, monkeypatch) -> None:
    monkeypatch.setattr(rows, "SHARD_ROWS", 64)
    replay(datasets, case, neighbours, processes=2)


@on_path(
    [*(case for case in DEFAULTS if METHODS[case[0]].options.on_gpu), ("fully-private", MEAN), COUNTS, UNCENTRED],
    ENDS,
    4,
)
def test_a_neighbour_publishes_the_same_bits_on_a_device(case, neighbours, datasets, monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    from linprobe.gradients import gpu

    monkeypatch.setattr(gpu, "check_device", lambda name: torch.device("cpu"))
    replay(datasets, (case[0], f"{case[1]} --device cuda"), neighbours)


@pytest.mark.parametrize("case", [("adamix", "--public-shots 3"), ("dp-sgd", "--public-shots 3")], **named)
def test_a_neighbour_publishes_the_same_bits_where_training_rows_become_public(case, datasets) -> None:
    base = replay(datasets, case, SHOTS, kind="shots")
    assert base.published["manifest.json: n_public"] == 12


@pytest.mark.parametrize(
    "case", [("noisy-gd", "--class-counts yes"), ("adamix", ""), ("dp-sgd", "--no-per-record")], **named
)
def test_a_neighbour_publishes_the_same_bits_where_rows_have_several_labels(case, datasets) -> None:
    base = replay(datasets, case, ENDS, kind="labels")
    assert base.published["manifest.json: task"] == "multilabel"


def similar(played: Played) -> Any:
    """The number of similar rows before noise."""
    return next(draw.total for draw in played.draws if draw.event.purpose == SIMILAR_ROWS)


def test_the_number_of_similar_rows_is_the_same_on_every_path(datasets) -> None:
    paths: dict[str, tuple[str, Any, str, Any]] = {  # what a patch changes, and what it puts there
        "NumPy": ("LIBRARY", host, "", None),
        "streamed": ("suffices", available_memory, "", lambda n_bytes: False),
        "processes": ("SHARD_ROWS", rows, "", 64),
    }
    folder, empty = datasets / "private" / BASE, empty_places("private")
    words = words_of(*UNCENTRED)
    expected = similar(play(folder, words, empty))
    assert 0 < expected < 200
    for path, (name, module, _, value) in paths.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, value)
            found = similar(play(folder, words, empty, processes=3 if path == "processes" else 1))
        assert np.array_equal(found, expected), path


def gained(played: Played) -> Any:
    """The gain of private rows by refinement, before noise."""
    return next(draw.total for draw in played.draws if draw.event.purpose == GAIN)


@pytest.mark.usefixtures("other_weights")
@pytest.mark.parametrize("case", [UNCENTRED, ("dp-sgd", f"{NEAR} --no-per-record"), ("fully-private", NEAR)])
def test_a_row_moves_the_gain_by_at_most_one_on_every_path(case: tuple[str, str], datasets) -> None:
    kind = "joined" if METHODS[case[0]].joins_public else "private"
    folder, empty, words = datasets / kind, empty_places(kind), words_of(*case)
    base, moved = play(folder / BASE, words, empty), []
    assert abs(gained(base)[0, 0]) > 10
    for name, neighbour in KINDS[kind].items():
        other = play(folder / name, words, empty - {neighbour.place}, forced=base)
        compare(base, other, neighbour.place)
        moved.append(abs(float((gained(other) - gained(base))[0, 0])))
    assert set(moved) <= {0.0, 1.0}
    assert any(moved)
    for processes, streamed in ((3, False), (1, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "SHARD_ROWS", 64)
            patch.setattr(available_memory, "suffices", lambda n_bytes, streamed=streamed: not streamed)
            found = gained(play(folder / BASE, words, empty, processes=processes))
        assert np.array_equal(found, gained(base))


def test_a_row_near_rows_without_labels_is_counted_once(datasets) -> None:
    folder, empty, words = datasets / "private", empty_places("private"), words_of(*UNCENTRED)
    base = play(folder / BASE, words, empty)
    moved = []
    for name, neighbour in NEIGHBOURS.items():
        other = play(folder / name, words, empty - {neighbour.place}, forced=base)
        moved.append(float((similar(other) - similar(base))[0, 0]))
    assert moved == [1.0] * len(NEIGHBOURS)


def test_every_place_is_in_one_sample_and_outside_another(datasets) -> None:
    base = replay(datasets, ("dp-sgd", ""), ())
    for place in empty_places("private"):
        assert {draw.joined[place] for draw in base.draws} == {True, False}


def test_every_word_of_every_option_is_played() -> None:
    played = {tuple(pair) for _, options in CASES for pair in zip(options.split(), options.split()[1:], strict=False)}
    wanted = {
        (f"--{name.replace('_', '-')}", FIRST if word == "run" else word)
        for method in METHODS.values()
        if method.spends
        for name, option in declared(method.options).items()
        for word in option.words
        if word != option.default
    }
    assert wanted <= played, wanted - played
