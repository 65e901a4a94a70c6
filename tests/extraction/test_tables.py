"""Images in one folder, and a table that names the class, the person and the group of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linprobe.data.feature_file import FeatureFile
from linprobe.data.labels import id_hashes
from linprobe.errors import DataError, LinprobeError, PrivacyError, UsageError
from linprobe.extraction.extract import extract
from linprobe.extraction.request import ExtractRequest
from tests.extraction.samples import Notes

HEADER = "file,name,label,patient,split"
PEOPLE = 12


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twenty-four photographs of twelve people, in a folder beside the table; every second is an ant."""
    (tmp_path / "flat").mkdir()
    lines = [HEADER]
    for place in range(2 * PEOPLE):
        pixels = np.random.default_rng(place).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "flat" / f"{place:02d}.png")
        part = ("train", "train", "test")[place % 3]
        lines.append(f"flat/{place:02d}.png,n{place},{('ant', 'bee')[place % 2]},P{place // 2},{part}")
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "photos.csv"


def extracted(table: Path, notes: Notes | None = None, **options: Any) -> dict[str, dict[str, tuple[int, str | None]]]:
    """Class index and owner by id, for each group of the feature file that the table gives."""
    out = table.with_suffix(".h5")
    out.unlink(missing_ok=True)
    request = ExtractRequest(table=table, backbone="pixels", resize=4, crop=4, out=out, device="cpu", **options)
    assert extract(request, notes or Notes()) is not None
    with FeatureFile(out) as features:
        return {
            group: {
                name: (int(label), owner)
                for name, label, owner in zip(
                    features.ids(group),
                    features.labels(group),
                    features.owners(group) if features.has_owners(group) else [None] * size,
                    strict=True,
                )
            }
            for group, size in features.sizes.items()
        }


def refusal(kind: type[LinprobeError], table: Path, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        extracted(table, **options)
    assert not table.with_suffix(".h5").exists()
    return str(caught.value)


def test_a_fraction_splits_people_and_not_photographs(table: Path) -> None:
    found = extracted(table, owner_column="patient", test_fraction=0.4)
    assert found["train"] | found["test"] == {
        f"flat/{place:02d}.png": (place % 2, f"P{place // 2}") for place in range(2 * PEOPLE)
    }
    tested = {owner for _, owner in found["test"].values()}
    assert tested == {
        name for name in (f"P{place}" for place in range(PEOPLE)) if id_hashes([name], 0)[0] < 0.4 * 2.0**64
    }
    assert not tested & {owner for _, owner in found["train"].values()}


def test_rows_are_the_photographs_that_the_lines_name(table: Path) -> None:
    lines = table.read_text().splitlines()
    absolute = str(table.parent / lines[2].partition(",")[0])
    table.write_text("\n".join([lines[0], *reversed(lines[1:])]).replace("flat/01.png", absolute))
    found = extracted(table, id_column="name", split_column="split", dtype="float32")
    assert set(found["train"]) == {f"n{place}" for place in range(2 * PEOPLE) if place % 3 < 2}
    assert set(found["test"]) == {f"n{place}" for place in range(2 * PEOPLE) if place % 3 == 2}
    with FeatureFile(table.with_suffix(".h5")) as features:
        rows = dict(zip(features.ids("train"), features.rows("train", slice(None)), strict=True))
        assert features.description.class_names_from == "test labels"
        assert features.description.ids_from == "given"
    for place in (1, 21):
        image = np.asarray(Image.open(table.parent / "flat" / f"{place:02d}.png"))
        np.testing.assert_allclose(rows[f"n{place}"], image.transpose(2, 0, 1).reshape(-1) / 255, atol=1e-6)


def test_a_parquet_table_gives_what_the_csv_gives(table: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [line.split(",") for line in table.read_text().splitlines()]
    other = table.with_suffix(".parquet")
    parquet.write_table(arrow.table([list(column) for column in zip(*rows[1:], strict=True)], names=rows[0]), other)
    options = {"owner_column": "patient", "test_fraction": 0.4}
    assert extracted(table, **options) == extracted(other, **options)


def test_private_test_rows_need_declared_classes(table: Path) -> None:
    options = {"owner_column": "patient", "test_fraction": 0.4, "private_test": True}
    with pytest.raises(DataError, match=r"test labels are private.*--classes"):
        extracted(table, **options)
    assert not table.with_suffix(".h5").exists()
    (table.parent / "names.txt").write_text("ant\nbee\ncat\n")
    extracted(table, classes=table.parent / "names.txt", **options)
    with FeatureFile(table.with_suffix(".h5")) as features:
        assert features.description.class_names_from == "declared"
        assert features.description.test_rows == "private"


def test_a_class_without_test_rows_must_be_declared(table: Path) -> None:
    table.write_text(table.read_text().replace("flat/00.png,n0,ant", "flat/00.png,n0,wasp"))
    assert "'wasp' at row 0, id flat/00.png" in refusal(DataError, table, split_column="split")


@pytest.mark.parametrize("label", ["", "NA"])
def test_a_missing_label_makes_no_class(table: Path, label: str) -> None:
    table.write_text(table.read_text().replace("n2,ant", f"n2,{label}"))
    assert f"the label {label!r}, as programs write" in refusal(DataError, table, split_column="split")


def test_other_owners_or_ids_are_other_settings(table: Path) -> None:
    extracted(table, id_column="name", split_column="split")
    table.write_text(table.read_text().replace(",n5,", ",other,"))
    request = ExtractRequest(
        table=table, backbone="pixels", resize=4, crop=4, out=table.with_suffix(".h5"), device="cpu",
        id_column="name", split_column="split",
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"overwrite"):
        extract(request, Notes())


def test_what_a_table_cannot_mean_is_refused(table: Path) -> None:
    text, half = table.read_text(), {"test_fraction": 0.5}
    assert "'file', 'name', 'label'" in refusal(UsageError, table, path_column="photo", **half)
    assert "'patient'" in refusal(UsageError, table, owner_column="person", **half)
    assert "neither of --split-column and --test-fraction" in refusal(UsageError, table)
    assert "both of" in refusal(UsageError, table, split_column="split", **half)
    assert "both sides" in refusal(DataError, table, owner_column="patient", split_column="split")
    assert "name owners" in refusal(UsageError, table, owner_column="patient", owner_regex="(^..)", **half)
    table.write_text(text.replace("P3", ""))
    assert "no owner" in refusal(DataError, table, owner_column="patient", **half)
    table.write_text(text + text.splitlines()[1] + "\n")
    assert "2 lines with the id 'flat/00.png'" in refusal(DataError, table, **half)
    assert "2 lines with the id 'n0'" in refusal(DataError, table, id_column="name", **half)
    table.write_text(text.replace("flat/03.png", "flat/../flat/04.png"))
    assert "a second time through lines or links" in refusal(PrivacyError, table, **half)
    table.write_text(text)
    (table.parent / "flat" / "07.png").unlink()
    assert "flat/07.png" in refusal(DataError, table, **half)


def test_options_of_a_table_need_one(table: Path) -> None:
    for options in ({}, {"source": "x", "table": table}, {"source": "x", "owner_column": "patient"}):
        with pytest.raises(UsageError, match="--table"):
            ExtractRequest(**options)
