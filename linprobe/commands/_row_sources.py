"""Sources of rows: groups of feature files, public shots, public files. No row may be both public and private."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.digits import write_digits
from linprobe.data.equal_rows import share_a_row
from linprobe.data.feature_file import FeatureFile
from linprobe.data.feature_reader import FeatureReader, common_keys, extraction_of, first_difference, is_known
from linprobe.data.feature_scan import owners_of, scan
from linprobe.data.owners import refuse_both_sides
from linprobe.data.public_shots import public_shots
from linprobe.data.sources import ChainedSource
from linprobe.errors import DataError, PrivacyError, UsageError
from linprobe.progress import Progress
from linprobe.runs.run_folder import LoadedRun

DIGITS = "digits"
ONE_CLASS = "the rows of {} have several labels each"


class FileSource:
    """The rows of one group of a feature file, streamed: the rows where `keep` is true, labels mapped by `relabel`."""

    def __init__(
        self,
        features: FeatureReader,
        group: str,
        keep: NDArray[np.bool_] | None = None,
        relabel: NDArray[np.int64] | None = None,
    ) -> None:
        self.features, self.group, self.keep, self.relabel = features, group, keep, relabel
        self.n_rows = features.sizes[group] if keep is None else int(keep.sum())
        self.n_features = features.n_features

    def blocks(self) -> Iterator[tuple[NDArray[np.floating], NDArray[np.int64]]]:
        """Blocks of raw rows and class indices, in file order."""
        for x, y in self.features.blocks(self.group, self.keep):
            yield x, y if self.relabel is None else self.relabel[y]

    def ids(self) -> list[str]:
        """Record ids in the order of the rows."""
        return [name for batch in self.features.id_batches(self.group, self.keep) for name in batch]

    def shard(self, start: int, stop: int) -> FileSource:
        """Rows `start` to `stop` of this source, `stop` excluded.

        Raises:
            UsageError: an empty range, or one that ends after the last row.
        """
        if not 0 <= start < stop <= self.n_rows:
            raise UsageError(
                f"rows {start} to {stop} were requested of {self.n_rows}; allowed: 0 <= start < stop <= {self.n_rows}"
            )
        if stop - start == self.n_rows:
            return self
        chosen = np.zeros(self.features.sizes[self.group], dtype=bool)
        chosen[slice(start, stop) if self.keep is None else np.flatnonzero(self.keep)[start:stop]] = True
        return FileSource(self.features, self.group, chosen, self.relabel)

    def image_keys(self) -> NDArray[np.uint8] | None:
        """Digests of the images' pixels, shape (n_rows, bytes); None if the file has none. Private."""
        keys = self.features.image_keys(self.group)
        return keys if keys is None or self.keep is None else keys[self.keep]

    def digest(self) -> str:
        """SHA-256 of these rows, their labels and ids, and the class names."""
        return self.features.digest(self.group, self.keep)


class PublicRows(ChainedSource):
    """Public rows of one or two files."""

    def __init__(self, *parts: FileSource) -> None:
        super().__init__(*parts)
        self.parts = parts

    def ids(self) -> list[str]:
        """Record ids in the order of the rows."""
        return [name for part in self.parts for name in part.ids()]

    def digest(self) -> str:
        """The digest of a single part, or SHA-256 of the digests of several."""
        digests = [part.digest() for part in self.parts]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def __str__(self) -> str:
        return ", ".join(f"group {part.group} of {part.features.path}" for part in self.parts)


@contextmanager
def open_features(
    path: Path | None, *, whole: bool = True, labelled: bool = True, progress: Progress | None = None
) -> Iterator[FeatureFile]:
    """The feature file at `path`, or the built-in digits for None.

    Args:
        whole: check every row first. labelled: refuse a file without training rows. progress: gets a note of the check.

    Raises:
        DataError: as `FeatureFile` and `scan`, or a file of unlabelled rows where labels are needed.
    """
    if path is None or (str(path) == DIGITS and not path.exists()):
        with tempfile.TemporaryDirectory() as folder:
            digits = Path(folder) / "digits.h5"
            write_digits(digits)
            with FeatureFile(digits, shown_as=Path(DIGITS)) as features:
                yield features
        return
    with FeatureFile(path) as features:
        if labelled and "train" not in features.sizes:
            raise DataError(
                f"{path} holds rows without labels, which only predict and info read; give a file with the group train"
            )
        if whole:
            scan(features)
        if features.equal is not None and features.equal.few and progress is not None:
            progress.note(features.equal.note)
        yield features


