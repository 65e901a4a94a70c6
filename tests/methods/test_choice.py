"""The method of a run that names none."""

import pytest

from linprobe.methods import CHOICES, METHODS, Facts, choose


@pytest.mark.parametrize(
    ("facts", "method"),
    [
        (Facts(public=True, text=True), "adamix"),
        (Facts(public=True, text=False), "adamix"),
        (Facts(public=False, text=True), "noisy-gd"),
        (Facts(public=False, text=False), "noisy-gd"),
    ],
)
def test_public_facts_choose_the_method(facts: Facts, method: str) -> None:
    assert choose(facts).method == method


def test_every_choice_is_private_and_needs_nothing_that_may_be_missing() -> None:
    for choice in CHOICES:
        method = METHODS[choice.method]
        assert method.private
        assert method.spends
        assert set(method.needs) - {"private"} <= ({"public"} if choice.method == "adamix" else set())
