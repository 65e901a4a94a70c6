"""The method of a run that names none."""

import pytest

from linprobe.methods import CHOICES, METHODS, choose


@pytest.mark.parametrize(
    ("public", "text", "method"),
    [(True, True, "adamix"), (True, False, "adamix"), (False, True, "noisy-gd"), (False, False, "noisy-gd")],
)
def test_public_facts_choose_the_method(public: bool, text: bool, method: str) -> None:
    assert choose(public=public, text=text).method == method


def test_every_choice_is_private_and_needs_nothing_that_may_be_missing() -> None:
    for choice in CHOICES:
        method = METHODS[choice.method]
        assert method.private
        assert method.spends
        assert set(method.needs) - {"private"} <= ({"public"} if choice.method == "adamix" else set())
