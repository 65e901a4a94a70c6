"""`plan` and `account`: output on stdout and stderr, the figure, and a one-line error for every wrong request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

from linprobe.accounting.figures import largest_mu
from linprobe.cli import _terminal
from linprobe.runs.figures import BANDS
from tests.cli.outcomes import Cli, result_of

PLAN = ["plan", "--eps", "3", "--delta", "1e-5", "--n", "60000"]
QUICK = [*PLAN, "--q", "0.04,0.16,1", "--accountant", "rdp"]
ACCOUNT = ["account", "--q", "1", "--sigma", "1", "--steps", "1", "--delta", "1e-5"]


def test_plan_json_holds_every_row_and_the_recommended_one(cli: Cli) -> None:
    outcome = cli(*QUICK, "--epochs", "60", "--json")
    planned = result_of(outcome)
    assert outcome.stderr == ""
    assert list(planned) == ["epsilon", "delta", "n", "epochs", "accountant", "rows", "recommended", "why"]
    assert (planned["epsilon"], planned["delta"], planned["n"], planned["epochs"]) == (3, 1e-5, 60000, 60)
    assert planned["accountant"] == "rdp"
    assert [row["sampling_rate"] for row in planned["rows"]] == [0.04, 0.16, 1]
    assert [row["steps"] for row in planned["rows"]] == [1500, 375, 60]
    assert [row["noise_per_epoch"] for row in planned["rows"]] == pytest.approx([12.31, 11.89, 11.57], rel=1e-3)
    assert all(2.99 < row["epsilon"] <= 3 for row in planned["rows"])
    assert planned["recommended"] == planned["rows"][1]
    assert planned["why"].startswith("q = 0.16 ")


def test_plan_says_what_to_expect_of_a_number_of_classes(cli: Cli) -> None:
    words = ["--q", "1", "--classes"]
    few, many = (result_of(cli(*PLAN, *words, classes, "--json")) for classes in ("10", "100000"))
    assert few["signal_to_noise"] == pytest.approx(4315, rel=0.01)
    assert few["expect"].startswith("expect overall accuracy near non-private if classes are about equally common")
    assert many["expect"].startswith("expect overall accuracy near only-public")
    assert many["percent_with_public"][1] < 20
    assert many["expect"] in cli(*PLAN, *words, "100000").stderr


def test_expectations_are_those_of_the_committed_figures() -> None:
    sizes = {"digits": 1388 / 10, "flowers102": 6552 / 102, "classes-100": 100, "offset-10": 4000}  # rows per class
    sizes |= {"fashion-pixels": 6000, "fashion-scattering": 6000}
    path = Path(__file__).parents[2] / "benchmarks/accuracy/results.json"
    rows = [row for row in json.loads(path.read_text())["results"] if row["data"] in sizes]
    page = (Path(__file__).parents[2] / "docs/planning.md").read_text(encoding="utf-8")
    mean = {(row["data"], row["shots"], row["row"], row["epsilon"]): fmean(row["accuracies"]) for row in rows}
    best = {data: max(value for key, value in mean.items() if key[0] == data) for data in sizes}
    classes = {"digits": 10, "flowers102": 102, "classes-100": 100}
    for kind, (method, shots) in enumerate((("adamix", 2), ("noisy-gd", 0)), start=1):
        found: dict[float, list[float]] = {}
        for (data, of, row, epsilon), value in mean.items():
            if row != method or of != shots or epsilon is None:
                continue
            start = mean[data, 2, "only-public", None] if shots else 1 / classes.get(data, 10)
            g = largest_mu(epsilon, 1e-5) * sizes[data]
            band = next(one for one in BANDS if g < one[0])
            found.setdefault(band[0], []).append(100 * (value - start) / (best[data] - start))
        assert len(found) == len(BANDS)
        for band in BANDS:
            least, largest = band[kind]
            assert (math.floor(min(found[band[0]])), math.ceil(max(found[band[0]]))) == (least, largest)
            assert f"{least} to {largest} %" in page


def test_plan_prints_the_recommended_settings_on_stdout_and_the_table_on_stderr(cli: Cli) -> None:
    outcome = cli(*QUICK)
    chosen = result_of(cli(*QUICK, "--json"))["recommended"]
    rate, sigma, steps = outcome.stdout.splitlines()[0].split("\t")
    assert outcome.stdout.count("\n") == 1
    assert (float(rate), float(sigma), int(steps)) == (0.16, chosen["noise_multiplier"], 375)
    for word in ("0.04", "0.16 *", "1500", "60 epochs", "recommended: q = 0.16"):
        assert word in outcome.stderr


@pytest.mark.parametrize(("rows", "rate"), [(1, "1"), (2, "0.5")])
def test_no_step_of_less_than_a_row_is_recommended(cli: Cli, rows: int, rate: str) -> None:
    planned = cli("plan", "--eps", "3", "--n", rows, "--q", "0.01,0.5,1")
    assert planned.status == 0, planned
    assert f"recommended: q = {rate} " in planned.stderr
    assert f"{'1 private row' if rows == 1 else '2 private rows'}, 60 epochs" in planned.stderr


@pytest.mark.parametrize("columns", [80, 40])
def test_a_narrow_terminal_cuts_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ("0.04 *", "2400", "1500", "3778", "1.336e+04", "0.000999999", "pld")
    header = ("q", "rows per step", "steps", "noise multiplier", "noise per epoch", "epsilon", "accountant")
    _terminal.table("epsilon 0.001, delta 1e-05", [row], header=header)
    text = capsys.readouterr().err
    assert {word for cell in row for word in cell.split()} <= set(text.split())
    assert "…" not in text
    assert columns < 80 or max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 16])  # whole columns, then rows that are folded
def test_the_cells_of_a_row_begin_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _terminal.table("", [("", "0"), ("ant and bee", ""), ("\N{CJK UNIFIED IDEOGRAPH-65E5}" * 4, "2"), ("", "3")])
    lines = [line[1:-1].split("│") for line in capsys.readouterr().err.splitlines() if "│" in line]
    begun = [(name.strip(), value.strip()) for name, value in lines]
    wide = [value for name, value in begun if name.startswith("\N{CJK UNIFIED IDEOGRAPH-65E5}")]
    assert (begun[0], begun[-1], wide[0]) == (("", "0"), ("", "3"), "2")
    assert columns < 80 or len(lines) == 4


def test_planned_settings_cost_what_the_plan_says(cli: Cli) -> None:
    rate, sigma, steps = cli(*QUICK).stdout.split()
    outcome = cli("account", "--q", rate, "--sigma", sigma, "--steps", steps, "--delta", "1e-5")
    costs = dict(line.split("\t") for line in outcome.stdout.splitlines())
    assert list(costs) == ["pld", "rdp"]
    assert outcome.stderr == "no GDP mu or zCDP rho: Poisson samples\n"
    assert float(costs["pld"]) < 2.99 < float(costs["rdp"]) <= 3


@pytest.mark.parametrize(("name", "start"), [("plan.png", b"\x89PNG"), ("plan.svg", b"<?xml")])
def test_the_figure_is_written_and_not_private(cli: Cli, tmp_path: Path, name: str, start: bytes) -> None:
    assert cli(*QUICK, "--plot", name).status == 0
    assert (tmp_path / name).read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    (tmp_path / "plain").touch()  # as the umask has it
    assert (tmp_path / name).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_figure_of_a_single_rate_can_be_drawn(cli: Cli, tmp_path: Path) -> None:
    assert cli(*PLAN, "--q", "1", "--plot", "one.png").status == 0
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_account_lists_the_accountant_of_record_first(cli: Cli) -> None:
    lines = cli(*ACCOUNT).stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["gdp", "pld", "rdp", "autodp"]
    assert float(lines[0].split("\t")[1]) == pytest.approx(4.37718, abs=1e-4)


def test_account_json_repeats_the_request_and_names_the_accountant_of_record(cli: Cli) -> None:
    outcome = cli(*ACCOUNT, "--json")
    result = result_of(outcome)
    assert outcome.stderr == ""
    assert (result["sampling_rate"], result["noise_multiplier"], result["steps"], result["delta"]) == (1, 1, 1, 1e-5)
    assert result["accountant"] == "gdp"
    assert {"gdp", "pld", "rdp"} <= set(result)


def test_an_infinite_epsilon_is_valid_json(cli: Cli) -> None:
    words = ["account", "--q", "0.1", "--sigma", "1e-9", "--steps", "1", "--delta", "1e-5"]
    assert cli(*words).stdout == "pld\tinf\nrdp\tinf\n"
    text = cli(*words, "--json").stdout
    assert "Infinity" not in text
    assert json.loads(text)["pld"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["plan", "--n", "100"], 2, ["--eps"]),
        (["plan", "--eps", "3"], 2, ["--n"]),
        (["plan", "--eps", "three", "--n", "100"], 2, ["--eps"]),
        (["plan", "--eps", "0", "--n", "100"], 2, ["eps is 0", "at most 100"]),
        (["plan", "--eps", "3", "--n", "1.5"], 2, ["--n"]),
        (["plan", "--eps", "3", "--n", "0"], 2, ["n is 0", "1 or more"]),
        (["plan", "--eps", "3", "--n", "100000"], 4, ["1/N", "--delta"]),
        ([*PLAN, "--delta", "2"], 2, ["delta is 2"]),
        ([*PLAN, "--epochs", "0"], 2, ["epochs is 0"]),
        ([*PLAN, "--epochs", "inf"], 2, ["epochs is inf"]),
        ([*PLAN, "--epochs", "1e7"], 2, ["steps", "fewer epochs"]),
        *(
            ([*PLAN, "--q", text], 2, [f"q is '{text}'", "commas between, as 0.01,0.02,0.04"])
            for text in ("x", "0.1;0.2", "0.1,,x", "0,1 0,2")
        ),
        ([*PLAN, "--q", ""], 2, ["no sampling rate"]),
        ([*PLAN, "--q", "0.1,0"], 2, ["q is 0", "1e-12 to 1"]),
        ([*PLAN, "--q", "1.5"], 2, ["q is 1.5"]),
        ([*PLAN, "--q", "nan"], 2, ["q is nan"]),
        ([*PLAN, "--q", "-0.1"], 2, ["q is -0.1"]),
        ([*PLAN, "--q", "1e-7"], 2, ["600000000 steps", "larger rates"]),
        ([*PLAN, "--accountant", "moments"], 2, ["'moments'", "auto, gdp, pld, rdp"]),
        ([*PLAN, "--accountant", "gdp"], 2, ["'gdp'", "pld, rdp"]),
        ([*PLAN, "--plot", "plan.pdf"], 2, [".pdf", ".png, .svg"]),
        ([*PLAN, "--plot", "/dev/null/plan.png"], 1, ["plan.png cannot be made"]),
        (ACCOUNT[:-2], 2, ["--delta"]),
        ([*ACCOUNT, "--q", "0"], 2, ["sampling-rate is 0"]),
        ([*ACCOUNT, "--sigma", "-1"], 2, ["sigma is -1"]),
        ([*ACCOUNT, "--steps", "0"], 2, ["steps is 0"]),
        ([*ACCOUNT, "--delta", "1"], 2, ["delta is 1"]),
    ],
)
def test_a_wrong_request_is_one_line_and_leaves_nothing(
    cli: Cli, refused: Callable[..., None], tmp_path: Path, arguments: list[str], status: int, words: list[str]
) -> None:
    refused(cli(*arguments), status, words)
    assert list(tmp_path.iterdir()) == []
