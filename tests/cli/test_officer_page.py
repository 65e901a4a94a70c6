"""`verify.html`: what it may do, what it says, and what `verify` says about a forged one."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from linprobe.runs.guarantee import guarantee_text
from linprobe.runs.manifest import PROVED, Manifest
from linprobe.runs.officer_page import officer_page
from linprobe.runs.run_folder import RunFolder
from tests.cli.outcomes import NOISY, Cli
from tests.conftest import SCHEMA, copied, trained_once
from tests.hostile.officer import Officer, officer
from tests.hostile.runs import charged, sealed
from tests.reporting.test_page import contrast

STRICT = {"default-src": ["'none'"], "connect-src": ["'none'"], "base-uri": ["'none'"], "form-action": ["'none'"]}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Officer]:
    with officer(tmp_path_factory.mktemp("page")) as found:
        yield found


@pytest.fixture
def pub(cli: Cli, trained_run: Path) -> Path:
    """A release."""
    assert cli("release", trained_run, "--out", "pub").status == 0
    return Path("pub").absolute()


def _between(tag: str) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", officer_page().decode(), re.DOTALL)


def test_the_policy_admits_one_script_and_one_style_sheet_and_nothing_else() -> None:
    (stated,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', officer_page().decode())
    policy = {name: sources for name, *sources in (part.split() for part in stated.split(";"))}
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = _between(tag)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[name] == [f"'sha256-{digest}'"]
    assert STRICT.items() <= policy.items()
    assert policy["trusted-types"] == ["'none'"]


def test_the_page_asks_for_nothing_and_makes_no_markup_from_text() -> None:
    text = officer_page().decode()
    assert "{{" not in text
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses == {"https://json-schema.org/draft/2020-12/schema"}
    assert not re.findall(
        r"\son\w+=|\b(?:src|href|action)=|@import|url\(", re.sub(r"<script>.*</script>", "", text, flags=re.S)
    )
    assert not re.findall(r"\beval\b|new Function|innerHTML|document\.write|fetch\(|XMLHttp|localStorage", text)


def test_text_and_signs_have_enough_contrast() -> None:
    (style,) = _between("style")
    schemes = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", part)) for part in style.split(":root")[1:]]
    assert len(schemes) == 2
    texts = [(name, ground) for name in ("text", "quiet", "mark") for ground in ("ground", "card")]
    texts += [("on-mark", "mark"), *((name, f"{name}-ground") for name in ("good", "bad", "unsure"))]
    for colour in schemes:
        for name, ground in texts:
            assert contrast(colour[name], colour[ground]) >= 7, (name, ground)
        assert min(contrast(colour["edge"], colour[ground]) for ground in ("ground", "card")) >= 4.5


def test_the_page_holds_the_published_schema() -> None:
    (script,) = _between("script")
    (schema,) = re.findall(r"^const SCHEMA = (.*);$", script, re.MULTILINE)
    assert json.loads(schema) == json.loads(SCHEMA.read_text(encoding="utf-8"))


def test_the_page_knows_every_key_and_calls_the_same_ones_stated(page: Officer) -> None:
    found, keys = page.ask("keys"), {"format", *Manifest.keys()}
    assert keys <= {*found["stated"], *found["checked"]}
    assert keys - PROVED == set(found["stated"]) & keys


def test_a_release_holds_the_page_and_verify_knows_it(cli: Cli, refused: Cli, pub: Path) -> None:
    assert (pub / "verify.html").read_bytes() == officer_page()
    assert cli("verify", pub).status == 0
    (pub / "verify.html").write_bytes(officer_page().replace(b"Do not trust this run.", b"Private."))
    refused(cli("verify", pub), 4, ["verify.html is a foreign file", "move it away"])
    refused(cli("release", pub, "--out", "again"), 4, ["verify.html is a foreign file"])
    (pub / "verify.html").unlink()
    assert cli("verify", pub).status == 0


def _zipped(folder: Path, path: Path, method: int, prefix: str = "") -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, prefix + file.name)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_file_is_read(page: Officer, pub: Path, tmp_path: Path, method: int) -> None:
    found = page.ask("run", zip=_zipped(pub, tmp_path / "pub.zip", method))
    assert found["sentence"] == "Private: epsilon 3, for every single record."
    assert found["warning"] is None


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda content: content[:-1], "no zip file"),
        (lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:], "damaged"),
        (lambda content: b"before" + content, "belong to no file"),
        (lambda content: b"not a zip file", "no zip file"),
    ],
)
def test_a_damaged_zip_file_is_refused(
    page: Officer, pub: Path, tmp_path: Path, edit: Callable[[bytes], bytes], said: str
) -> None:
    path = _zipped(pub, tmp_path / "pub.zip", zipfile.ZIP_DEFLATED)
    path.write_bytes(edit(path.read_bytes()))
    answer = page.ask("run", zip=path)
    assert said in answer["refused"]
    assert answer["kind"] == "unreadable"


def _line(run: Path, **changes: Any) -> None:
    first, *rest = (run / "ledger.jsonl").read_text().splitlines()
    lines = [json.dumps({**json.loads(first), **changes}), *rest]
    (run / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    sealed(run)


@pytest.fixture(scope="session")
def costly_run(features_file: Path) -> Path:
    """A run on few samples at a large epsilon. Do not change it."""
    costs = ["--eps", "20", "--steps", "20", "--q", "0.01"]
    return trained_once("costly", features_file, "--method", "dp-sgd", "--public-shots", "0", *costs)


def test_an_honest_run_at_large_epsilon_is_accepted(page: Officer, cli: Cli, costly_run: Path) -> None:
    assert cli("verify", costly_run).status == 0
    answer = page.run(costly_run)
    assert answer["status"] == "private"
    (printed,) = re.findall(r"epsilon at most (2[\d.]+)", answer["sentence"])
    assert printed == dict(answer["figures"])["epsilon computed here"].removesuffix(" (Renyi bound)")


@pytest.mark.parametrize(("epsilon", "kind"), [(5.0, "unconfirmed"), (1.0, "edited")])
def test_an_epsilon_between_the_bounds_of_the_page_is_not_called_edited(
    page: Officer, costly_run: Path, tmp_path: Path, own_books: Path, epsilon: float, kind: str
) -> None:
    copy = copied(costly_run, tmp_path / "copied", own_books)
    sealed(copy, epsilon=epsilon)
    answer = page.run(copy)
    assert answer["kind"] == kind
    assert f"The manifest says epsilon {epsilon:g}" in answer["refused"] or kind == "edited"


NEWER: dict[str, Callable[[Path], None]] = {
    "a release for 'stars'": lambda run: _line(run, purpose="stars"),
    "the event laplace": lambda run: _line(run, event="laplace"),
    "the key surprise": lambda run: sealed(run, surprise=1),
    "format 4": lambda run: sealed(run, format=4),
    "The method dp-stars": lambda run: sealed(run, method="dp-stars"),
    "The accountant a friend": lambda run: sealed(run, accountant="a friend"),
}


@pytest.mark.parametrize("said", NEWER)
def test_what_the_page_does_not_know_is_called_newer(page: Officer, run_copy: Path, said: str) -> None:
    NEWER[said](run_copy)
    answer = page.run(run_copy)
    assert answer["kind"] == "newer"
    assert said.replace("'", "") in answer["refused"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace('"n_test"', '"epsilon": 1, "n_test"'), "epsilon occurs twice"),
        (lambda text: text.replace('"noise_multiplier": ', '"noise_multiplier": NaN, "x": ', 1), "a value is expected"),
        (lambda text: text.replace('"epsilon": ', '"epsilon": 1e999, "x": ', 1), "is too large"),
        (lambda text: text.replace('"steps": 50', '"steps": 50.0'), "lacks steps"),
        (lambda text: text.replace('"method": "', '"method": "\\ud800'), "half a character"),
        (lambda text: text + "{}", "something follows"),
        (lambda text: "[" * 100_000, "inside each other"),
    ],
)
def test_the_decoder_of_the_page_is_strict(
    page: Officer, run_copy: Path, edit: Callable[[str], str], said: str
) -> None:
    path = run_copy / "manifest.json"
    text = path.read_text()
    assert edit(text) != text
    path.write_text(edit(text))
    assert said in page.run(run_copy)["refused"]


def test_the_page_checks_the_signature(cli: Cli, page: Officer, features_file: Path, tmp_path: Path) -> None:
    from tests.cli.test_signature import write_keys

    (secret, public), (_, other) = (write_keys(tmp_path, name) for name in ("one", "two"))
    assert (
        cli(
            "train", features_file, "--method", "adamix", "--steps", "2", "--eps", "3", "--sign", secret, "--out", "run"
        ).status
        == 0
    )
    assert any("you gave no public key" in line for line in page.run(Path("run"))["stated"])
    found = page.run(Path("run"), key=public.read_text())
    assert "signed by the holder" in found["proved"][0]
    assert "not by this key" in page.run(Path("run"), key=other.read_text())["refused"]
    assert page.run(Path("run"), key=secret.read_text())["kind"] == "key"
    sealed(Path("run"), created="2026-01-01T00:00:00+00:00")
    assert "refused" not in page.run(Path("run"))
    assert "changed after it was signed" in page.run(Path("run"), key=public.read_text())["refused"]
    shutil.rmtree("run")


def test_a_ledger_of_many_lines_is_judged(page: Officer, cli: Cli, features_file: Path) -> None:
    train = ("train", features_file, "--method", "noisy-gd", "--steps", "500", "--eps", "3", "--out", "long")
    assert cli(*train).status == 0
    assert "500 noisy results" in " ".join(page.run(Path("long"))["proved"])


EARLIER_PLD, PROVEN_PLD = (f"privacy-loss distribution ({how})" for how in ("dp-accounting", "proven bounds"))


def _reordered(run: Path) -> None:
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["class_weights"] = dict(reversed(manifest["class_weights"].items()))  # no digest sees the order
    path.write_text(json.dumps(manifest))


def _weighed(run: Path) -> None:
    names = json.loads((run / "manifest.json").read_text())["class_names"]
    sealed(run, class_weights=dict.fromkeys(names, 0.5))


def _next(run: Path, key: str) -> None:
    sealed(run, **{key: math.nextafter(json.loads((run / "manifest.json").read_text())[key], math.inf)})


def _smaller(run: Path) -> None:
    """An epsilon below the exact one, by less than what the figures of privacy-loss distributions differ by."""
    stated = json.loads((run / "manifest.json").read_text())["epsilon"] * (1 - 9e-7)
    sealed(run, epsilon=stated, accountant=PROVEN_PLD, cross_check="Renyi DP (dp-accounting)")


SMALL: dict[str, Callable[[Path], None]] = {
    "30 February": lambda run: sealed(run, created="2026-02-30T10:00:00+00:00"),
    "year 0": lambda run: sealed(run, created="0000-02-03"),
    "2^63": lambda run: sealed(run, split_seed=2**63),
    "-2^63 - 1": lambda run: sealed(run, split_seed=-(2**63) - 1),
    "the next rho": lambda run: _next(run, "zcdp_rho"),
    "an accountant of version 0.2": lambda run: sealed(
        run, accountant=EARLIER_PLD, cross_check="Renyi DP (dp-accounting)"
    ),
    "a cross-check of version 0.2": lambda run: sealed(
        run, accountant="Renyi DP (dp-accounting)", cross_check=EARLIER_PLD
    ),
    "less than the exact epsilon": _smaller,
    "fewer rows than the run has in the largest of its chain": lambda run: sealed(
        run, options={**json.loads((run / "manifest.json").read_text())["options"], "init": "a"}, largest_n_private=1
    ),
    "the largest run of no chain": lambda run: sealed(run, largest_n_private=500),
    "weights in another order": lambda run: (_weighed(run), _reordered(run))[0],
}


@pytest.mark.parametrize("name", SMALL)
def test_small_edits_that_verify_refuses_are_refused(page: Officer, cli: Cli, run_copy: Path, name: str) -> None:
    SMALL[name](run_copy)
    assert cli("verify", run_copy).status == 4
    assert "refused" in page.run(run_copy)


def test_what_version_0_2_wrote_of_runs_on_samples_is_accepted_or_called_unproven(
    page: Officer, cli: Cli, refused: Cli, kinds: dict[str, Path], features_file: Path, tmp_path: Path, own_books: Path
) -> None:
    words = ["--method", "dope-sgd", "--accountant", "rdp", "--steps", "3", "--q", "0.2", "--eps", "3"]
    copy = copied(trained_once("renyi", features_file, *words), tmp_path / "renyi", own_books)
    sealed(copy, cross_check=EARLIER_PLD, paper="Nasr et al. 2023 (DOPE-SGD), Algorithm 2 and equation 2")
    assert cli("verify", copy).status == 0
    assert page.run(copy)["status"] == "private"
    sealed(copy, method="dp-sgd")
    refused(cli("verify", copy), 4, ["paper follows from the run"])
    assert "paper" in page.run(copy)["refused"]
    profile = f"privacy profile of private selection, single runs by {EARLIER_PLD}"
    for kind, accountant in (("sampled", EARLIER_PLD), ("selected", profile)):
        run = shutil.copytree(kinds[kind], tmp_path / kind)
        sealed(run, accountant=accountant)
        refused(cli("verify", run), 4, ["version 0.2 could state too small", "nothing says", "linprobe account"])
        answer = page.run(run)
        assert (answer["kind"], "version 0.2" in answer["refused"]) == ("unproven", True)


def test_a_histogram_of_people_by_version_0_2_is_refused(
    page: Officer, cli: Cli, refused: Cli, kinds: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(kinds["people"], tmp_path / "run")
    assert cli("pdp-report", run, "--publish-epsilon", "0.5", "--book", "new.jsonl").status == 0
    published = tmp_path / "run.published-1"
    assert cli("verify", published).status == 0
    assert page.run(published)["status"] == "private"
    stated = json.loads((run / "manifest.json").read_text())
    software = {name: text for name, text in stated["software"].items() if name != "arithmetic"}
    for changes in ({"software": software}, {"device": "cuda"}):
        copy = shutil.copytree(published, tmp_path / min(changes))
        sealed(copy, **changes)
        for words in (("verify", copy), ("release", copy, "--out", "pub")):
            refused(
                cli(*words), 4, ["no proven sensitivity", "epsilon 3 of the other releases stands", "ask for a copy"]
            )
        answer = page.run(copy)
        assert (answer["kind"], "histogram" in answer["refused"]) == ("unproven", True)
    sealed(run, software=software)
    assert cli("verify", run).status == 0
    assert page.run(run)["status"] == "private"


def test_a_tiny_delta_does_not_stop_the_page(page: Officer) -> None:
    for mu, found in zip(
        (1e-5, 0.7, 20.0), page.ask("gaussianEpsilon", settings=[[mu, 5e-324] for mu in (1e-5, 0.7, 20.0)]), strict=True
    ):
        ((holds, before),) = page.ask("gaussian", settings=[[mu, 5e-324, found]])
        assert holds
        assert not before


def _with_hidden_file(content: bytes) -> bytes:
    """A zip file with a file that its list does not name, before the list."""
    end = content.rfind(b"PK\5\6")
    start = int.from_bytes(content[end + 16 : end + 20], "little")
    hidden = b"PK\3\4" + bytes(26) + b"patient 7"
    moved = (start + len(hidden)).to_bytes(4, "little")
    return content[:start] + hidden + content[start : end + 16] + moved + content[end + 20 :]


def _with_comment(content: bytes) -> bytes:
    return content[:-2] + (9).to_bytes(2, "little") + b"patient 7"


@pytest.mark.parametrize("edit", [_with_hidden_file, _with_comment])
def test_a_zip_file_with_hidden_bytes_is_refused(
    page: Officer, pub: Path, tmp_path: Path, edit: Callable[[bytes], bytes]
) -> None:
    path = _zipped(pub, tmp_path / "pub.zip", zipfile.ZIP_DEFLATED)
    path.write_bytes(edit(path.read_bytes()))
    assert "belong to no file" in page.ask("run", zip=path)["refused"]


def _zip_of(members: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


ADDED = {"__MACOSX/run/": b"", "__MACOSX/._run": b"x", "__MACOSX/run/._manifest.json": b"x"}


@pytest.mark.parametrize(
    ("prefix", "more", "outside"),
    [
        ("run\\", {}, 0),
        ("run/", ADDED, 0),
        ("", ADDED, 0),
        ("run/", {**ADDED, "__MACOSX/rows.csv": b"patient 7"}, 1),
        ("", {"__MACOSX/run/rows.csv": b"patient 7"}, 1),
    ],
)
def test_a_zip_file_of_another_system_is_read_and_no_file_in_it_is_passed_over(
    page: Officer, pub: Path, tmp_path: Path, prefix: str, more: dict[str, bytes], outside: int
) -> None:
    members = {prefix + file.name: file.read_bytes() for file in pub.iterdir()}
    found = page.ask("run", zip=_zip_of({**members, **more}, tmp_path / "pub.zip"))
    assert found["status"] == "private"
    assert found["outside"] == outside


@pytest.mark.parametrize("more", ["run/manifest.json", "run\\..\\rows.csv"])
def test_names_in_a_zip_file_that_mean_another_place_are_refused(
    page: Officer, pub: Path, tmp_path: Path, more: str
) -> None:
    members = {f"run\\{file.name}": file.read_bytes() for file in pub.iterdir()}
    answer = page.ask("run", zip=_zip_of({**members, more: b"{}"}, tmp_path / "pub.zip"))
    assert answer["kind"] == "unreadable"
    assert more.replace("\\", "/") in answer["refused"]


def test_a_file_that_a_system_added_is_not_called_an_edit(page: Officer, run_copy: Path) -> None:
    (run_copy / ".DS_Store").write_bytes(b"x")
    assert page.run(run_copy) == {
        "refused": "The folder holds .DS_Store, which the manifest does not list.",
        "kind": "foreign",
    }


@pytest.mark.parametrize("name", ["model.npz", "per_record.npz", "test_figures.json"])
def test_a_damaged_file_with_the_right_digest_is_an_edit(page: Officer, run_copy: Path, name: str) -> None:
    (run_copy / name).write_bytes(b"damaged")
    sealed(run_copy)
    answer = page.run(run_copy)
    assert answer["kind"] == "edited"
    assert f"{name} cannot be" in answer["refused"]


def test_a_changed_file_and_that_of_another_run_are_named(
    page: Officer, run_copy: Path, kinds: dict[str, Path]
) -> None:
    for name in json.loads((run_copy / "manifest.json").read_text())["files"]:
        content = (run_copy / name).read_bytes()
        (run_copy / name).write_bytes(content + b"\n")
        assert f"{name} was changed" in page.run(run_copy)["refused"]
        (run_copy / name).write_bytes(content)
    shutil.copy(kinds["plain"] / "per_record.npz", run_copy)
    assert "belongs to another run" in page.run(run_copy)["refused"]


def test_a_manifest_beyond_64_mb_is_refused_in_one_sentence(page: Officer, run_copy: Path) -> None:
    path = run_copy / "manifest.json"
    path.write_text(path.read_text() + " " * 2**26)
    assert page.run(run_copy)["refused"] == "manifest.json is larger than 64 MB, and linprobe reads none of that size."


def test_a_promise_that_protects_almost_nothing_has_no_tick(page: Officer, run_copy: Path, costly_run: Path) -> None:
    honest = page.run(run_copy)
    assert honest["look"] == "good"
    share = (1 + math.erf(json.loads((run_copy / "manifest.json").read_text())["gdp_mu"] / math.sqrt(8))) / 2
    assert f" {math.ceil(share * 1000) / 10} % " in honest["promise"]
    assert share * 1000 % 1 < 0.5  # nearest is not enough
    assert "At even odds, they are right in at most" in honest["promise"]
    assert "true limit" not in honest["promise"]
    sampled = page.run(costly_run)
    assert sampled["look"] == "good"  # its true limit is lower than the page can say
    assert "The true limit is lower, and linprobe report states it" in sampled["promise"]

    def quieter(line: dict[str, Any]) -> None:
        line["noise_multiplier"] /= 10

    charged(run_copy, quieter)
    weak = page.run(run_copy)
    assert (weak["status"], weak["look"]) == ("private", "unsure")
    assert weak["promise"].startswith("At this epsilon the promise protects almost nothing.")


def test_the_page_says_which_files_it_does_not_judge(page: Officer, kinds: dict[str, Path]) -> None:
    said = "config.toml, history.csv: unchanged, but what they say was not judged here, except for clip norms."
    assert said in page.run(kinds["plain"])["stated"]
    assert said.replace(":", ", published_histogram_1.json:") in page.run(kinds["histogram"])["stated"]


def test_the_page_says_whom_a_run_does_not_protect(page: Officer, kinds: dict[str, Path]) -> None:
    manifest, texts = RunFolder(kinds["people"]).manifest, page.run(kinds["people"])["stated"]
    assert any(f"NOT protected: {manifest.public_collection}" in text for text in texts)
    tested = page.run(kinds["private test people"])["stated"]
    assert any("100 private test people" in text for text in tested)
    assert any("test row" in text and "not protected" in text for text in page.run(kinds["plain"])["stated"])
    assert not any("test row" in text for text in tested)


@pytest.mark.parametrize("words", [("--method", "non-private"), (*NOISY, "--noise-seed", "7", "--insecure-seed")])
def test_a_run_that_is_not_private_protects_nobody(
    cli: Cli, page: Officer, features_file: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert cli("train", features_file, *words, "--out", "run").status == 0
    found = page.run(tmp_path / "run")
    assert not any("What was protected" in text for text in found["stated"])
    assert any("Used, and not protected: " in text and "private records" in text for text in found["stated"])
    assert ["protects", "nobody"] in found["figures"]


def test_the_page_says_on_which_condition_the_epsilon_of_samples_holds(
    cli: Cli, page: Officer, kinds: dict[str, Path]
) -> None:
    plain = kinds["plain"]
    words = ["--unit", "record", "--accountant", "rdp", "--steps", "3", "--eps", "6", "--init", plain, "--out", "run"]
    assert cli("train", plain.parent / "rows.h5", "--method", "dp-sgd", *words).status == 0
    assert any(line.startswith("That no result decided the noise,") for line in page.run(Path("run"))["stated"])


def test_a_start_that_the_ledger_does_not_count_is_stated_and_not_checked(
    cli: Cli, page: Officer, kinds: dict[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(kinds["inherited"], tmp_path / "run"))
    words = "started from run plain, and counts no release of it"
    assert words not in cli("verify", run).stderr
    assert not any("run plain" in line or "no result" in line for line in page.run(run)["stated"])
    mechanism = json.loads((run / "manifest.json").read_text())["mechanism"]
    sealed(
        run, mechanism=mechanism.removesuffix(" with the releases of the run that it started from")
    )  # an earlier one
    assert json.loads((run / "manifest.json").read_text())["mechanism"] != mechanism
    assert (cli("verify", run).status, page.run(run)["status"]) == (0, "private")
    options = json.loads((run / "manifest.json").read_text())["options"]
    charged(run, lambda line: line["purpose"] != "inherited", options={**options, "init": f"{options['init']}/"})
    assert cli("verify", run).status == 0
    assert words in cli("verify", run).stderr
    assert any(line.startswith("That run plain, from which this one started,") for line in page.run(run)["stated"])


def test_a_tuned_run_states_at_least_its_exact_cost(page: Officer, kinds: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(kinds["selected"], tmp_path / "run"))
    manifest = json.loads((run / "manifest.json").read_text())
    event, delta = manifest["selection"], manifest["delta"]
    exact = page.ask("selection", runs=event["runs"], mean=event["mean_repetitions"], delta=delta)
    for stated, refused in ((exact, False), (exact * (1 - 1e-9), True)):
        sealed(run, epsilon=stated, guarantee=guarantee_text(stated, delta, None, unit="record"))
        assert ("refused" in page.run(run)) is refused
