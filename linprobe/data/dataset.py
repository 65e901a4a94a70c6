"""The rows of a run: which are private, public and test rows, and whose they are. A split uses public facts only."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linprobe.data.blocks import ChainedSource, Preprocessing, Source, concatenated
from linprobe.data.digits import write_digits
from linprobe.data.feature_file import UNLABELLED, FeatureFile, ShardedFeatures, is_pattern
from linprobe.data.feature_reader import FeatureReader, GroupRows, extraction_of, first_difference, test_people
from linprobe.data.labels import (
    CONTENT,
    Bounds,
    capped,
    first_of_equal,
    id_hashes,
    of_collection,
    one_spelling,
    people_in_both,
    refuse_both_sides,
)
from linprobe.data.row_checks import (
    HASHES,
    LEAKS,
    Commitment,
    check_rows,
    compare_test_rows,
    refuse_shared,
    share_people,
)
from linprobe.data.row_weights import BALANCED, RowWeights, class_weights
from linprobe.errors import DataError, PrivacyError, Progress, UsageError
from linprobe.options import OWNER, RECORD
from linprobe.options.requests import DIGITS as DIGITS
from linprobe.parallel.array_api import Floats, Indices, Mask

LEAST_UNLABELLED = 2
ONE_CLASS = "the rows of {} have several labels each"


class PublicRows(ChainedSource):
    def __init__(self, *parts: GroupRows) -> None:
        super().__init__(*parts)
        self.parts = parts

    def ids(self) -> list[str]:
        return [name for part in self.parts for name in part.ids()]

    def digest(self, *, by_blocks: bool = False) -> str:
        """The digest of a single part, or SHA-256 of the digests of several; arguments as in `FeatureReader`."""
        digests = [part.digest(by_blocks=by_blocks) for part in self.parts]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def left_out(self) -> str | None:
        """A note of the rows of other files whose classes the run does not have; None without any."""
        for part in self.parts:
            if part.relabel is not None and part.keep is not None and not part.keep.all():
                total, name = len(part.keep), part.features.description.class_names[int(np.argmin(part.relabel))]
                return (
                    f"{total - part.n_rows:,} of {total:,} public rows of {part.features.path} are of classes that the "
                    f"run does not have, such as {name!r}, and are left out"
                )
        return None

    def __str__(self) -> str:
        return ", ".join(f"group {part.group} of {part.features.path}" for part in self.parts)


@dataclass(frozen=True)
class Dataset:
    """The rows of a run, and what is publicly known about the task. Zero-out of one unit leaves its place empty."""

    private: Source  # raw rows
    n_classes: int  # labels are 0 to n_classes - 1; or the number of labels of each row
    public: Source | None = None
    text_weights: Floats | None = None  # encodings of class names, (n_features, n_classes)
    bounds: Bounds | None = None  # rows of person u are bounds[u] to bounds[u + 1] of `private`; None: rows are units
    weights: RowWeights | None = None  # public factors on the losses of private rows; public rows: of their classes
    several_labels: bool = False  # each row has a 0 or 1 for every class, (n_rows, n_classes)
    joined: bool = False  # public rows are protected like private rows
    features: FeatureReader | None = None  # the file of the private rows; None for rows of a caller
    people: Sequence[str] = ()  # their names, in the order of `bounds`; private
    shots: int | None = None  # public training rows per class
    present: Mask | None = None  # units that have their rows; places of others are empty: a neighbour, for audits
    unlabelled: Source | None = None  # public rows without labels, which refine the weights
    class_names: Sequence[str] = ()

    @property
    def protected(self) -> list[Source]:
        more = self.joined and self.public is not None and self.public.n_rows > 0
        return [self.private, self.public] if more and self.public is not None else [self.private]

    @cached_property
    def free_public(self) -> Source | None:
        return None if self.joined or self.public is None or not self.public.n_rows else self.public

    @property
    def free_shots(self) -> GroupRows | None:
        """The public rows that were taken from the training rows and are not protected; None without any."""
        parts = self.public.parts if isinstance(self.public, PublicRows) and not self.joined else ()
        return next((part for part in parts if part.features is self.features and part.group == "train"), None)

    def like_private(self, spends: bool) -> Source | None:
        """Public rows in place of private ones: shots; without any, all with labels if the method reads no other."""
        return self.free_public if self.free_shots is None and not spends else self.free_shots

    @cached_property
    def n_public_owners(self) -> int | None:
        shots = self.free_shots
        return len(set(shots.owners())) if shots is not None and self.unit == OWNER else None

    @property
    def public_collection(self) -> str | None:
        return None if self.free_shots is None else of_collection(self.free_shots.n_rows, self.n_public_owners)

    @cached_property
    def n_units(self) -> int:
        """Number of protected units: rows, or people. Public."""
        own = self.private.n_rows if self.bounds is None else len(self.bounds) - 1
        return own + sum(source.n_rows for source in self.protected[1:])

    @cached_property
    def test_bounds(self) -> Bounds | None:
        return None if self.features is None else test_people(self.features, self.unit)

    @cached_property
    def unit(self) -> str:
        return RECORD if self.bounds is None else OWNER

    @property
    def weights_shape(self) -> tuple[int, int]:
        return self.private.n_features, self.n_classes

    @property
    def encodings(self) -> Floats | None:
        """Text weights for rows with one class; their scale is meant for softmax."""
        return None if self.several_labels else self.text_weights

    @cached_property
    def public_counts(self) -> Indices:
        """Numbers of public rows that are not protected, by class; zeros if rows have several labels."""
        public = None if self.several_labels else self.free_public
        labels = [y for _, y in public.blocks()] if public is not None else [np.empty(0, dtype=np.int64)]
        return np.bincount(np.concatenate(labels), minlength=self.n_classes)

    @property
    def unequal(self) -> bool:
        """Whether a class has at least twice as many public rows as another, of those that are not protected."""
        return bool(self.public_counts.max() >= max(1, 2 * self.public_counts.min()))

    @cached_property
    def public_centring(self) -> Preprocessing:
        x, y = concatenated([] if self.free_public is None else self.free_public.blocks())
        return Preprocessing.centred_on(x, y if self.unequal else None)

    @property
    def trained(self) -> Source:
        return ChainedSource(*self.protected) if len(self.protected) > 1 else self.private

    @property
    def trained_weights(self) -> RowWeights | None:
        more = sum(source.n_rows for source in self.protected[1:])
        return self.weights if self.weights is None or not more else self.weights.with_more(more)

    @property
    def keep(self) -> Mask | None:
        """Mask of the private rows among the training rows of the feature file; None for all."""
        return self.private.keep if isinstance(self.private, GroupRows) else None

    @property
    def _guarded(self) -> Mask | None:
        shots = self.free_shots
        return None if shots is None or shots.keep is None else ~shots.keep

    def check(self, commitment: Commitment | None = None, *, digest: bool = False) -> None:
        """`check_rows` of the feature file; public rows are compared with private rows of their file too."""
        if self.features is not None:
            public = self.public.parts if isinstance(self.public, PublicRows) else ()
            further = [self.unlabelled] if isinstance(self.unlabelled, GroupRows) else []
            compared = [*(() if self.joined else public), *further]
            check_rows(
                self.features,
                keep=self.keep,
                guarded=self._guarded,
                compared=compared,
                commitment=commitment,
                digest=digest,
            )
            _compare_at_home(part for part in compared if part.features is not self.features)
            for part in public if self.joined and further else ():
                refuse_shared(part, further[0], f"rows of group {part.group}, which the method protects", LEAKS)
            if self.joined and public and "test" in self.features.sizes:
                compare_test_rows(self.features, public, "public rows, which the method protects")

    def unit_names(self) -> list[str]:
        """The name of every protected unit: of its person, or the record id. Private."""
        own = list(self.people) if self.bounds is not None else _of_file(self.private).ids()
        return own + [name for source in self.protected[1:] for name in _of_file(source).ids()]

    def protected_hashes(self) -> NDArray[np.uint64]:
        return np.concatenate([HASHES(rows) for source in self.protected for rows, _ in source.blocks()])

    def private_digest(self) -> str:
        """SHA-256 of the private rows, without public rows that are protected too. Private."""
        return _of_file(self.private).digest()

    def protected_digest(self) -> str:
        return "".join(_of_file(source).digest() for source in self.protected)

    def public_digest(self, *, by_blocks: bool = False) -> str | None:
        """SHA-256 of the unprotected public rows; None without such, or for arrays. `by_blocks`: as in a reader's."""
        public = None if self.joined else self.public
        return public.digest(by_blocks=by_blocks) if isinstance(public, GroupRows | PublicRows) else None

    def has_public_digest(self, stated: str | None) -> bool:
        """Whether a manifest that states the digest `stated` had these public rows, by this version or by 0.2."""
        return any(self.public_digest(by_blocks=old) == stated for old in (False, True))

    def unlabelled_digest(self) -> str | None:
        return self.unlabelled.digest() if isinstance(self.unlabelled, GroupRows) else None


