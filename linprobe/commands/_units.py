"""The private rows of a run and its unit of privacy: rows, or people with all of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.accountants import composed_epsilon
from linprobe.accounting.events import OWNER, RECORD, Releases
from linprobe.accounting.figures import rounded_up
from linprobe.commands._row_sources import FileSource, PublicRows
from linprobe.data.feature_reader import FeatureReader
from linprobe.data.owners import Bounds, capped, owner_bounds
from linprobe.errors import PrivacyError, UsageError
from linprobe.runs.per_record_file import PrivateRecords
from linprobe.training.engine import Trained

EXAMPLES = (2, 5, 10)  # rows of a person, chosen without a look at the data


@dataclass(frozen=True)
class PrivateUnits:
    """The private rows of a run.

    Attributes:
        rows: the rows. keep: mask of them among the training rows, shape (n_train,); None for all.
        bounds: where the rows of each person begin, shape (n_people + 1,); None if rows are the units.
        names: of the people, in the same order; empty if rows are the units. Private.
    """

    rows: FileSource
    keep: NDArray[np.bool_] | None
    bounds: Bounds | None = None
    names: Sequence[str] = ()

    def ids(self) -> list[str]:
        """The name of each unit: of its person, or the record id."""
        return list(self.names) if self.bounds is not None else self.rows.ids()

    @property
    def n_units(self) -> int:
        """Number of rows, or of people."""
        return self.rows.n_rows if self.bounds is None else len(self.bounds) - 1


def private_units(
    features: FeatureReader,
    taken: NDArray[np.bool_] | None,
    unit: str | None,
    most: int | None,
    seed: int,
    public: PublicRows | None = None,
) -> PrivateUnits:
    """The training rows that are not `taken` (n_train,) as public shots, and the people whose rows they are.

    Args:
        unit: `owner` for people; `record` or None for rows. most: rows of a person to use; None for all.
        seed: chooses these rows. public: no person may have rows both in it and among the private rows.

    Raises:
        UsageError: `owner` without owners, or `most` without `owner`. DataError: rows of a person that are not
            adjacent. PrivacyError: a person with private and with public rows.
    """
    keep = None if taken is None else ~taken
    if (unit or RECORD) == RECORD:
        if most is not None:
            raise UsageError(f"per-owner-rows is {most} with unit record; give --unit owner, or leave it out")
        return PrivateUnits(FileSource(features, "train", keep), keep)
    if not features.has_owners("train"):
        raise UsageError(
            f"unit is 'owner', and {features.path} does not say whose rows they are; allowed: record, or a file with "
            "owners; import it with an array owner_train, or with --owner-column NAME"
        )
    where = f"group train of {features.path}"
    bounds, names = owner_bounds(features.owner_batches("train", keep), where)
    if most is not None:
        ids = [name for batch in features.id_batches("train", keep) for name in batch]
        used = capped(bounds, ids, most, seed)
        whole = np.ones(features.sizes["train"], dtype=bool) if keep is None else keep.copy()
        whole[whole] = used
        keep, bounds = whole, np.concatenate([[0], np.cumsum(np.minimum(np.diff(bounds), most))])
    _refuse_shared_people(names, public)
    return PrivateUnits(FileSource(features, "train", keep), keep, bounds, names)


def _refuse_shared_people(names: Sequence[str], public: PublicRows | None) -> None:
    private = set(names)
    for part in () if public is None else public.parts:
        if not part.features.has_owners(part.group):
            continue
        if any(not private.isdisjoint(batch) for batch in part.features.owner_batches(part.group, part.keep)):
            raise PrivacyError(
                f"group {part.group} of {part.features.path} holds rows of people who have private rows too; a person "
                "is private or public; remove those rows, or give --public-shots K"
            )


def fewer_protected(features: FeatureReader, releases: Sequence[Releases], delta: float, accountant: str) -> str | None:
    """One line on what a run that protects rows means for people with several; None if no rows have owners.

    k rows of a person move a sum by k times its sensitivity, and a sample by 1 - (1 - q)^k at most. So the epsilon of
    k rows is that of noise smaller by k, at that sampling rate. No number comes from the data.
    """
    if not features.has_owners("train"):
        return None

    def epsilon(k: int) -> float:
        of_group = [
            Releases(one.purpose, one.noise_multiplier / k, 1 - (1 - one.sampling_rate) ** k, one.count)
            for one in releases
        ]
        return composed_epsilon(of_group, delta, accountant)

    costs = ", ".join(f"{rounded_up(epsilon(k))} with {k} rows" for k in EXAMPLES)
    return (
        f"{features.path} says whose rows they are, and this run protects single rows: the epsilon of a person is "
        f"{costs}; --unit {OWNER} protects people"
    )


def private_records(
    units: PrivateUnits, protected: Sequence[FileSource | PublicRows], trained: Trained
) -> PrivateRecords | None:
    """Digest, ids and losses of the protected records, private rows first; None if nothing was protected."""
    if trained.losses is None:
        return None
    ids = units.ids() + [name for source in protected[1:] for name in source.ids()]
    return PrivateRecords(protected[0].digest(), ids, trained.losses)
