"""Whether a feature file belongs to a run: its rows, its classes, and how its rows were made."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import OWNER
from linprobe.data.dataset import DIGITS, Split, dataset_of, open_features, private_units, unlabelled_group
from linprobe.data.feature_file import is_there
from linprobe.data.feature_reader import FeatureReader, GroupRows, extraction_of, first_difference, is_known
from linprobe.data.labels import refuse_both_sides
from linprobe.data.row_checks import RowSet, compare_test_rows, refuse_shared, share_a_row
from linprobe.errors import DataError, LinprobeError, PrivacyError, Progress, UsageError, printable
from linprobe.methods import find_method
from linprobe.runs.figures import figures_of, stated_metrics
from linprobe.runs.manifest import Manifest
from linprobe.runs.release_rules import start_of
from linprobe.runs.run_folder import RunFolder, commitment

ROUNDING = 1e-3  # scores may round differently on another machine, and change the answer for a row


def features_of(run: RunFolder, features: Path | None) -> Path | None:
    """The feature file to use with a run: `features`, else the run's own. DataError: not where the manifest says."""
    if features is not None:
        return features
    recorded = run.manifest.features
    if recorded == DIGITS:
        return None
    if not is_there(Path(recorded)):
        raise DataError(
            f"run {run.folder} was trained on {recorded}, which is not at {Path(recorded).absolute()}; the run or the "
            "file was moved; give the feature file, or run the command in the folder where the run was trained"
        )
    return Path(recorded)


@contextmanager
def scored_file(run: RunFolder, given: Path | None, progress: Progress) -> Iterator[FeatureReader]:
    """The open file `given` for a run to score; for None its own. DataError: that one is lost, or has other rows."""
    progress.start(0, "reading rows")
    with open_features(features_of(run, given), progress=progress) as features:
        if given is None and not holds_rows(run, features):
            raise DataError(
                f"{features.path} does not hold the rows of run {run.folder}, trained on a file of this name; "
                "give the feature file to score, or run the command in the folder where the run was trained"
            )
        yield features


@contextmanager
def training_file(
    run: RunFolder, other: FeatureReader | str, progress: Progress, *, unchanged: bool = False
) -> Iterator[FeatureReader | None]:
    """The feature file that a run was trained on, for a comparison with the rows of `other`. Its rows are not checked.

    `other` is a feature file, or the name of an array. The result is `other` itself if the run was trained on that
    file. None, with a note, if it is lost, or has another width; a note if it has other rows, or DataError if it must
    be `unchanged`, for results that would tell.
    """
    of_other = f"rows of {_name(other)}"
    try:
        path = features_of(run, None)
    except DataError:
        progress.note(f"{run.manifest.features} is not here, so {of_other} are not compared with private rows")
        yield None
        return
    own = None if isinstance(other, str) or not _is_file_of(run, other) else other
    with open_features(path, whole=False) if own is None else nullcontext(own) as features:
        fits = features.n_features == run.weights.shape[-2]
        if not fits or not holds_rows(run, features):
            found = f"{features.path} does not hold the rows of run {run.folder} any more"
            if unchanged:
                raise DataError(f"{found}; allowed: these rows, or no file; restore the file, or train again")
            progress.note(f"{found}, so {of_other} are not compared with all of them")
        yield features if fits else None


def _name(other: FeatureReader | str) -> str:
    return other if isinstance(other, str) else str(other.path)


def _is_file_of(run: RunFolder, other: FeatureReader) -> bool:
    """Whether a run was trained on the file `other`."""
    recorded = Path(run.manifest.features)
    return recorded == other.path or (recorded.is_file() and other.path.is_file() and recorded.samefile(other.path))


def training_files(
    run: RunFolder, other: FeatureReader | str, progress: Progress, stack: ExitStack, *, unchanged: bool = False
) -> Iterator[tuple[RunFolder, FeatureReader | None]]:
    """A run, the run that it started from, and so on, each with its `training_file`, open as `stack`.

    A note names the first of them that is not here or cannot be read.
    """
    seen = set[Path]()
    while run.folder.resolve() not in seen:  # a forged manifest may name a run that started from it
        seen.add(run.folder.resolve())
        yield run, stack.enter_context(training_file(run, other, progress, unchanged=unchanged))
        start = start_of(run.manifest)
        if start is None:
            return
        try:
            earlier = RunFolder(start)
            _ = earlier.manifest, earlier.weights
        except (LinprobeError, OSError, ValueError):
            lost = f"{printable(start)}, which run {run.folder} started from,"
            progress.note(f"{lost} cannot be read, so rows of {_name(other)} are not compared with its private rows")
            return
        run = earlier