def refuse_private_at_home(public: GroupRows) -> None:
    """PrivacyError if rows of a group `public` are training rows of their own file, or its private test rows."""
    _compare_at_home([public])
    _refuse_test_rows(public.features, public)


def _compare_at_home(parts: Iterable[GroupRows]) -> None:
    for part in parts:
        if part.group == "public":
            check_rows(part.features, compared=[part])


def _of_file(source: Source) -> GroupRows | PublicRows:
    if not isinstance(source, GroupRows | PublicRows):
        raise TypeError(f"{type(source).__name__} has no ids and no digest; give rows of a feature file")
    return source


@dataclass(frozen=True)
class Split:
    shots: int | None = None  # public training rows of each class; None for the group `public` of the file
    seed: int = 0  # chooses public shots, and the rows of a person
    unit: str | None = None  # `owner` to protect people, `record` or None to protect rows
    per_owner_rows: int | None = None  # at most
    joined: bool = False  # the method protects public rows too


@contextmanager
def open_features(
    path: Path | None, *, whole: bool = True, labelled: bool = True, progress: Progress | None = None
) -> Iterator[FeatureFile | ShardedFeatures]:
    """The feature file at `path`, shards of a pattern, or the digits for None; with `whole` every row is checked."""
    if path is None or (str(path) == DIGITS and not path.exists()):
        with tempfile.TemporaryDirectory() as folder:
            digits = Path(folder) / "digits.h5"
            write_digits(digits)
            with FeatureFile(digits, shown_as=Path(DIGITS)) as features:
                features.checked = True
                yield features
        return
    with ShardedFeatures(path) if is_pattern(path) else FeatureFile(path) as features:
        if labelled and "train" not in features.sizes:
            raise DataError(f"{path} holds rows without labels; give labelled training rows, perhaps test rows")
        if whole:
            check_rows(features)
        if progress is not None:
            note_equal_rows(features, progress)
        yield features