def public_source(
    features: FeatureReader,
    other: FeatureReader | None,
    shots: int | None,
    split_seed: int,
    *,
    protected: bool = False,
    people: bool = False,
) -> tuple[PublicRows | None, NDArray[np.bool_] | None]:
    """Public rows, and a mask of the training rows among them, (n_train,); None if no training row is public.

    Args:
        protected: the method protects these rows as it protects private ones, so that they may equal private rows.
        people: shots take all rows of a person.

    Raises:
        PrivacyError: a public row equals a private one.
    """
    parts, mask = [], None
    if shots is not None and shots < 0:
        raise UsageError(f"public shots is {shots}; allowed: 0 or more")
    if shots and features.description.several_labels:
        raise UsageError(
            f"--public-shots takes rows of every class, and {ONE_CLASS.format(features.path)}; give --public FILE, or "
            "a group public in the feature file"
        )
    if shots:
        names = features.description.class_names
        owners = features.owners("train") if people and features.has_owners("train") else None
        mask = public_shots(features.ids("train"), features.labels("train"), names, shots, split_seed, owners)
        parts.append(FileSource(features, "train", mask))
    if other is not None:
        parts.append(_other_public_rows(features, other))
    elif shots is None and "public" in features.sizes:
        parts.append(FileSource(features, "public"))
    if not parts:
        return None, mask
    if not protected:
        _refuse_shared_rows(FileSource(features, "train", None if mask is None else ~mask), parts)
    return PublicRows(*parts), mask


def _other_public_rows(features: FeatureReader, other: FeatureReader) -> FileSource:
    """Public rows of another file, from its `public` group or else its `train` group; classes are matched by name."""
    if other.n_features != features.n_features:
        raise DataError(
            f"{other.path} has {other.n_features} features and {features.path} {features.n_features}; "
            "allowed: equal numbers; make both with the same backbone"
        )
    mine, theirs = features.description, other.description
    differs = first_difference(extraction_of(mine), extraction_of(theirs))
    if differs is not None:
        name, here, there = differs
        raise DataError(f"{other.path} has {name} {there} and {features.path} {here}; allowed: the same")
    if (mine.task, mine.several_labels and mine.class_names) != (
        theirs.task,
        theirs.several_labels and theirs.class_names,
    ):
        raise DataError(
            f"{other.path} is {theirs.task} and {features.path} {mine.task}, or their labels differ; allowed with "
            "several labels a row: the same labels in the same order"
        )
    group = "public" if "public" in other.sizes else "train"
    if "test" in features.sizes and features.has_owners("test") and other.has_owners(group):
        where = f"{features.path} with public rows of {other.path}"
        refuse_both_sides(owners_of(features, "test"), owners_of(other, group), where)
    if mine.several_labels:
        return FileSource(other, group)
    index = {name: position for position, name in enumerate(mine.class_names)}
    relabel = np.array([index.get(name, -1) for name in theirs.class_names])
    keep = relabel[other.labels(group)] >= 0
    if not keep.any():
        raise DataError(
            f"{other.path} shares no class name with {features.path}; allowed: at least one of "
            f"{', '.join(mine.class_names[:5])}"
        )
    return FileSource(other, group, keep, relabel)


def _refuse_shared_rows(private: FileSource, public: Sequence[FileSource]) -> None:
    """PrivacyError if a public row equals a private row, or is a multiple of one, in half precision.

    Public rows of a file, of a group and shots are treated alike. They may repeat each other, as augmented images do.
    """
    mine = private.image_keys()
    for part in public:
        theirs = part.image_keys()
        if mine is not None and theirs is not None and common_keys(mine, theirs):
            raise PrivacyError(_shared("images", private, part))
        if share_a_row((x for x, _ in private.blocks()), (x for x, _ in part.blocks())):
            raise PrivacyError(_shared("rows", private, part))


def _shared(what: str, private: FileSource, public: FileSource) -> str:
    """The message for images or rows that are both private and public."""
    path = private.features.path
    if public.features is not private.features:
        return (
            f"{public.features.path} holds training {what} of {path}; a private {what[:-1]} cannot be public too; "
            f"give other {what}, or --public-shots K"
        )
    if public.group == private.group:
        return (
            f"public shots of {path} have copies among its private {what}; a private {what[:-1]} cannot be public "
            "too; remove the copies from the file, or give --public FILE"
        )
    return (
        f"the group {public.group} of {path} holds {what} of its group {private.group}; a private {what[:-1]} cannot "
        "be public too; remove them from one group, or give --public-shots K"
    )


def features_of(run: LoadedRun, features: Path | None) -> Path | None:
    """The feature file to use with a run: `features` if given, else the file the run was trained on.

    Raises:
        DataError: that file is not where the manifest says.
    """
    if features is not None:
        return features
    recorded = run.manifest["features"]
    if recorded == DIGITS:
        return None
    if not Path(recorded).is_file():
        raise DataError(
            f"run {run.folder} was trained on {recorded}, which is not at {Path(recorded).absolute()}; the run or the "
            "file was moved; give the feature file, or run the command in the folder where the run was trained"
        )
    return Path(recorded)


