"""Plans: every row stays within the budget, figures match the paper, and the recommendation follows its rule."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from linprobe.accounting.accountants import RENYI
from linprobe.accounting.calibrate import GOOD_ENOUGH, GRADIENT, NAMES, PlanRow, plan_rates, recommend, releases_cost
from linprobe.accounting.events import Releases
from linprobe.errors import ParameterError, PrivacyError, Progress, Silent
from linprobe.options.requests import DEFAULT_RATES, AccountRequest, PlanRequest


def planned(progress: Progress = Silent(), **given: Any) -> list[PlanRow]:  # noqa: B008
    return plan_rates(PlanRequest(**{"epsilon": 3, "delta": 1e-5, "n_rows": 1000, **given}), progress)


RATES = (0.01, 0.04, 0.16, 0.64)
PUBLISHED_NOISE = (13.64, 12.31, 11.89, 11.69)


@pytest.fixture(scope="module")
def published() -> list[PlanRow]:
    """(3, 1e-5) after 60 epochs, by Renyi accounting as in the paper; rates unsorted and one of them twice."""
    return planned(n_rows=60_000, sampling_rates=(*reversed(RATES), 0.04), accountant="rdp")


def test_noise_of_an_epoch_is_the_published_one(published: list[PlanRow]) -> None:
    assert [row.sampling_rate for row in published] == list(RATES)
    assert [row.noise_per_epoch for row in published] == pytest.approx(PUBLISHED_NOISE, rel=1e-3)


def test_every_row_follows_from_its_definition(published: list[PlanRow]) -> None:
    for row in published:
        q, sigma = row.sampling_rate, row.noise_multiplier
        assert row.steps == round(60 / q)
        assert row.batch_size == pytest.approx(60_000 * q)
        assert row.noise_per_epoch == pytest.approx(sigma / math.sqrt(q))
        assert row.noise_over_signal == pytest.approx(sigma / (q * math.sqrt(row.steps)))
        assert row.accountant == "rdp"


def test_no_row_overspends_and_none_wastes_a_thousandth(published: list[PlanRow]) -> None:
    for row in published:
        spent = RENYI.epsilon([Releases(GRADIENT, row.noise_multiplier, row.sampling_rate, row.steps)], 1e-5)
        assert row.epsilon == spent
        assert 3 * (1 - 1e-3) <= spent <= 3


def test_auto_judges_full_sums_exactly_and_samples_by_their_distribution() -> None:
    sampled, full = planned(sampling_rates=(0.1, 1))
    assert (sampled.accountant, full.accountant) == ("pld", "gdp")
    assert max(sampled.epsilon, full.epsilon) <= 3
    (renyi,) = planned(sampling_rates=(0.1,), accountant="rdp")
    assert sampled.noise_multiplier < renyi.noise_multiplier


def test_steps_are_at_least_one() -> None:
    (row,) = planned(epochs=0.1, sampling_rates=(1,))
    assert row.steps == 1
    assert row.noise_multiplier == pytest.approx(1.39059, abs=1e-5)


def test_each_row_is_announced() -> None:
    class Counted(Silent):
        seen: ClassVar[list[int]] = []

        def start(self, total: int, what: str = "training") -> None:
            self.seen.append(total)

        def step(self, count: int = 1) -> None:
            self.seen.append(count)

    rows = planned(Counted(), sampling_rates=(1, 0.9), accountant="rdp")
    assert len(rows) == 2
    assert Counted.seen == [2, 1, 1]


# the recommendation


def row_with(rate: float, noise: float) -> PlanRow:
    return PlanRow(rate, 1.0, 10, 100 * rate, noise, noise, 3.0, "pld")


@pytest.mark.parametrize(
    ("noises", "chosen"),
    [
        ([(0.01, 1.2), (0.1, 1.04), (0.5, 1.02), (1, 1.0)], 0.1),
        ([(0.01, GOOD_ENOUGH), (1, 1.0)], 0.01),
        ([(0.01, 1.051), (1, 1.0)], 1),
        ([(0.01, 1.0), (0.1, 1.0), (1, 1.0)], 0.01),
        ([(0.3, 7.0)], 0.3),
    ],
)
def test_the_smallest_rate_with_nearly_the_least_noise_is_recommended(
    noises: list[tuple[float, float]], chosen: float
) -> None:
    row, why = recommend([row_with(*pair) for pair in noises])
    assert row.sampling_rate == chosen
    assert why.startswith(f"q = {chosen:g} ")
    assert "\n" not in why


def test_the_sentence_says_what_the_choice_costs_and_saves() -> None:
    _, why = recommend([row_with(0.1, 1.04), row_with(1, 1.0)])
    assert "within 5 %" in why
    assert "4.0 % above q = 1" in why
    assert "10 rows instead of 100" in why


def test_rounded_steps_do_not_change_the_recommendation() -> None:
    # two full-batch steps need sqrt(2) times the noise of one and sum twice the signal: neither is better
    one, two = (planned(epochs=epochs, sampling_rates=(1,))[0] for epochs in (1, 2))
    assert one.noise_over_signal == pytest.approx(two.noise_over_signal, rel=1e-6)
    assert recommend([replace(two, sampling_rate=0.9), one])[0].sampling_rate == 0.9


def test_the_papers_advice_of_large_rates_is_followed(published: list[PlanRow]) -> None:
    assert recommend(published)[0].sampling_rate == 0.16


# every accountant side by side


def cost_request(rate: float, sigma: float, steps: int, delta: float) -> AccountRequest:
    return AccountRequest(sampling_rate=rate, noise_multiplier=sigma, n_steps=steps, delta=delta)


def test_account_gives_the_exact_figure_for_full_sums_first() -> None:
    costs = releases_cost(cost_request(1, 1, 1, 1e-5))
    assert [name for name in costs if name in NAMES] == ["gdp", "pld", "rdp", "autodp"]
    assert costs["autodp"] == pytest.approx(costs["gdp"], rel=1e-9)
    assert costs["gdp"] == pytest.approx(4.37718, abs=1e-4)
    assert costs["gdp"] <= costs["pld"] + 1e-6 <= costs["rdp"]


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "renyi"),
    [
        (500 / 48000, 1.51, 9600, 1e-5, 3.508),
        (500 / 48000, 20, 9600, 1e-5, 0.185),
    ],
)
def test_account_of_samples_gives_the_published_bound_and_a_lower_exact_one(
    rate: float, sigma: float, steps: int, delta: float, renyi: float
) -> None:
    costs = releases_cost(cost_request(rate, sigma, steps, delta))
    assert [name for name in costs if name in NAMES] == ["pld", "rdp"]
    assert costs["rdp"] == pytest.approx(renyi, rel=0.01)
    assert costs["pld"] <= costs["rdp"]


# wrong values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0}, "eps is 0"),
        ({"epsilon": math.nan}, "eps is nan"),
        ({"delta": 0}, "delta is 0"),
        ({"n_rows": 0}, "n is 0"),
        ({"n_rows": -5}, "n is -5"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": math.inf}, "epochs is inf"),
        ({"epochs": math.nan}, "epochs is nan"),
        ({"sampling_rates": ()}, "no sampling rate"),
        ({"sampling_rates": (0.5, 0)}, "q is 0"),
        ({"sampling_rates": (1.5,)}, "q is 1.5"),
        ({"sampling_rates": (1e-6,)}, "makes 60000000 steps"),
        ({"accountant": "moments"}, "'moments'"),
        ({"accountant": "gdp", "sampling_rates": (0.5, 1)}, "allowed below 1: pld, rdp"),
        ({"accountant": "gdp", "sampling_rates": DEFAULT_RATES}, "'gdp'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_before_any_work(change: dict[str, Any], words: str) -> None:
    class Never(Silent):
        def step(self, count: int = 1) -> None:
            raise RuntimeError("a row was worked out")

    with pytest.raises(ParameterError, match=words):
        planned(Never(), **{"sampling_rates": (1,), **change})


def test_a_delta_of_one_over_n_is_a_privacy_refusal() -> None:
    with pytest.raises(PrivacyError, match="1/N"):
        planned(sampling_rates=(1,), delta=1e-3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0, 1, 1, 1e-5), "sampling-rate is 0"),
        ((math.nan, 1, 1, 1e-5), "sampling-rate is nan"),
        ((0.1, 0, 1, 1e-5), "sigma is 0"),
        ((0.1, math.inf, 1, 1e-5), "sigma is inf"),
        ((0.1, 1, 0, 1e-5), "steps is 0"),
        ((0.1, 1, 10**7, 1e-5), "steps is 10000000"),
        ((0.1, 1, 1, 1), "delta is 1"),
        ((0.1, 1, 1, math.nan), "delta is nan"),
    ],
)
def test_releases_that_make_no_sense_are_refused(values: tuple[float, float, int, float], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        cost_request(*values)