def note_equal_rows(features: FeatureReader, progress: Progress) -> None:
    if features.equal is not None and features.equal.few:
        progress.note(features.equal.note)


def dataset_of(
    features: FeatureReader,
    other: FeatureReader | None = None,
    split: Split | None = None,
    class_weight: str | dict[str, float] | None = None,
    unlabelled: FeatureReader | None = None,
) -> Dataset:
    """The rows of a feature file, split by public facts. PrivacyError: a person or a test row is private and public."""
    split = split or Split()
    # a method that joins public rows protects all rows
    shots = 0 if split.joined and split.shots else split.shots
    public, taken = _public_rows(features, other, shots, split)
    private, bounds, people = private_units(features, taken, split)
    if unlabelled is not None:
        _check_made_alike(features, unlabelled)
    further = None if unlabelled is None else unlabelled_group(unlabelled)
    _refuse_private_outside(features, split, people, public, further)
    # labels of protected rows must not be counted
    weights = None if class_weight is None else _weights(class_weight, features, None if split.joined else public)
    return Dataset(
        private,
        len(features.description.class_names),
        public,
        features.text_weights(),
        bounds,
        weights,
        features.description.several_labels,
        split.joined,
        features,
        people,
        shots,
        unlabelled=further,
        class_names=features.description.class_names,
    )


def _weights(weight: str | dict[str, float], features: FeatureReader, free: PublicRows | None) -> RowWeights | None:
    """The weights of --class-weight, from the labels of `free` public rows; None if noisy class counts give them."""
    if features.description.several_labels:
        raise UsageError(f"--class-weight weighs classes, and {ONE_CLASS.format(features.path)}; leave it out")
    if weight == BALANCED:
        return None
    labels = None if free is None else np.concatenate([y for _, y in free.blocks()])
    return RowWeights(class_weights(weight, features.description.class_names, labels))


def _public_rows(
    features: FeatureReader, other: FeatureReader | None, shots: int | None, split: Split
) -> tuple[PublicRows | None, Mask | None]:
    """Public rows, and a mask of the training rows among them, (n_train,); None if no training row is public."""
    parts, mask = [], None
    if shots is not None and shots < 0:
        raise UsageError(f"public shots is {shots}; allowed: 0 or more")
    if shots and features.description.several_labels:
        raise UsageError(
            f"--public-shots takes rows of every class, and {ONE_CLASS.format(features.path)}; give --public FILE"
        )
    if shots:
        names = features.description.class_names
        owners = features.owners("train") if split.unit == OWNER and features.has_owners("train") else None
        mask = public_shots(features.ids("train"), features.labels("train"), names, shots, split.seed, owners)
        parts.append(GroupRows(features, "train", mask))
    if other is not None:
        parts.append(_other_public_rows(features, other))
    elif shots is None and "public" in features.sizes:
        parts.append(GroupRows(features, "public"))
    return (PublicRows(*parts) if parts else None), mask