def holds_rows(run: RunFolder, features: FeatureReader) -> bool:
    """Whether a feature file has the public and private rows of a run; without the run's key, the public ones."""
    try:
        _rows(run.manifest, features)
        private_mask(run, features)
    except PrivacyError:
        return False
    except LinprobeError:
        return True
    return True


def check_made_alike(
    run: RunFolder,
    path: Path,
    given: dict[str, Any],
    n_features: int,
    progress: Progress,
    *,
    allow_other: bool | None = None,
) -> None:
    """Compare how some rows were made, `given`, and their width, with what the manifest states of the training rows.

    DataError for another width or making; with `allow_other`, a note. None: the command has no such option.
    """
    trained_on: dict[str, Any] = run.manifest.extraction or {}
    differs = first_difference(trained_on, given)
    if differs is not None:
        name, mine, theirs = differs
        found = f"{path} has {name} {theirs}, and the run {run.folder} was trained with {mine}"
        if not allow_other:
            alike = (
                f"make the rows with linprobe extract --like {run.folder}"
                if is_known(trained_on)
                else "give rows of the same network, with the same image axes or table columns in the same order"
            )
            override = "" if allow_other is None else ", or score them all the same with --allow-other-features"
            raise DataError(f"{found}; {alike}{override}")
        progress.note(f"OTHER FEATURES: {found}; scores mean little")
    elif is_known(trained_on) and not is_known(given):
        weights = f" with weights {trained_on['weights']}" if trained_on["weights"] else ""
        progress.note(f"{path} does not say how its rows were made; the run's: {trained_on['backbone']}{weights}")
    check_width(run, n_features, path)


def how_to_make(run: RunFolder, images: Path) -> str:
    if not is_known(run.manifest.extraction or {}):
        return (
            f"the rows of run {run.folder} were imported: make rows of {images} with the same network, and give the "
            "array, or the file that linprobe import makes of it"
        )
    made = f"{images.resolve().name}.h5"
    file = run.manifest.weights_file
    weights = f" --weights {shlex.quote(file)}" if file else ""
    return (
        f"make them with: linprobe extract {shlex.quote(str(images))} --like {shlex.quote(str(run.folder))} "
        f"--out {shlex.quote(made)}{weights}"
    )


def check_width(run: RunFolder, n_features: int, where: Path) -> None:
    """DataError unless `n_features`, the width of the rows of `where`, is the width of the run's rows."""
    if n_features != run.weights.shape[-2]:
        raise DataError(
            f"{where} has {n_features} features; allowed for the run: {run.weights.shape[-2]}; give rows of its network"
        )


def check_fits(run: RunFolder, features: FeatureReader, progress: Progress, *, allow_other: bool | None = None) -> None:
    """Check how the rows of a feature file were made, their width and their classes. Raises as these checks do."""
    given = extraction_of(features.description)
    check_made_alike(run, features.path, given, features.n_features, progress, allow_other=allow_other)
    check_classes(run, features)


def check_classes(run: RunFolder, features: FeatureReader) -> None:
    """DataError unless a feature file declares the classes of the run, or its labels, in the same order."""
    mine, theirs = run.manifest.class_names, list(features.description.class_names)
    if (run.manifest.task, mine) == (features.description.task, theirs):
        return
    if run.manifest.task != features.description.task:
        differs = f"is {features.description.task}, and the run {run.folder} {run.manifest.task}"
    elif len(mine) != len(theirs):
        differs = f"declares {len(theirs)} classes, and the run {run.folder} {len(mine)}"
    else:
        place = next(place for place, name in enumerate(mine) if name != theirs[place])
        differs = f"declares {theirs[place]!r} as class {place}, and the run {run.folder} {mine[place]!r}"
    raise DataError(f"{features.path} {differs}; use a file with the same classes in the same order")


