"""What `check_rows` finds in the rows of a feature file, reading the training rows once.

values are finite               comparison with test rows         comparison with public rows
digest of the private rows      commitments to all training rows, which name the budget book
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linprobe.data.feature_file import UNLABELLED
from linprobe.data.feature_reader import BY_CHANCE, EqualRows, FeatureReader, GroupDigest, common_keys
from linprobe.data.owners import refuse_both_sides
from linprobe.data.row_digests import Commitment, Numbers, RawRows, RowSet, name_keys, norms_of, sampled, share_a_row
from linprobe.data.sources import RawBlocks
from linprobe.errors import DataError, PrivacyError, UsageError
from linprobe.parallel.threads import behind

FEWEST = 8  # entries that are not zero; rows with fewer are multiples of each other by chance
NAMED = 5  # rows in a message
WAITING = 4  # blocks that are read before a digest of them is computed


class GroupRows:
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

    def blocks(self) -> RawBlocks:
        """Blocks of raw rows and class indices, in file order."""
        for x, y in self.features.blocks(self.group, self.keep):
            yield x, y if self.relabel is None else self.relabel[y]

    def ids(self) -> list[str]:
        """Record ids in the order of the rows."""
        return [name for batch in self.features.id_batches(self.group, self.keep) for name in batch]

    def owners(self) -> Iterator[str]:
        """The owners in the order of the rows, if the group has owners. Private for private rows."""
        return (name for batch in self.features.owner_batches(self.group, self.keep) for name in batch)

    def shard(self, start: int, stop: int) -> GroupRows:
        """Rows `start` to `stop` of these rows, `stop` excluded.

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
        return GroupRows(self.features, self.group, chosen, self.relabel)

    def image_keys(self) -> NDArray[np.uint8] | None:
        """Digests of the images' pixels, shape (n_rows, bytes); None if the file has none. Private."""
        keys = self.features.image_keys(self.group)
        return keys if keys is None or self.keep is None else keys[self.keep]

    def name_keys(self, key: bytes) -> dict[str, Numbers]:
        """Keyed digests of the `images` and the `owners` of these rows, without those that the file does not have."""
        found: dict[str, Numbers] = {}
        pixels, sources = self.image_keys(), self.features.source_keys(self.group)
        if sources is not None and self.keep is not None:
            sources = sources[self.keep]
        images = [
            name_keys((row.tobytes() for row in digests if row.any()), key, kind)
            for kind, digests in (("pixels", pixels), ("source", sources))
            if digests is not None
        ]
        if images:
            found["images"] = np.concatenate(images)
        if self.features.has_owners(self.group):
            found["owners"] = name_keys((name.encode() for name in dict.fromkeys(self.owners())), key, "owner")
        return found

    def digest(self) -> str:
        """SHA-256 of these rows, their labels and ids, and the class names."""
        return self.features.digest(self.group, self.keep)


def check_rows(
    features: FeatureReader,
    *,
    keep: NDArray[np.bool_] | None = None,
    compared: Sequence[GroupRows] = (),
    commitments: Sequence[Commitment] = (),
    digest: bool = False,
) -> None:
    """Read every row, id and owner of a feature file once, and set `features.equal` and `features.checked`.

    The rows of a file that is `checked` are read only for what was not compared before.

    Args:
        keep: mask of the private rows among the training rows, shape (n_train,); None for all.
        compared: public rows, with labels or without, to compare with the private rows. Those of another file were
            checked when it was opened.
        commitments: all training rows are added to them. digest: compute and keep the digest of the private rows.

    Raises:
        DataError: NaN or infinity, with the number of such rows and the first of them; a repeated id; an id that is
            both private and public; people with test rows and other rows.
        PrivacyError: a public row equals a private row, or is a multiple of one, in half precision.
    """
    test = None if features.checked else _check_all_but_training_rows(features)
    if "train" in features.sizes:
        private = GroupRows(features, "train", keep)
        for part in compared:
            if _share_an_image(private, part):  # public images may repeat each other, as augmented ones do
                raise PrivacyError(_shared("images", features, part))
        sha = features.begin_digest("train", keep) if digest and not features.has_digest("train", keep) else None
        if not features.checked or compared or commitments or sha is not None:
            _check_training_rows(private, test, compared, commitments, sha)
        if test is not None:
            features.equal = _judged(test, features, features.sizes["train"], "training rows")
    features.checked = True