def public_shots(
    ids: Sequence[str],
    labels: Indices,
    class_names: Sequence[str],
    shots: int,
    split_seed: int,
    owners: Sequence[str] | None = None,
) -> Mask:
    """Mask (n_rows,): in each class the `shots` records, or people with all their rows, with the lowest `id_hashes`."""
    order = id_hashes(ids if owners is None else owners, split_seed)
    public = np.zeros(len(labels), dtype=bool)
    for index, name in enumerate(class_names):
        rows = np.flatnonzero(labels == index)
        if len(rows) < shots:
            raise DataError(f"public shots is {shots}, but class {name!r} has fewer training rows; lower it")
        public[rows[np.argsort(order[rows], kind="stable")[:shots]]] = True
    if owners is not None:
        public = np.isin(order, order[public])
    if public.all():
        raise DataError(f"{shots} public shots per class take every training row; lower --public-shots")
    return public


def _other_public_rows(features: FeatureReader, other: FeatureReader) -> GroupRows:
    """Public rows of another file, of its group `public` or else `train`; classes are matched by name."""
    _check_made_alike(features, other)
    mine, theirs = features.description, other.description
    first, second = ((one.task, one.several_labels and one.class_names) for one in (mine, theirs))
    if first != second:
        raise DataError(
            f"{other.path} is {theirs.task} and {features.path} {mine.task}, or their labels differ; allowed with "
            "several labels a row: the same labels in the same order"
        )
    group = "public" if "public" in other.sizes else "train"
    apart = "test" in features.sizes and features.has_owners("test") and not mine.shares_owners
    if apart and other.has_owners(group):
        where = f"{features.path} with public rows of {other.path}"
        refuse_both_sides(GroupRows(features, "test").owners(), GroupRows(other, group).owners(), where)
    if mine.several_labels:
        return GroupRows(other, group)
    index = {name: position for position, name in enumerate(mine.class_names)}
    known = {one_spelling(name).casefold(): name for name in index}
    for name in theirs.class_names:
        near = known.get(one_spelling(name).casefold())
        if name not in index and near is not None:
            raise DataError(
                f"{other.path} has class {name!r} and {features.path} {near!r}; allowed: one spelling of a class; "
                f"make the public rows again with {near!r}"
            )
    relabel = np.array([index.get(name, -1) for name in theirs.class_names])
    keep = relabel[other.labels(group)] >= 0
    if not keep.any():
        raise DataError(
            f"{other.path} shares no class name with {features.path}; allowed: one of {', '.join(mine.class_names[:5])}"
        )
    return GroupRows(other, group, keep, relabel)


def _check_made_alike(features: FeatureReader, other: FeatureReader) -> None:
    if other.n_features != features.n_features:
        raise DataError(
            f"{other.path} has {other.n_features} features and {features.path} {features.n_features}; make both with "
            "one backbone"
        )
    differs = first_difference(extraction_of(features.description), extraction_of(other.description))
    if differs is not None:
        name, here, there = differs
        raise DataError(f"{other.path} has {name} {there} and {features.path} {here}; allowed: the same")


def unlabelled_group(features: FeatureReader) -> GroupRows:
    """The rows without labels of a feature file. DataError: a file with labels, or a single row."""
    n_rows = features.sizes.get(UNLABELLED, 0)
    if n_rows < LEAST_UNLABELLED:
        held = "labelled rows" if UNLABELLED not in features.sizes else "1 row"
        raise DataError(
            f"{features.path} holds {held}; allowed: {LEAST_UNLABELLED} or more rows without labels; import an .npz "
            "with X alone, or give extract --unlabelled"
        )
    return GroupRows(features, UNLABELLED)