@contextmanager
def training_file(run: LoadedRun, other: Path, progress: Progress) -> Iterator[FeatureReader | None]:
    """The feature file that a run was trained on, for a comparison with the rows of `other`. Its rows are not checked.

    None if it is not where the manifest says, with a note, or if its rows now have another width than the run.
    """
    try:
        path = features_of(run, None)
    except DataError:
        progress.note(f"{run.manifest['features']} is not here, so rows of {other} are not compared with private rows")
        yield None
        return
    with open_features(path, whole=False) as features:
        yield features if features.n_features == run.weights.shape[-2] else None


def check_one_class(features: FeatureReader, command: str) -> None:
    """UsageError for rows with several labels, for a command that knows one class a row."""
    if features.description.several_labels:
        raise UsageError(
            f"linprobe {command} needs one class a row, and {ONE_CLASS.format(features.path)}; allowed for such rows: "
            "train, evaluate, predict, export, verify, report, pdp-report, release, budget, info"
        )


def refuse_training_rows(features: FeatureReader) -> None:
    """DataError if the test rows of a file, read whole, are its training rows."""
    if features.equal is not None:
        features.equal.refuse_many()


def check_test_rows(features: FeatureReader, use: str, *, private: bool = False) -> None:
    """DataError unless the file has test rows, or if they are its training rows; PrivacyError if they are private.

    Args:
        use: what needs them. private: the result is private, so the rows may be private too.
    """
    refuse_training_rows(features)
    if "test" not in features.sizes:
        raise DataError(f"{features.path} has no test rows, which {use}; give a feature file with the group test")
    if features.description.private_test and not private:
        raise PrivacyError(
            f"test rows of {features.path} are private, and {use} public ones; give another file, or train with "
            "--test-epsilon to release a noisy accuracy"
        )


def check_made_alike(
    run: LoadedRun, path: Path, given: dict[str, Any], progress: Progress, *, allow_other: bool = False
) -> None:
    """Compare how rows were made with what the manifest says of the rows the run was trained on.

    Args:
        given: `extraction_of` the rows in `path`. That they do not say how they were made is noted.

    Raises:
        DataError: they were made otherwise, by the first difference. With `allow_other`, a note instead.
    """
    trained_on: dict[str, Any] = run.manifest.get("extraction") or {}
    differs = first_difference(trained_on, given)
    if differs is not None:
        name, mine, theirs = differs
        found = f"{path} has {name} {theirs}, and the run {run.folder} was trained with {mine}"
        if not allow_other:
            alike = (
                f"make the rows with linprobe extract --like {run.folder}"
                if is_known(trained_on)
                else (f"make the rows as those of the run were made, from {_network(run)}")
            )
            raise DataError(f"{found}; {alike}, or score them all the same with --allow-other-features")
        progress.note(f"OTHER FEATURES: {found}; scores mean little")
    elif is_known(trained_on) and not is_known(given):
        progress.note(f"{path} does not say how its rows were made; the run's are from {_network(run)}")


def _network(run: LoadedRun) -> str:
    """The network of a run's rows, in words."""
    extraction = run.manifest["extraction"]
    weights = f" with weights {extraction['weights']}" if extraction["weights"] else ""
    return f"{extraction['backbone']}{weights}"


def check_width(run: LoadedRun, n_features: int, where: Path) -> None:
    """DataError unless `n_features`, the width of the rows of `where`, is that of the run."""
    if n_features != run.weights.shape[-2]:
        raise DataError(
            f"{where} has {n_features} features; allowed for this run: {run.weights.shape[-2]}; give rows of the "
            "network that the run was trained on"
        )


def check_classes(run: LoadedRun, features: FeatureReader) -> None:
    """DataError unless a feature file declares the classes of the run, or its labels, in the same order."""
    mine, theirs = run.class_names, list(features.description.class_names)
    if (run.task, mine) == (features.description.task, theirs):
        return
    if run.task != features.description.task:
        differs = f"is {features.description.task}, and the run {run.folder} {run.task}"
    elif len(mine) != len(theirs):
        differs = f"declares {len(theirs)} classes, and the run {run.folder} {len(mine)}"
    else:
        place = next(place for place, name in enumerate(mine) if name != theirs[place])
        differs = f"declares {theirs[place]!r} as class {place}, and the run {run.folder} {mine[place]!r}"
    raise DataError(f"{features.path} {differs}; use a file with the same classes in the same order")