def _check_all_but_training_rows(features: FeatureReader) -> RowSet | None:
    """Check test rows, public rows, text weights, ids and owners; returns the test rows, None without such rows."""
    test = RowSet(_finite_rows(features, "test"), FEWEST) if "test" in features.sizes else None
    for group in {"public", UNLABELLED} & features.sizes.keys():
        for _ in _finite_rows(features, group):
            pass
    text = features.text_weights()
    if text is not None and not np.isfinite(text).all():
        raise DataError(f"{features.path}: text/weights holds NaN or infinity; allowed: finite numbers; make it again")
    _check_ids(features)
    _check_people(features)
    return test


def _check_training_rows(
    private: GroupRows,
    test: RowSet | None,
    public: Sequence[GroupRows],
    commitments: Sequence[Commitment],
    sha: GroupDigest | None,
) -> None:
    """The pass of `check_rows` over the training rows, `private` ones and others."""
    features, keep = private.features, private.keep
    sets = [(part, RowSet(x for x, _ in part.blocks())) for part in public]
    shared: list[GroupRows] = []
    with ExitStack() as stack:  # digests hold no lock while they are computed
        of_all = [stack.enter_context(behind(commitment.add, WAITING)) for commitment in commitments]
        of_private = () if sha is None else (stack.enter_context(behind(sha.add, WAITING)),)
        start = 0
        for x, y, norms in _finite_blocks(features, "train"):
            kept = _kept(keep, slice(start, start + len(x)))
            rows, labels = x[kept], y[kept]
            for add in of_all:
                add(x)
            for add in of_private if len(rows) else ():
                add(rows, labels)
            if test is not None or sets:
                samples = sampled(x, norms)
                shared = shared or _sharing(sets, rows, samples[kept])
                if test is not None:
                    test.find(x, samples)
            start += len(x)
    if shared:
        raise PrivacyError(_shared("rows", features, shared[0]))
    if sha is not None:
        sha.keep()


def _kept(keep: NDArray[np.bool_] | None, part: slice) -> NDArray[np.bool_] | slice:
    """An index of the rows of a block where `keep` is true: a slice, which copies no row, if it is true everywhere."""
    return slice(None) if keep is None or keep[part].all() else keep[part]


def _sharing(sets: Iterable[tuple[GroupRows, RowSet]], rows: RawRows, samples: Numbers) -> list[GroupRows]:
    """The public rows among which is one of the `rows`; `samples` are theirs."""
    return [part for part, known in sets if len(rows) and known.find(rows, samples)]


def compare_test_rows(features: FeatureReader, others: Iterable[RawRows], n_others: int, what: str) -> EqualRows | None:
    """`check_rows`'s comparison of the test rows of a file with other rows: `others`, blocks of `n_others` rows in all.

    Args:
        what: the other rows, for messages.

    Raises:
        DataError: too many of them for chance.
    """
    test = RowSet((x for x, _ in features.blocks("test")), FEWEST)
    for x in others:
        test.find(x)
    equal = _judged(test, features, n_others, what)
    if equal is not None:
        equal.refuse_many()
    return equal


def share_rows(private: GroupRows, public: GroupRows) -> bool:
    """Whether two groups have rows of one image, which may differ, or a row in common as `share_a_row` finds it."""
    rows = ((x for x, _ in group.blocks()) for group in (private, public))
    return _share_an_image(private, public) or share_a_row(*rows)


def share_people(private: GroupRows, public: GroupRows) -> bool:
    """Whether two groups have rows of one owner; False where a file has no owners."""
    named = all(group.features.has_owners(group.group) for group in (private, public))
    return named and not set(private.owners()).isdisjoint(public.owners())


def _share_an_image(private: GroupRows, public: GroupRows) -> bool:
    """Whether two groups have rows of one image; False where a file has no fingerprints."""
    mine, theirs = private.image_keys(), public.image_keys()
    return mine is not None and theirs is not None and bool(common_keys(mine, theirs))


