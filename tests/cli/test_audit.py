"""`audit`: output on stdout and stderr, and exit statuses."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from linprobe.evaluation.audit import DEVICE_PATHS, HOST_PATHS
from linprobe.mechanisms.noise import NoiseSource
from linprobe.methods import METHODS
from linprobe.native import LIBRARY
from linprobe.options.declaration import declared
from linprobe.options.requests import AuditRequest
from linprobe.training.plan import MOST_SHARE
from tests.cli.outcomes import Cli, result_of

AUDIT = ["audit", "--method", "noisy-gd", "--eps", "3", "--runs", "20", "--canaries", "50", "--steps", "20"]
SURE = ["--confidence", "0.99999999"]  # at this confidence, one audit of correct noise in 10^8 fails


def test_json_holds_the_claim_the_bound_and_every_test(cli: Cli) -> None:
    outcome = cli(*AUDIT, *SURE, "--json")
    audited = result_of(outcome)
    assert outcome.stderr == ""
    assert list(audited) == [
        *("method", "part", "unit", "epsilon", "delta", "epsilon_lower_bound", "others"),
        *(
            "confidence",
            "runs",
            "canaries",
            "steps",
            "noise_multiplier",
            "sampling_rate",
            "paths",
            "products",
            "not_covered",
            "tests",
        ),
    ]
    assert audited["paths"] == [
        *("memory, observed", "memory, unobserved", "streamed, observed", "streamed, unobserved"),
        *("two ranks, observed", "two ranks, unobserved"),
    ]
    assert audited["products"] == ("numpy" if LIBRARY is None else "kernel")
    assert "rows on a GPU" in audited["not_covered"]
    assert (audited["method"], audited["runs"], audited["canaries"]) == ("noisy-gd", 20, 50)
    assert (audited["steps"], audited["sampling_rate"], audited["delta"]) == (20, 1, 1e-5)
    assert 2.99 < audited["epsilon"] <= 3
    names = ["sum", "difference", "pattern", "one run", "one run f-DP", "mean"]
    assert [(test["path"], test["name"]) for test in audited["tests"]] == [
        (path, name) for path in ["all", *audited["paths"]] for name in names
    ]
    found = {name: [test["epsilon_lower_bound"] for test in audited["tests"] if test["name"] == name] for name in names}
    assert list(audited["others"]) == ["mean"]
    mean = audited["others"]["mean"]
    assert mean["epsilon_lower_bound"] == max(found.pop("mean")) <= mean["epsilon"] <= 3 * MOST_SHARE
    assert audited["epsilon_lower_bound"] == max(map(max, found.values()))
    assert set(audited["tests"][0]) == {"name", "path", "epsilon_lower_bound", "mu_lower_bound"}
    assert set(audited["tests"][3]) == {"name", "path", "epsilon_lower_bound", "guesses", "correct"}
    assert set(audited["tests"][4]) == set(audited["tests"][3]) | {"mu_lower_bound"}


def test_stdout_is_the_bound_and_the_table_goes_to_stderr(cli: Cli) -> None:
    outcome = cli(*AUDIT, *SURE)
    assert outcome.status == 0
    assert outcome.stdout.count("\n") == 1
    assert 0 <= float(outcome.stdout) < 3
    words = (
        "noisy-gd",
        "20 runs of 50 canaries",
        "difference",
        "one run",
        "of 100",
        "streamed",
        "not covered: rows on a GPU",
    )
    for word in words:
        assert word in outcome.stderr


@pytest.mark.parametrize("form", [pytest.param([], marks=pytest.mark.nightly), ["--json"]])
def test_too_little_noise_exits_4_after_the_result(cli: Cli, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    real = NoiseSource.add_noise
    monkeypatch.setattr(NoiseSource, "add_noise", lambda self, value, std: real(self, value, std / 4))
    outcome = cli(*AUDIT, *form)
    assert outcome.status == 4
    bound = json.loads(outcome.stdout)["epsilon_lower_bound"] if form else float(outcome.stdout)
    assert bound > 6
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith("linprobe: error: epsilon of noisy-gd is at least ")
    assert "allowed: at most the 3 claimed" in last


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--method", "zero-shot", "--eps", "3"], 2, ["'zero-shot'", "allowed: noisy-gd"]),
        (["--method", "non-private", "--eps", "3"], 2, ["nothing to audit"]),
        (["--method", "nosy-gd", "--eps", "3"], 2, ["did you mean noisy-gd?"]),
        (["--method", "noisy-gd"], 2, ["--eps"]),
        (["--method", "noisy-gd", "--eps", "3", "--q", "0.5"], 2, ["sampling-rate does nothing"]),
        (["--method", "dp-sgd", "--eps", "3", "--sampling-rate", "2"], 2, ["sampling-rate is 2"]),
        (["--method", "noisy-gd", "--eps", "3", "--steps", "0"], 2, ["steps is 0"]),
        (["--method", "noisy-gd", "--eps", "3", "--runs", "11"], 2, ["runs is 11", "12 to 10000"]),
        (["--method", "dpsgd-f", "--eps", "3", "--device", "cuda"], 2, ["on a GPU: noisy-gd"]),
        (["--method", "noisy-gd", "--eps", "3", "--delta", "0.1"], 4, ["below 1/N"]),
    ],
)
def test_wrong_requests_are_one_line(
    cli: Cli, refused: Callable[..., None], words: list[str], status: int, said: list[str]
) -> None:
    refused(cli("audit", *words), status, said)


def test_stated_defaults_and_limits_are_those_of_the_audit() -> None:
    options = declared(AuditRequest)
    default, *others = options["steps"].unset.split("; ")
    stated = {"all rows": int(default), **{words.split()[-1]: int(words.split()[0]) for words in others}}
    for method in METHODS.values():
        if method.spends and not method.one_step:
            kind = method.name if method.name in stated else "all rows" if not method.samples else "sampling"
            assert stated[kind] == method.default_steps, method.name
    assert options["runs"].least == 2 * len(HOST_PATHS)
    assert options["runs"].after.endswith(f" {2 * len(HOST_PATHS + DEVICE_PATHS)}")
