"""The page: limits follow from the guarantee, markup is well-formed, and no link or script leads outside."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from linprobe.reporting.page import STYLE, Evidence, page
from linprobe.runs.check import Recomputed
from linprobe.runs.manifest import Published
from linprobe.runs.officer_page import policy as only
from linprobe.runs.run_folder import RunFolder
from tests.reporting.samples import figures_on

HISTOGRAM = {"bin_edges": [0.0, 1.0, 2.0, 3.0], "noisy_counts": [250, -7, 140]}
PUBLISHED = Published("histogram", epsilon=0.5, noise_multiplier=7.5, file="published_histogram_1.json")


def evidence_of(run: Path, **changes: Any) -> Evidence:
    """Evidence of a run, with `changes` to its manifest, and a published histogram."""
    manifest = replace(RunFolder(run).manifest, **{"published": (PUBLISHED,), **changes})
    checked = Recomputed(*[manifest.epsilon] * 3, None, manifest.gdp_mu, manifest.zcdp_rho, 50)
    return Evidence("run", manifest, checked, [HISTOGRAM], figures_on(["ant", "bee", "cat", "dog"]))


class Markup(HTMLParser):
    """Elements in order; fails on an end tag that closes another element than the innermost."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_markup_is_whole_and_asks_for_nothing(trained_run: Path) -> None:
    text = page(evidence_of(trained_run))
    elements = Markup(text).elements
    assert not {name for name, _ in elements} & {"script", "link", "img", "a", "iframe", "object", "base", "form"}
    for _, attributes in elements:
        assert not {"src", "href", "srcset", "action", "xlink:href"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    policy = [attributes["content"] for name, attributes in elements if attributes.get("http-equiv")]
    assert policy == [only("", STYLE)]
    assert ("html", {"lang": "en"}) in elements
    assert any(attributes.get("name") == "viewport" for _, attributes in elements)


def test_sections_come_in_order_under_one_title(trained_run: Path) -> None:
    text = page(evidence_of(trained_run))
    titles = re.findall(r"<h([1-6])>(.*?)</h", text)
    levels = [int(level) for level, _ in titles]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [title for level, title in titles if level == "2"] == [
        "The guarantee",
        "The ledger",
        "Accuracy",
        "Privacy loss of single records",
        "How it was made",
        "How to verify",
        "The claim, and its sign-off",
    ]


def test_tables_have_captions_and_headers(trained_run: Path) -> None:
    elements = Markup(page(evidence_of(trained_run))).elements
    assert all("scope" in attributes for name, attributes in elements if name == "th")
    names = [name for name, _ in elements]
    assert names.count("caption") == names.count("table")


def test_everything_in_the_manifest_is_escaped(trained_run: Path) -> None:
    """Each string of the manifest, replaced by markup, appears as text or not at all."""
    manifest = json.loads((trained_run / "manifest.json").read_text())
    attack = "<i>&\"'"
    named = ("accountant", "unit")  # words that the page looks up
    words = [key for key, value in manifest.items() if isinstance(value, str) and key not in named]
    assert len(words) > 12
    changes: dict[str, Any] = dict.fromkeys(words, attack)
    changes["class_names"] = [attack]
    changes["public"] = [attack]
    for key in ("options", "software", "files", "accountant_versions"):
        changes[key] = {**manifest[key], attack: attack, "init": attack}
    evidence = evidence_of(trained_run, **changes)
    text = page(Evidence(attack, evidence.manifest, evidence.checked, [HISTOGRAM], figures_on([attack, attack + "2"])))
    Markup(text)
    assert "<i>" not in text
    assert text.count("&lt;i&gt;&amp;&#34;&#39;") >= 12


@pytest.mark.parametrize("classes", [2, 20, 21])
def test_many_classes_are_shortened_and_listed_in_full(trained_run: Path, classes: int) -> None:
    names = [f"class {index:03d}" for index in range(classes)]
    text = page(replace(evidence_of(trained_run, n_classes=classes), test_metrics=figures_on(names)))
    for name in names:
        assert f">{name}<" in text
    short = classes <= 20
    assert ("The ten classes of lowest recall" in text) is not short
    if not short:
        text = text[text.index("lowest recall") :]
        assert text.index("class 001") < text.index(f"class {classes - 1:03d}") < text.index("<summary")


def test_accuracy_by_class_has_intervals_mistakes_and_a_warning(trained_run: Path) -> None:
    text = " ".join(page(evidence_of(trained_run)).split())
    recall, precision = "<td>10</td><td>50.0 (0.0 to 100.0)</td>", "<td>9</td><td>50.0 (20.0 to 80.0)</td>"
    assert f"<bdi>cat</bdi></th>{recall}{precision}<td>0.750</td>" in text
    assert "<bdi>bee</bdi></th><td><bdi>ant</bdi></td><td>9</td><td>90.00 % of 10<" in text
    assert "0.5000, 60 of 120 rows" in text
    assert "is not above 0.9000, the accuracy of always predicting the majority class &#39;dog&#39;" in text


def test_a_small_confusion_matrix_has_names_and_numbers(trained_run: Path) -> None:
    found = {}
    for size in (2, 10, 11):
        figures = figures_on([f"<class {number}>" for number in range(size)], rows=12_346)
        found[size] = page(replace(evidence_of(trained_run), test_metrics=figures))
    (matrix,) = re.findall(r'aria-label="Confusion matrix".*?</table>', found[2], re.DOTALL)
    cells = re.findall(r"<t[hd]\b[^>]*>(?:<bdi>)?([^<]*)", matrix)
    names = ["&lt;class 0&gt;", "&lt;class 1&gt;"]
    assert cells == ["true class", *names, names[0], "0", "0", names[1], "12,345", "1"]
    assert "Confusion matrix" in found[10]
    assert "Confusion matrix" not in found[11]


def test_a_run_without_figures_has_its_accuracy_only(trained_run: Path) -> None:
    text = page(replace(evidence_of(trained_run), test_metrics=None))
    assert "Test rows are public by convention" in text
    assert "By class" not in text


# colours


def colours() -> Iterator[tuple[str, dict[str, str]]]:
    """The colours of each scheme by name."""
    schemes = [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", part)) for part in STYLE.split(":root")[1:]]
    yield from zip(("light", "dark", "print"), schemes, strict=True)


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio, WCAG 2."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("scheme", "colour"), list(colours()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_contrast_is_enough_in_every_scheme(scheme: str, colour: dict[str, str]) -> None:
    for text, ground in (("text", "ground"), ("text", "soft"), ("good", "good-ground"), ("bad", "bad-ground")):
        assert contrast(colour[text], colour[ground]) >= 7, (scheme, text)
    assert contrast(colour["line"], colour["ground"]) >= 3