def _shared(what: str, features: FeatureReader, public: GroupRows) -> str:
    """The message for images or training rows of `features` that are both private and public."""
    if public.group == UNLABELLED:
        return (
            f"{public.features.path} holds training {what} of {features.path}; refinement treats its {what} as public, "
            "and that would leak; give other rows with --unlabelled"
        )
    if public.features is not features:
        return (
            f"{public.features.path} holds training {what} of {features.path}; a private {what[:-1]} cannot be public "
            f"too; give other {what}, or --public-shots K"
        )
    if public.group == "train":
        return (
            f"public shots of {features.path} have copies among its private {what}; a private {what[:-1]} cannot be "
            "public too; remove the copies from the file, or give --public FILE"
        )
    return (
        f"the group {public.group} of {features.path} holds {what} of its group train; a private {what[:-1]} cannot "
        "be public too; remove them from one group, or give --public-shots K"
    )


def _judged(test: RowSet, features: FeatureReader, n_others: int, what: str) -> EqualRows | None:
    """The test rows that were found among others; None for none."""
    found, n_test = test.found(), features.sizes["test"]
    if not found.size:
        return None
    allowed = min(n_test, n_others) // BY_CHANCE
    rows = found[:NAMED].tolist()
    both = f"{found.size:,} of {n_test:,} test rows equal {what}, or multiples of them, first at test rows {rows}"
    return EqualRows(f"{features.path}: {both}", allowed, few=bool(found.size <= allowed))


def _finite_rows(features: FeatureReader, group: str) -> Iterator[RawRows]:
    return (x for x, _, _ in _finite_blocks(features, group))


def _finite_blocks(features: FeatureReader, group: str) -> Iterator[tuple[RawRows, NDArray[Any], NDArray[np.float64]]]:
    """Rows, labels and norms of the blocks of a group whose values are all finite.

    Raises:
        DataError: after the last block, if a row is not finite, and so its norm in float64.
    """
    bad: list[int] = []
    start = 0
    for rows, labels in features.blocks(group):
        norms = norms_of(rows)
        bad.extend((start + np.flatnonzero(~np.isfinite(norms))).tolist())
        start += len(rows)
        if not bad:
            yield rows, labels, norms
    if bad:
        raise DataError(
            f"{features.path}: {group} has {len(bad)} rows with NaN or infinity, first at rows {bad[:5]}; "
            "allowed: finite features; remove or repair those rows"
        )


def _check_people(features: FeatureReader) -> None:
    """DataError for people with test rows and other rows."""
    if "test" not in features.sizes or not features.has_owners("test") or features.description.shares_owners:
        return
    others = [group for group in ("train", "public") if group in features.sizes and features.has_owners(group)]
    names = (name for group in others for name in GroupRows(features, group).owners())
    refuse_both_sides(GroupRows(features, "test").owners(), names, str(features.path))


def _check_ids(features: FeatureReader) -> None:
    """DataError for an id that names two records of a group, or a private and a public record."""
    hashes = {group: _id_hashes(features, group) for group in features.sizes}
    for group in features.sizes:
        if repeated := _repeated(features, group, hashes[group]):
            raise DataError(
                f"{features.path}: {group} has {len(repeated)} repeated ids, such as {repeated[0]!r}; "
                "allowed: one id per record"
            )
    if "public" not in hashes:
        return
    common = np.intersect1d(hashes["public"], hashes["train"])
    if not common.size:
        return
    private, public = (set(_ids_with_hash(features, group, common)) for group in ("train", "public"))
    if shared := private & public:
        raise DataError(
            f"{features.path}: {len(shared)} ids are both in train and in public, such as {min(shared)!r}; "
            "allowed: in one of the two; remove those rows from one group"
        )


def _id_hashes(features: FeatureReader, group: str) -> NDArray[np.int64]:
    """64-bit hashes of a group's ids, sorted, shape (n_rows,)."""
    ids = (name for batch in features.id_batches(group) for name in batch)
    hashes = np.fromiter(map(hash, ids), dtype=np.int64, count=features.sizes[group])
    hashes.sort()
    return hashes


def _ids_with_hash(features: FeatureReader, group: str, hashes: NDArray[np.int64]) -> list[str]:
    """The ids of a group whose hash is in `hashes`."""
    wanted = set(hashes.tolist())
    return [name for batch in features.id_batches(group) for name in batch if hash(name) in wanted]


def _repeated(features: FeatureReader, group: str, hashes: NDArray[np.int64]) -> list[str]:
    """The ids that repeat another id of the group. Ids with equal hashes are compared in full."""
    equal = hashes[1:][hashes[1:] == hashes[:-1]]
    names = _ids_with_hash(features, group, equal) if equal.size else []
    return list((Counter(names) - Counter(set(names))).elements())
