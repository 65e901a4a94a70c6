"""What a row carries beside its features: a label or several, a record id, and an owner, the person it belongs to.

An id made from content never depends on the place of a row: deleting a row leaves all other ids as they are, and so
the public shots, which are chosen by id. Adjacent rows of one owner are one unit of privacy; `by_owner` orders them so.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import DataError, UsageError, counted
from linprobe.parallel.array_api import Indices, Mask

MULTICLASS, MULTILABEL = "multiclass", "multilabel"  # one class a row, or several labels a row
TASKS = (MULTICLASS, MULTILABEL)
MOST_LABELS = 4096  # of a row
MOST_CLASSES = 100_000
LONGEST_NAME = 1_024  # characters of a class name
CELLS_AT_ONCE = 1 << 20
SHOWN = 5  # class names in a message
WHOLE_NUMBER = re.compile(r"\s*([+-]?[0-9]+)(?:\.0*)?\s*")
DIGITS = 20  # of the longest whole number that a label can be, with its sign

Arrays = dict[str, NDArray[Any]]


def of_collection(rows: int | None, people: int | None = None) -> str:
    """The rows, or the people with their rows, that `--public-shots` took out of the rows that a run protects."""
    number = None if rows is None else counted(rows, "row")
    if people is None:
        return f"{number} of the same collection"
    return f"{counted(people, 'person')} of the same collection{'' if number is None else f' ({number})'}"


def settle_labels(arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None) -> Arrays:
    """Labels as integers where whole, however stored; else, or if declared, as text. DataError: neither, and where."""
    labels = {key: np.asarray(array) for key, array in arrays.items() if key.startswith("y_")}
    worded = declared is None and any(array.dtype.kind in "US" for array in labels.values())
    flags = ("False", "True") if worded else declared
    labels = {key: plain_labels(key, _settle_flags(key, array, flags)) for key, array in labels.items()}
    texts = [array for array in labels.values() if array.dtype.kind == "U"]
    named = declared is not None and all(set(declared) >= set(array.tolist()) for array in texts)
    if texts and not named:
        try:
            labels |= {key: _whole(array) for key, array in labels.items() if array.dtype.kind == "U"}
        except (ValueError, OverflowError):
            named = True
    if texts and named:
        labels = {key: array if array.dtype.kind == "U" else array.astype(str) for key, array in labels.items()}
    return {**arrays, **labels}


def _whole(texts: NDArray[np.str_]) -> Indices:
    """Text labels as whole numbers; `2.0`, as tables write floats, is 2. ValueError for other text, also 02 and 1_0."""
    found, places = np.unique(texts, return_inverse=True)
    numbers = [WHOLE_NUMBER.fullmatch(text) for text in found.tolist()]
    if not all(number is not None and str(int(number[1])) == number[1] for number in numbers):
        raise ValueError
    return np.array([int(number[1]) for number in numbers if number is not None], dtype=np.int64)[places]


def _settle_flags(key: str, labels: NDArray[Any], names: Sequence[str] | None) -> NDArray[Any]:
    """True and False as the `names` that say so, in any case; as they are with two others. DataError: more or fewer."""
    if labels.dtype.kind != "b":
        return labels
    lower = {name.lower(): name for name in names or ()} | {name: name for name in names or ()}
    if lower.keys() & {"true", "false", "True", "False"}:
        false, true = (lower.get(word, lower.get(word.lower(), word)) for word in ("False", "True"))
        return np.where(labels, true, false)
    if names is not None and len(names) != 2:
        raise DataError(
            f"{key} holds True and False for {len(names)} classes; allowed: 2 classes, or True and False among them; "
            "write class names as labels"
        )
    return labels


def plain_labels(key: str, labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype.kind == "U":
        return labels
    if labels.dtype.kind == "S":
        try:
            return np.char.decode(labels, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{key} holds bytes that are no UTF-8 text; write names as text") from None
    if labels.dtype.kind in "iub":  # a label above int64 stays as it is
        return labels if labels.max(initial=0) > np.iinfo(np.int64).max else labels.astype(np.int64)
    if labels.dtype.kind != "f":
        raise DataError(f"{key} has type {labels.dtype}; allowed: whole numbers, or class names as text")
    wrong = np.flatnonzero(~(labels == np.floor(labels)) | (np.abs(labels) > np.float64(2**53)))
    if wrong.size:
        raise DataError(f"{key} has label {labels[wrong[0]]:g} at row {wrong[0]}; allowed: whole numbers, or text")
    return labels.astype(np.int64)


def declared_names(
    arrays: Mapping[str, NDArray[Any]], classes: Sequence[str] | None, where: str | Path
) -> Sequence[str] | None:
    """The names that `--classes` declares, else those beside the arrays. DataError: others, and labels are no names."""
    if "class_names" not in arrays:
        return classes
    held = [str(name) for name in arrays["class_names"]]
    labels = [array for key, array in arrays.items() if key.startswith("y_")]
    if classes is None or all(array.dtype.kind == "U" and {*array.tolist()} <= {*classes} for array in labels):
        return held if classes is None else classes
    if list(classes) != held:
        mine, theirs = (", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN) for names in (classes, held))
        raise DataError(
            f"{where} names its classes {theirs}, and --classes is {mine}; allowed unless labels are names of "
            "--classes: the same list; leave out --classes"
        )
    return held


def class_list(
    arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None, where: str | Path, *, private_test: bool
) -> tuple[tuple[str, ...], str]:
    """Class names and their origin: declared, or the test labels, if public; whole labels from 0 on are counted."""
    if declared is not None:
        refuse_spellings(declared, f"the class list of {where}", "class name")
        return tuple(declared), "declared"
    if private_test or "y_test" not in arrays:
        why = "there are no test labels to take class names from, and training labels are private"
        why = "test labels are private, so class names cannot come from them" if private_test else why
        raise DataError(f"{why}; declare the classes with --classes A,B,..., or class_names in a .npz")
    labels = arrays["y_test"]
    if not labels.size:
        raise DataError("test has 0 rows; allowed: at least 1, or no X_test and no y_test; add rows or leave it out")
    if labels.dtype.kind in "iub" and labels.min() == 0:
        if labels.max() >= MOST_CLASSES:
            raise DataError(f"y_test has the label {labels.max()}; allowed: 0 to {MOST_CLASSES - 1}; count from 0")
        return tuple(str(index) for index in range(int(labels.max()) + 1)), "test labels"
    names = tuple(str(label) for label in np.unique(labels))
    refuse_spellings(names, f"{where}: y_test", "class name")
    if missing := _missing(names):
        raise DataError(
            f"{where}: y_test has the label {missing[0]!r}, as programs write a missing one; allowed: a class in "
            "every row; leave these rows out, rename the class, or declare it with --classes"
        )
    return names, "test labels"


def label_indices(labels: NDArray[Any], names: Sequence[str], key: str, ids: Sequence[Any] = ()) -> Indices:
    """Labels as indices (rows,) into `names`: by name, or whole numbers by position, unless all names are such."""
    listed = f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
    numbers = [
        int(found[1]) if len(name) <= DIGITS and (found := WHOLE_NUMBER.fullmatch(name)) else None for name in names
    ]
    numbered = all(number is not None and str(number) == name for number, name in zip(numbers, names, strict=True))
    by_position = labels.dtype.kind in "iub" and not numbered
    for place, number in enumerate(numbers if by_position else ()):
        if number in range(len(names)) and number != place:
            raise DataError(
                f"{key} holds whole numbers, and {number} could be the class {names[place]!r} or the class at "
                f"position {number} of the list ({listed}); allowed: class names as text; write them as in the list"
            )
    index = {name: position for position, name in enumerate(names)}
    if by_position:
        indices = np.where((labels < 0) | (labels >= len(names)), -1, labels.astype(np.int64))
        allowed = (
            f"0 to {len(names) - 1}, the positions in the class list ({listed}); subtract 1 if labels count from 1, "
        )
        allowed += "or write class names as labels"
    else:
        indices = np.array([index.get(str(label), -1) for label in labels.tolist()], dtype=np.int64)
        allowed = f"{listed}; declare others with --classes"
    wrong = np.flatnonzero(indices < 0)
    if wrong.size:
        first = int(wrong[0])
        named = f", id {ids[first]}" if len(ids) else ""
        raise DataError(
            f"{key} has {counted(wrong.size, 'label')} outside the classes, first label {labels[first].item()!r} at "
            f"row {first}{named}; allowed: {allowed}"
        )
    return indices


def holds_label_matrix(arrays: Mapping[str, NDArray[Any]]) -> bool:
    return any(array.ndim == 2 for key, array in arrays.items() if key.startswith("y_"))


def settle_matrix(
    arrays: Mapping[str, NDArray[Any]], declared: Sequence[str] | None
) -> tuple[Arrays, tuple[str, ...], str]:
    """The arrays with labels as uint8, the names of the labels (undeclared, the columns' numbers), and their origin."""
    labels = {key: array for key, array in arrays.items() if key.startswith("y_")}
    shapes = {key: array.shape for key, array in labels.items()}
    widths = {shape[1] if len(shape) == 2 else 0 for shape in shapes.values()}
    if len(widths) != 1:
        listed = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
        raise DataError(f"labels have the shapes {listed}; allowed: (rows,), or (rows, labels) with one width for all")
    width = widths.pop()
    if not 2 <= width <= MOST_LABELS:
        raise DataError(f"y_train has {counted(width, 'label')} a row; allowed: 2 to {MOST_LABELS}, or shape (rows,)")
    names = tuple(str(column) for column in range(width)) if declared is None else tuple(declared)
    if len(names) != width:
        raise DataError(f"{len(names)} class names are declared for {width} labels a row; allowed: one for each label")
    settled = {key: _zeros_and_ones(key, array, names) for key, array in labels.items()}
    return {**arrays, **settled}, names, "columns" if declared is None else "declared"


def _zeros_and_ones(key: str, labels: NDArray[Any], names: Sequence[str]) -> NDArray[np.uint8]:
    if labels.dtype.kind not in "fiub":
        raise DataError(f"{key} has type {labels.dtype}; allowed with several labels a row: 0 and 1")
    wrong = np.argwhere(~((labels == 0) | (labels == 1)))
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            f"{key} has {counted(len(wrong), 'value')} other than 0 and 1, first {labels[row, column]:g} at row {row}, "
            f"label {names[column]!r}; allowed: 0 and 1; decide on uncertain or missing labels first, or leave "
            "their rows out"
        )
    return labels.astype(np.uint8)