def refuse_private_rows(run: RunFolder, features: FeatureReader, progress: Progress) -> None:
    """DataError if test rows of a file, or their people, are private in a run, or in a run of its `training_files`.

    Private test rows may be those of the run: they are released with noise.
    """
    with ExitStack() as stack:
        for hidden, words, _ in _private_rows(training_files(run, features, progress, stack), stack):
            compared = hidden.features is features and hidden.group != "public"
            noisy = hidden.group == "test" and features.description.private_test
            if not compared and not noisy:
                _refuse_test_rows(features, hidden, f"{words} of {hidden.features.path}", progress)


def _refuse_test_rows(features: FeatureReader, hidden: GroupRows, where: str, progress: Progress) -> None:
    """DataError if test rows, or the people they belong to, are among private rows; a note of a few equal rows."""
    note = compare_test_rows(features, [hidden], where)
    if note is not None:
        progress.note(note.note)
    apart = features.has_owners("test") and not features.description.shares_owners
    if apart and hidden.features.has_owners(hidden.group):
        refuse_both_sides(GroupRows(features, "test").owners(), hidden.owners(), f"{features.path} and {where}")


def tested_unlabelled(features: FeatureReader, unlabelled: FeatureReader | None) -> list[str]:
    """A note of the test rows that are among `unlabelled` ones, if there are any."""
    if unlabelled is None or "test" not in features.sizes:
        return []
    test = RowSet(lambda: (x for x, _ in features.blocks("test")), short=False)
    test.look_through(x for x, _ in unlabelled_group(unlabelled).blocks())
    equal = len(test.found())
    note = (
        f"{equal:,} of the {features.sizes['test']:,} test rows of {features.path} are among the unlabelled rows of "
        f"{unlabelled.path}; accuracy on rows that refine the weights says little about new rows"
    )
    return [note] if equal else []


def refuse_private_as_public(
    files: Iterable[tuple[RunFolder, FeatureReader | None]], public: GroupRows, use: str
) -> None:
    """PrivacyError if a public row, or its image, is a training or private test row of the file of a run.

    After a run by owner, a row of a private person is private too, and public rows that the method protects are
    private. `use` is what the public rows are for.
    """
    step = f"{use} from private rows would leak; give other public rows"
    with ExitStack() as stack:
        for hidden, words, unit in _private_rows(files, stack):
            refuse_shared(hidden, public, words, step, by_owner=unit == OWNER)


def refuse_private_array(run: RunFolder, name: str, blocks: Sequence[NDArray[np.floating]], progress: Progress) -> None:
    """PrivacyError if rows of an array, in `blocks`, are training or private test rows of the file of a run."""
    with ExitStack() as stack:
        for hidden, words, _ in _private_rows(training_files(run, name, progress, stack), stack):
            if share_a_row((x for x, _ in hidden.blocks()), lambda: blocks):
                raise PrivacyError(
                    f"{name} holds {words} of {hidden.features.path}, which the weights of run {run.folder} come from; "
                    "rows that were private there cannot be public here; give other rows"
                )


def _private_rows(
    files: Iterable[tuple[RunFolder, FeatureReader | None]], stack: ExitStack
) -> Iterator[tuple[GroupRows, str, str]]:
    """The `private_groups` of runs whose files are here, each with the unit of its run."""
    for run, training in files:
        for hidden, words in () if training is None else private_groups(run, training, stack):
            yield hidden, words, run.manifest.unit


def private_groups(run: RunFolder, training: FeatureReader, stack: ExitStack) -> Iterator[tuple[GroupRows, str]]:
    """What a run protects or its file declares private, in words, open as `stack`; not public rows of a lost file."""
    yield GroupRows(training, "train"), "training rows"
    if training.description.private_test:
        yield GroupRows(training, "test"), "private test rows"
    if not find_method(run.manifest.method).joins_public:
        return
    words, other = "rows that the method protects", run.manifest.public_file
    if other is None and "public" in training.sizes and run.manifest.public_from != "nowhere":
        yield GroupRows(training, "public"), words
    elif other is not None and is_there(Path(other)):
        features = stack.enter_context(open_features(Path(other), whole=False))
        yield GroupRows(features, "public" if "public" in features.sizes else "train"), words


def split_of(manifest: Manifest) -> Split:
    # a run without public rows records no shots, even if the file has a public group
    shots = 0 if manifest.public_from == "nowhere" else manifest.public_shots
    joined = find_method(manifest.method).joins_public
    return Split(shots, manifest.split_seed, manifest.unit, manifest.per_owner_rows, joined)