def _refuse_private_outside(
    features: FeatureReader, split: Split, people: Iterable[str], public: PublicRows | None, further: GroupRows | None
) -> None:
    """PrivacyError if public rows, or `further` ones without labels, show private `people` or private test rows."""
    labelled = () if public is None else public.parts
    unlabelled = () if further is None else (further,)
    protected = set(people)
    if features.description.shares_owners and test_people(features, split.unit) is not None:
        protected.update(features.owners("test"))
    for part in (*labelled, *unlabelled):
        if _shows_people(protected, part, split.unit):
            raise PrivacyError(
                f"group {part.group} of {part.features.path} holds rows of people who have private rows too; a person "
                "is private or public; remove those rows, or give rows of other people"
            )
    # a method that joins public rows protects them
    public_rows = (*(() if split.joined else labelled), *unlabelled)
    for part in public_rows:
        for file in dict.fromkeys((features, part.features)):
            _refuse_test_rows(file, part, by_owner=split.unit == OWNER)


def _shows_people(protected: set[str], part: GroupRows, unit: str | None) -> bool:
    """Whether rows are of `protected` people, or of people whose other rows in the same file are private."""
    if protected and part.features.has_owners(part.group) and people_in_both(protected, part.owners()):
        return True
    return unit == OWNER and part.group == "public" and share_people(GroupRows(part.features, "train"), part)


def _refuse_test_rows(features: FeatureReader, public: GroupRows, *, by_owner: bool = False) -> None:
    twice = "a private row cannot be public too; give other rows, or --public-shots K"
    step = LEAKS if public.group == UNLABELLED else twice
    if features.description.private_test and "test" in features.sizes:
        refuse_shared(GroupRows(features, "test"), public, "private test rows", step, by_owner=by_owner)


def private_units(
    features: FeatureReader, taken: Mask | None, split: Split
) -> tuple[GroupRows, Bounds | None, list[str]]:
    """The training rows that are not `taken` as public shots, and for unit `owner` bounds and names of the people."""
    rows, most = GroupRows(features, "train", None if taken is None else ~taken), split.per_owner_rows
    if (split.unit or RECORD) == RECORD:
        if most is not None:
            raise UsageError(f"per-owner-rows is {most} with unit record; give --unit owner, or leave it out")
        return rows, None, []
    unit_of(features, split.unit)
    bounds, people = rows.people()
    if most is not None:
        ids = rows.ids()
        if features.description.ids_from == CONTENT:  # the numbers of equal rows depend on other people
            ids = [first_of_equal(name) for name in ids]
        keep = np.ones(features.sizes["train"], dtype=bool) if taken is None else ~taken
        keep[keep] = capped(bounds, ids, most, split.seed)
        rows = GroupRows(features, "train", keep)
        bounds = np.concatenate([[0], np.cumsum(np.minimum(np.diff(bounds), most))])
    return rows, bounds, people


def unit_of(features: FeatureReader, unit: str | None, group: str = "train") -> str:
    """The unit of privacy of a group. UsageError: no choice for rows with owners, or unit owner for rows without."""
    owned = features.has_owners(group)
    if unit == RECORD or owned == (unit is not None):
        return unit or RECORD
    names, allowed, step = "does not name", RECORD, f"make it with an array owner_{group}, or --owner-column"
    if owned:
        names, allowed = "names", "owner, record"
        step = "give --unit owner for people, or --unit record for single rows"
    raise UsageError(
        f"unit is {unit or 'not given'}, and {features.path} {names} the owners of its {group} rows; allowed: "
        f"{allowed}; {step}"
    )


def refuse_training_rows(features: FeatureReader) -> None:
    """DataError if the test rows of a file, read whole, are its training rows."""
    if features.equal is not None:
        features.equal.refuse_many()


def check_test_rows(features: FeatureReader, use: str, *, private: bool = False, released: str = "") -> None:
    """DataError without test rows for a `use`, or if they train; PrivacyError for private ones, unless `private`."""
    refuse_training_rows(features)
    if "test" not in features.sizes:
        raise DataError(f"{features.path} has no test rows, which {use}; give a feature file with the group test")
    if features.description.private_test and not private:
        noisy = ", or train with --test-epsilon, or give evaluate --epsilon E, to release a noisy accuracy"
        if released:
            noisy = f"; linprobe info {released} shows its noisy accuracy, and evaluate --epsilon E releases another"
        raise PrivacyError(
            f"test rows of {features.path} are private, and {use} public ones; give another file"
            f"{'' if features.description.several_labels else noisy}"
        )


def check_one_class(features: FeatureReader, command: str) -> None:
    """UsageError for multilabel rows, for a command that needs one class a row."""
    if features.description.several_labels:
        raise UsageError(
            f"linprobe {command} needs one class a row, and {ONE_CLASS.format(features.path)}; allowed for such rows: "
            "train, evaluate, predict, export, verify, report, pdp-report, release, budget, info"
        )