def check_stored(y: Any, group: str, path: Path, *, n_rows: int, n_classes: int, task: str) -> None:
    """DataError unless the HDF5 data set `y` has class indices (n_rows,), or 0 and 1 in shape (n_rows, n_classes)."""
    shape = (n_rows,) if task == MULTICLASS else (n_rows, n_classes)
    if y.shape != shape or y.dtype.kind not in "iu":
        raise DataError(
            f"{path}: {group} labels have shape {y.shape} and type {y.dtype}; allowed: integers, {shape}; make it again"
        )
    if task == MULTILABEL and n_classes > MOST_LABELS:
        raise DataError(f"{path} declares {n_classes} labels a row; allowed: at most {MOST_LABELS}; use fewer")
    largest = n_classes - 1 if task == MULTICLASS else 1
    wrong, first = 0, (0, 0)
    at_once = max(1, CELLS_AT_ONCE // max([1, *y.shape[1:]]))
    for start in range(0, len(y), at_once):
        labels = y[start : start + at_once]
        bad = np.argwhere((labels < 0) | (labels > largest))
        if len(bad) and not wrong:
            first = (start + int(bad[0][0]), int(labels[tuple(bad[0])]))
        wrong += len(bad)
    if wrong:
        outside = f"outside the {n_classes} declared classes" if task == MULTICLASS else "other than 0 and 1"
        raise DataError(
            f"{path}: {group} has {counted(wrong, 'label')} {outside}, first at row {first[0]} (label {first[1]}); "
            f"allowed: 0 to {largest}"
        )


GIVEN, FILE_NAMES, CONTENT = "given", "file names", "content"
LONGEST_ID = 4_096  # bytes of a record id: a path has at most these on Linux
DIGEST_BYTES = 16
OWNER = "owner"  # column of a table, and first part of an array's key
APART, SHARED = "apart", "shared"  # people with test rows: apart from the others, or declared not to be
TEST_NAMES = ("test", "val", "validation", "valid")  # of a folder, or in a column, of test rows
OwnerOf = Callable[[str], str | None]  # the owner of the record with an id; None if nobody is named
LISTED, PERHAPS_LISTED = re.compile(r"[;|\n\t]"), re.compile(r"[,/+&]")  # between the people of a row
# how programs write that there is no name, in lower case
MISSING = frozenset(("", "nan", "-nan", "nat", "na", "#na", "<na>", "n/a", "#n/a", "none", "null", "nil", "\\n"))
BRACKETS = {"[": "]", "(": ")", "{": "}"}
Bounds = Indices  # rows of unit u are bounds[u] to bounds[u + 1], shape (n_units + 1,)


class ContentIds:
    """Ids `PREFIX/DIGEST` of the rows of one group, in row order, of shape, type, bytes and label of a row; private.

    Rows that are equal in all of them are numbered from the second on: `PREFIX/DIGEST-2`. Deleting one of them removes
    the last number, which may be of another person (`first_of_equal`). The digest has no key.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names: list[str] = []
        self._seen: Counter[str] = Counter()

    def add(self, rows: NDArray[Any], labels: NDArray[np.integer]) -> None:
        contiguous = np.ascontiguousarray(rows)
        kind = f"{contiguous.shape[1:]} {contiguous.dtype.str}".encode()
        for row, label in zip(contiguous, labels.tolist(), strict=True):
            sha = hashlib.blake2b(kind, digest_size=DIGEST_BYTES)
            sha.update(row.data)
            sha.update(str(label).encode())
            name = f"{self.prefix}/{sha.hexdigest()}"
            self._seen[name] += 1
            count = self._seen[name]
            self.names.append(name if count == 1 else f"{name}-{count}")


def first_of_equal(name: str) -> str:
    return name.partition("-")[0]


def refuse_long(longest: int, where: str) -> None:
    if longest > LONGEST_ID:
        raise DataError(f"{where} holds a text of {longest} bytes; allowed: {LONGEST_ID}; shorten it")


def id_hashes(names: Iterable[str], split_seed: int) -> NDArray[np.uint64]:
    """Pseudo-random 64-bit numbers, shape (n_names,), that depend on the id of a record or person and the seed only."""
    digests = (hashlib.sha256(f"{split_seed}\0{name}".encode()).digest()[:8] for name in names)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def in_share(names: Iterable[str], share: float) -> Mask:
    """Mask of the names whose hash is among the lowest `share` of all numbers, 0 < share < 1, shape (n_names,)."""
    return id_hashes(names, 0) < np.uint64(math.ceil(share * 2.0**64))


def by_owner(owners: NDArray[Any]) -> NDArray[np.intp]:
    """The order of rows with the given owners (n_rows,) that puts the rows of an owner next to each other."""
    return np.argsort(owners, kind="stable")


def owner_names(owners: NDArray[Any], n_rows: int, name: str) -> NDArray[Any]:
    """The owner of each row as a whole number or as text, shape (n_rows,). Raises DataError: not one for each row."""
    if owners.shape != (n_rows,) or owners.dtype.kind not in "iuUSO":
        unnamed = np.argwhere(owners != owners).ravel()[:1].tolist()
        raise DataError(
            f"{name} has shape {owners.shape} and type {owners.dtype} for {n_rows} rows"
            f"{f', first NaN at row {unnamed[0]}' if unnamed else ''}; allowed: one name or whole number for each row"
            f"{f'; give {name}.astype(int)' if owners.dtype.kind == 'f' and not unnamed else ''}"
        )
    if owners.dtype.kind != "O":
        return plain_labels(name, owners) if owners.dtype.kind == "S" else owners
    missing = sum(not isinstance(owner, str | int | np.integer) or isinstance(owner, bool) for owner in owners)
    if missing:
        raise DataError(f"{name} has {missing} of {n_rows} rows without a name or whole number; allowed: one a row")
    return owners.astype(str)


def owner_bounds(owners: Iterable[str], where: str) -> tuple[Bounds, list[str]]:
    """Where each owner's rows begin (n_units + 1,), and the owners. DataError: not adjacent, or as `check_owners`."""
    names: list[str] = []
    bounds = [0]
    for owner, rows in groupby(owners):
        names.append(owner)
        bounds.append(bounds[-1] + sum(1 for _ in rows))
    if len(set(names)) != len(names):
        raise DataError(
            f"{where} has {counted(len(names) - len(set(names)), 'owner')} whose rows are not adjacent; allowed: the "
            "rows of a person next to each other; make the file with linprobe import or extract, which sort them; of "
            "shards, which are read in the order of their names, keep a person in one"
        )
    check_owners(names, where, bounds)
    return np.array(bounds, dtype=np.int64), names


def names_several(owner: str, known: Collection[str]) -> bool:
    """Whether an owner lists people: `P1;P2`, `P1|P2`, `[P1, P2]`; or `P1,P2`, if both own rows: names have commas."""
    parts = [part.strip() for part in LISTED.split(owner) if part.strip()]
    if len(parts) > 1 or (owner[:1] in BRACKETS and owner[-1:] == BRACKETS[owner[0]] and "," in owner):
        return True
    parts = [part.strip() for part in PERHAPS_LISTED.split(owner) if part.strip()]
    return len(parts) > 1 and all(part in known for part in parts)


def one_spelling(owner: str) -> str:
    """An owner's name without what programs add or change: blanks at its ends, its Unicode form, `.0` of a number."""
    name = unicodedata.normalize("NFC", owner).strip()
    number = WHOLE_NUMBER.fullmatch(name)
    return name if number is None else number[1]


def people_in_both(some: Iterable[str], others: Iterable[str]) -> set[str]:
    return set(map(one_spelling, some)).intersection(map(one_spelling, others))


def refuse_spellings(names: Iterable[str], where: str, what: str = "owner") -> None:
    """DataError if two of the `names` are one name in two spellings: a person would count as two people."""
    first: dict[str, str] = {}
    each = [(first.setdefault(one_spelling(name), name), name) for name in dict.fromkeys(names)]
    twice = [pair for pair in each if pair[0] != pair[1]]
    if twice:
        shown = "" if what == OWNER else f" ({twice[0][0]!r} and {twice[0][1]!r})"  # people stay unnamed
        raise DataError(
            f"{where}: {counted(len(twice), what)} {'is' if len(twice) == 1 else 'are'} another {what} in another "
            f"spelling{shown}, with blanks at an end, another Unicode form, or .0 after a whole number; allowed: one "
            "spelling for each; write them alike"
        )


def _missing(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.strip().lower() in MISSING)


def check_owners(owners: Sequence[str], where: str, rows: Sequence[object] | None = None, known: Any = None) -> None:
    """DataError for owners that do not name one person each: missing, in several spellings, or several people.

    A person with a missing name would count as another person; if one of several people were removed, the row would
    belong to another person. The message names `rows`, by default places, and nobody; `known` are owners of all rows.
    """
    each = set(owners)
    if missing := _missing(each):
        raise DataError(
            f"{where}: rows have the owner {missing[0].strip()!r}, as programs write a missing name; allowed: the name "
            "of a person in every row; name the person, or leave these rows out"
        )
    known = each if known is None else {name for name in known if name}
    refuse_spellings(known, where)
    several = {owner for owner in each if names_several(owner, known)}
    found = [row if rows is None else rows[row] for row, owner in enumerate(owners) if owner in several]
    if found:
        raise DataError(
            f"{where}: {counted(len(found), 'row')} with several people as the owner, first "
            f"{', '.join(map(str, found[:5]))}; allowed: one owner a row; leave such rows out, or give all people "
            "who share rows, directly or through others, one name, and the group is protected as one"
        )


def refuse_both_sides(test: Iterable[str], others: Iterable[str], where: str) -> None:
    """DataError if an owner has test rows and other rows: the model would have seen people it is tested on."""
    both = people_in_both(test, others)
    if both:
        raise DataError(
            f"{where}: people with rows on both sides, in test and in train or public: {len(both)}; allowed: 0; remove "
            "their rows from one side and make the file again; or use extract --test-fraction on one folder with "
            "a folder for each class, which splits by person; for an accuracy on people seen in training, import or "
            "extract with --owners-on-both-sides"
        )


def test_side(ids: Iterable[str], fraction: float, owner_of: OwnerOf | None) -> Mask:
    """Mask (rows,) of about a `fraction` of all rows, by their ids alone, or by their owners' names alone."""
    if not 0 < fraction < 1:
        raise UsageError(f"test fraction is {fraction}; allowed: above 0 and below 1")
    test = in_share(ids if owner_of is None else (owner_of(one) or one for one in ids), fraction)
    if test.all() or not test.any():
        raise DataError(
            f"test fraction {fraction} puts {int(test.sum())} of {counted(len(test), 'row')} into the test group; "
            "allowed: some, but not all; change --test-fraction"
        )
    return test


def divided(
    ids: Iterable[str], owner_of: OwnerOf | None, named: NDArray[np.str_] | None, fraction: float | None, where: str
) -> dict[str, Indices]:
    """Places of the rows of each group: by a column `named` (n_rows,) of group names, or by `test_side`."""
    if (named is None) == (fraction is None):
        raise UsageError(
            f"{where}: {'neither' if named is None else 'both'} of --split-column and --test-fraction were given; "
            "allowed: one of the two"
        )
    if named is None:
        test = test_side(ids, fraction or 0, owner_of)
        return {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
    tested = [name for name in TEST_NAMES if (named == name).any()]
    names = {"train": "train", "public": "public"} | dict.fromkeys(tested[:1], "test")
    wrong = np.flatnonzero(~np.isin(named, list(names)))
    if wrong.size or not (named == "train").any():
        got = f"{str(named[wrong[0]])!r} in row {wrong[0]}" if wrong.size else "no row of train"
        raise DataError(f"{where}: the column of groups has {got}; allowed: train, public, {' or '.join(TEST_NAMES)}")
    sides = {group: np.flatnonzero(named == name) for name, group in names.items()}
    return {group: rows for group, rows in sides.items() if rows.size}


def capped(bounds: Bounds, ids: Sequence[str], most: int, seed: int) -> Mask:
    """Mask (n_rows,) of at most `most` rows of each unit, those with the lowest `id_hashes`. UsageError: below 1."""
    if most < 1:
        raise UsageError(f"per-owner-rows is {most}; allowed: 1 or more")
    keep = np.ones(len(ids), dtype=bool)
    for unit in np.flatnonzero(np.diff(bounds) > most):
        rows = np.arange(bounds[unit], bounds[unit + 1])
        order = id_hashes((ids[row] for row in rows), seed)
        keep[rows[np.argsort(order, kind="stable")[most:]]] = False
    return keep
