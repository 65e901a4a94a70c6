"""Printed privacy figures: never below the true value, whatever the rounding, while JSON keeps the floats."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from linprobe.accounting.accountants import GAUSSIAN, gaussian_figures
from linprobe.accounting.events import Releases
from linprobe.accounting.figures import gaussian_words, limit_percent, rounded_down, rounded_up
from linprobe.cli import run
from linprobe.cli._terminal import as_asked, guarantee_rows
from linprobe.reporting.comparison import comparison_table, footer
from linprobe.runs.guarantee import guarantee_text

AWKWARD = (2.99999999, 3.00000001, 3.0000000000000004, 4.37718123, 1.00000001e-05, 0.1, 1 / 3, 99.9999999, 1e-300)


def test_rounded_figures_bound_the_value():
    random = np.random.default_rng(0)
    values = [*AWKWARD, *(10 ** random.uniform(-12, 3, 500)).tolist()]
    for value in values:
        for digits in (3, 4, 6, 9):
            assert float(rounded_down(value, digits)) <= value
            low, high = float(rounded_down(value)), float(rounded_up(value, digits))
            assert value <= high
            assert high - low <= 1.02 * 10 ** (math.floor(math.log10(value)) + 1 - min(digits, 6))


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.0, "3"), (0.1, "0.1"), (1e-05, "1e-05"), (2.99999999, "3"), (3.00000001, "3.00001"), (0.0, "0"), (None, "-")],
)
def test_short_figures_are_printed_as_they_are(value, text):
    assert rounded_up(value) == text


def test_infinity_and_floats_of_numpy_are_printed():
    assert (rounded_up(math.inf), rounded_up(np.float64(0.25)), rounded_up(np.float32(3))) == ("inf", "0.25", "3")


def test_attack_limits_are_rounded_up():
    for limit in (0.0540019, 0.07, 0.2900000000000001, 1e-9, 1.0):
        assert float(limit_percent(limit)) >= 100 * limit * (1 - 1e-15)
    assert [limit_percent(share) for share in (0.0540019, 0.05, 0.00001, 1.0)] == ["5.41", "5.00", "0.01", "100.00"]


def test_every_text_with_an_epsilon_states_at_least_the_true_one():
    releases = [Releases("gradient", 9.8329807, 1.0, 50)]
    for epsilon in AWKWARD[:5]:
        claim = {"epsilon": epsilon, "delta": 1.00000001e-05, **gaussian_figures(releases)}
        composed = {**claim, "unit": "record", "private_runs": 2, "not_private_runs": 0, "accountant": "gdp"}
        guarantee = guarantee_text(epsilon, claim["delta"], releases, insecure=False, unit="record")
        header, _ = comparison_table([{"method": "ngd", "epsilon": epsilon, "mean": 0.5, "std": None, "best": True,
                                       "public": None, "shots": None}])  # fmt: skip
        words = footer(composed).split()
        shown = [
            dict(guarantee_rows(claim))["epsilon"],
            guarantee[1:].split(",")[0],
            header[-1].removeprefix("eps "),
            words[words.index("epsilon") + 1],
        ]
        assert all(float(text) >= epsilon for text in shown), shown
        assert float(dict(guarantee_rows(claim))["delta"]) >= claim["delta"]


def test_headline_states_mu_and_rho_or_says_that_samples_have_none():
    full, sampled = gaussian_figures([Releases("gradient", 2.0, 1.0, 4)]), gaussian_figures([Releases("", 2.0, 0.1, 4)])
    assert gaussian_words(**full) == "GDP mu 1, zCDP rho 0.5"
    assert gaussian_words(**sampled) == "no GDP mu or zCDP rho: Poisson samples or private selection"
    claim = {"epsilon": 3.0, "delta": 1e-5, **sampled}
    assert list(dict(guarantee_rows(claim))) == ["epsilon", "delta"]
    with as_asked(quiet=False, verbose=True):
        rows = dict(guarantee_rows(claim))
        assert rows["GDP mu"] == rows["zCDP rho"] == "none: Poisson samples or private selection"
        assert "GDP mu" not in dict(guarantee_rows({**claim, "epsilon": None, **full}))


def test_json_keeps_the_float_that_the_line_rounds_up(capsys):
    words = ["account", "--q", "1", "--sigma", "9.8329807", "--steps", "50", "--delta", "1e-5"]
    assert run(words) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    releases = [Releases("gradient", 9.8329807, 1.0, 50)]
    assert found["gdp"] == GAUSSIAN.epsilon(releases, 1e-5) < 3
    assert {key: found[key] for key in ("gdp_mu", "zcdp_rho")} == gaussian_figures(releases)
    assert all(float(text) >= found[name] for name, text in lines.items())