def private_mask(run: RunFolder, features: FeatureReader) -> NDArray[np.bool_] | None:
    """Mask of the training rows of `features` that were private, (n_train,), checked against the data commitment.

    None if the run released nothing about private rows. Raises DataError: no per-record file. PrivacyError: other rows.
    """
    manifest = run.manifest
    if manifest.private_commitment is None:
        return None
    ids, _, key = run.per_record
    known = set(ids)
    people = manifest.unit == OWNER
    if people and not features.has_owners("train"):
        raise PrivacyError(f"{features.path} has no owners, and the run protects people; find the right file")
    keep = np.array([name in known for name in (features.owners if people else features.ids)("train")])
    if find_method(manifest.method).joins_public:
        keep[:] = True  # every training row is private; the ids also name public rows of another file
    if people:
        used = private_units(features, ~keep, split_of(manifest))[0].keep
        keep = keep if used is None else used
    digests = (features.digest("train", keep, by_blocks=old) for old in (False, True))
    if all(commitment(key, digest) != manifest.private_commitment for digest in digests):
        chosen = manifest.is_earlier and manifest.per_owner_rows is not None
        other = ", or version 0.2 chose other rows of a person, without ids" if chosen else ""
        raise PrivacyError(f"{features.path} does not hold the private rows of this run{other}; find the right file")
    return keep


def check_stated(run: RunFolder, features: FeatureReader) -> list[str]:
    """The keys that the file proves, but for rows that it does not hold. PrivacyError: one contradicts it."""
    manifest = run.manifest
    if list(features.description.class_names) != run.manifest.class_names or features.n_features != manifest.n_features:
        raise PrivacyError(f"{features.path} has other classes or features than the manifest; find the right file")
    _same("task", run.manifest.task, features.description.task, features)
    shared = manifest.has("test_owners")
    if shared:
        _same("test_owners", manifest.test_owners, features.description.test_owners, features)
    return [
        "class_names",
        *(["task"] if manifest.has("task") else []),
        *(["test_owners"] if shared else []),
        *_rows(manifest, features),
        *_test_rows(run, features),
    ]


def _rows(manifest: Manifest, features: FeatureReader) -> list[str]:
    if manifest.public_file is not None or find_method(manifest.method).joins_public:
        return []
    try:
        dataset = dataset_of(features, None, split_of(manifest))
    except (UsageError, DataError) as error:
        reason = str(error).partition("; ")[0]
        raise PrivacyError(f"{features.path} cannot be split as the run states ({reason}); do not trust it") from None
    found: dict[str, Any] = {"n_public": 0 if dataset.public is None else dataset.public.n_rows}
    found |= {**dict.fromkeys(("n_private", "n_units"), dataset.n_units), "n_public_owners": dataset.n_public_owners}
    if manifest.has("public_digest"):
        same = dataset.has_public_digest(manifest.public_digest)
        found["public_digest"] = manifest.public_digest if same else dataset.public_digest()
    for key, value in found.items():
        if manifest.has(key):
            _same(key, getattr(manifest, key), value, features)
    return list(found)


def _test_rows(run: RunFolder, features: FeatureReader) -> list[str]:
    """Keys about public test rows, which the file may not declare private: their figures have no noise."""
    manifest = run.manifest
    if manifest.test_rows != "public" or features.sizes.get("test") != manifest.n_test:
        return []
    _same("test_rows", manifest.test_rows, features.description.test_rows, features)
    figures = figures_of(features, run.weights, run.bias) or {}
    known = stated_metrics(manifest)
    for key, name in known.items():
        _close(key, getattr(manifest, key), figures[name], manifest.n_test, features)
    for name, stated in (manifest.test_accuracy_per_class or {}).items():
        of_class = figures["per_class"][name]
        _close(name, stated, of_class["recall"], of_class["n"], features)
    return ["test_rows", *known, "test_accuracy_per_class"]


def _close(key: str, value: float | None, found: float | None, n_rows: int, features: FeatureReader) -> None:
    if value is None or found is None or not math.isclose(value, found, abs_tol=ROUNDING + 1.5 / max(n_rows, 1)):
        _same(key, value, found, features)


def _same(key: str, value: Any, found: Any, features: FeatureReader) -> None:
    if value != found:
        raise PrivacyError(f"{key} is {value} in the manifest, and {features.path} gives {found}; do not trust it")
