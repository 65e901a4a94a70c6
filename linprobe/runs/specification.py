"""The specification of `linprobe verify`: what proves each key of the manifest and each file of a run folder.

`KEYS` and `FILES` are the one declaration; `docs/run-folder.md` has them as tables. A test changes keys, lines and byte
ranges of a run of each kind: each change is refused, or `verify` lists the key or the file as `STATED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from linprobe.runs.manifest import (
    CARD,
    CLAIM,
    CONFIG,
    HISTORY,
    LEDGER,
    MANIFEST,
    MODEL,
    NOISY_TEST,
    OF_LABELS,
    PER_RECORD,
    SIGNATURE,
    TEST_FIGURES,
    UNREFINED,
    VERIFY_PAGE,
    WITH_COUNTS,
    Manifest,
)

DIGEST, RECOMPUTED, MATCHED, SCHEMA, SIGNED = "digest", "ledger", "matched", "schema", "signature"
STATED = "stated"
MEANINGS = {
    DIGEST: "`verify` computes the digest anew",
    RECOMPUTED: "`verify` recomputes it from the ledger",
    MATCHED: "it must agree with other keys or files; whoever changes all of them together is not caught",
    SCHEMA: "only one value is allowed",
    SIGNED: "`--public-key` checks the signature",
    STATED: "nothing in the folder proves the value; rules may bound it. `verify` lists it as stated, not checked",
}


class Proof(NamedTuple):
    """What proves a key or a file: `by`, one of `MEANINGS`, and `what` is compared or required, in words."""

    by: str
    what: str


PROOFS: Mapping[str, Proof] = {
    "format": Proof(SCHEMA, "3"),
    "guarantee": Proof(RECOMPUTED, "the sentence that follows from epsilon, delta, releases and `unit`"),
    "private": Proof(MATCHED, "`seed_kind`, `noise_source` and the option `insecure_seed`"),
    "mechanism": Proof(MATCHED, "`sampling_rate`, `selection` and `unit`"),
    "epsilon": Proof(RECOMPUTED, "at least what the ledger costs; cross-check and third opinion do not contradict it"),
    "epsilon_if_seed_were_secret": Proof(RECOMPUTED, "as `epsilon`; null in a private run"),
    "delta": Proof(
        RECOMPUTED,
        "below 1 / `n_private` and 1 / `largest_n_private`; epsilon is recomputed at this delta; equals the option "
        "`delta`",
    ),
    "epsilon_target": Proof(STATED, "at least `epsilon`"),
    "gdp_mu": Proof(RECOMPUTED, "equal to what the ledger gives"),
    "zcdp_rho": Proof(RECOMPUTED, "equal to what the ledger gives"),
    "noise_multiplier": Proof(RECOMPUTED, "equal in every `gradient` line"),
    "sampling_rate": Proof(RECOMPUTED, "equal in every `gradient` line"),
    "steps": Proof(RECOMPUTED, "the number of `gradient` lines, and of lines of `history.csv`"),
    "releases": Proof(RECOMPUTED, "equal to what the ledger gives"),
    "accountant": Proof(MATCHED, "an accountant that covers the releases; it recomputes epsilon"),
    "cross_check": Proof(MATCHED, "the second accountant that belongs to `accountant`"),
    "method": Proof(STATED, "a known method, whose `paper` agrees"),
    "paper": Proof(MATCHED, "the paper of `method`"),
    "adjacency": Proof(MATCHED, "`unit`"),
    "unit": Proof(STATED, "`guarantee`, `mechanism` and `adjacency` name the same unit"),
    "n_units": Proof(STATED, "equals `n_private`"),
    "n_private": Proof(STATED, "`per_record.npz`, if there, has the same number of ids; `--features` proves it"),
    "largest_n_private": Proof(STATED, "`n_private` or more; null if `init` names no run"),
    "n_public": Proof(STATED, "`--features` proves it"),
    "n_public_owners": Proof(STATED, "null unless `unit` is owner and `public_shots` above 0; `--features` proves it"),
    "noise_source": Proof(MATCHED, "`private`"),
    "seed_kind": Proof(MATCHED, "`private`"),
    "created": Proof(STATED, "a time"),
    "n_features": Proof(MATCHED, "the shape of the model"),
    "n_classes": Proof(MATCHED, "the shape of the model, and `class_names`"),
    "class_names": Proof(STATED, "`n_classes` names; `--features` proves them"),
    "task": Proof(STATED, "a task that `method` trains; `--features` proves it"),
    "options": Proof(
        STATED,
        "`delta`, `n_steps`, `noise_multiplier`, `sampling_rate` and `clip_norm` agree with the ledger; an `init` that "
        "is no folder excludes `inherited` releases",
    ),
    "centre": Proof(
        STATED, "`private` needs a `mean` release, `unlabelled` none, and enough `similar` rows in `refined`"
    ),
    "per_owner_rows": Proof(STATED, "null unless `unit` is owner"),
    "class_weights": Proof(STATED, "names the classes"),
    "public_digest": Proof(STATED, "`--features` proves it"),
    "class_counts": Proof(STATED, "needs the `class counts` release, whose noise is `std`; names the classes"),
    "class_prior": Proof(STATED, "`uniform` needs `class_counts`"),
    "test_owners": Proof(STATED, "`--features` proves it"),
    "test_rows": Proof(STATED, "`private` has released figures only; `none` has none; `--features` proves `public`"),
    "test_accuracy": Proof(STATED, "`test_figures.json`, or `test_counts`; `--features` proves it on public rows"),
    "test_accuracy_std": Proof(MATCHED, "the `test accuracy` release and `test_counts`; else null"),
    "test_balanced_accuracy": Proof(MATCHED, "`test_accuracy_per_class`"),
    "test_balanced_accuracy_std": Proof(MATCHED, "the `test accuracy` release and `test_counts`; else null"),
    "test_macro_auroc": Proof(STATED, "`test_figures.json`, or `test_scores` and `test_counts`"),
    "test_macro_auroc_std": Proof(MATCHED, "the `test AUROC` release, `test_scores` and `test_counts`; else null"),
    "test_calibration_error": Proof(STATED, "`test_figures.json`"),
    "test_accuracy_per_class": Proof(STATED, "`test_figures.json`, or `test_counts`"),
    "n_test": Proof(STATED, "`test_figures.json`; 0 without test rows"),
    "test_macro_average_precision": Proof(STATED, "`test_figures.json`"),
    "test_label_accuracy": Proof(STATED, "`test_figures.json`"),
    "test_counts": Proof(STATED, "needs the `test accuracy` release; accuracies and noise follow from it"),
    "test_scores": Proof(STATED, "needs the `test AUROC` release; the AUROC and its error follow from it"),
    "tuning": Proof(STATED, "needs the `selection` release, whose noise is `std`, or `selection`"),
    "refined": Proof(
        STATED,
        "stands beside `unrefined.npz`; `--unlabelled` proves all but the counts of `similar` and `gain`, which have "
        "the noise of their releases, with `--features` if it has `near_shots`, and `--run` names the same run",
    ),
    "published": Proof(STATED, "one `histogram` line each, with its noise"),
    "selection": Proof(RECOMPUTED, "equal to the ledger's line"),
    "private_commitment": Proof(STATED, "`--features` proves it"),
    "per_record_commitment": Proof(
        MATCHED, "`per_record.npz`; stated where that file is absent; null if nothing was released"
    ),
    "files": Proof(DIGEST, "of every file but `per_record.npz`, `verify.html`, `manifest.json` and its signature"),
    "manifest_digest": Proof(DIGEST, "of all other keys"),
}
KEYS: Mapping[str, Proof] = {name: PROOFS.get(name, Proof(STATED, "")) for name in ("format", *Manifest.keys())}
FILES: Mapping[str, Proof] = {
    MANIFEST: Proof(DIGEST, "`manifest_digest`; each key as above"),
    SIGNATURE: Proof(SIGNED, "of `manifest.json`; stated without `--public-key`"),
    LEDGER: Proof(
        RECOMPUTED,
        "digest; lines as linprobe writes them, with steps 0, 1, 2, ...; `releases` and epsilon follow from it; "
        "sensitivities follow from `purpose`, and from `clip_norm` in `history.csv`",
    ),
    MODEL: Proof(STATED, "digest; `weights` and `bias` of the stated shape, finite, and not one byte besides them"),
    UNREFINED: Proof(STATED, "digest; as `model.npz`; `--unlabelled` refines it to the model, `--run` proves it"),
    HISTORY: Proof(STATED, "digest; a line of public facts for each of the `steps`; `clip_norm` is matched"),
    TEST_FIGURES: Proof(STATED, "digest; agrees with itself and with the manifest"),
    CONFIG: Proof(STATED, "digest"),
    "published_histogram_N.json": Proof(
        STATED, "digest; finite `bin_edges`, one more than `noisy_counts`, which are whole"
    ),
    CARD: Proof(STATED, "digest; in releases of linprobe 0.2.0 nothing, which `verify` says"),
    CLAIM: Proof(STATED, "digest; in releases of linprobe 0.2.0 nothing, which `verify` says"),
    VERIFY_PAGE: Proof(MATCHED, "the page that this linprobe or an earlier one puts into a release; may be absent"),
    PER_RECORD: Proof(
        STATED, "`per_record_commitment` binds ids, losses and key; `n_private` ids; no further arrays; layout is free"
    ),
}


def stated_in(manifest: Manifest, names: frozenset[str]) -> list[str]:
    """The keys and files that a run states, a missing key as its default, and nothing in its folder proves."""
    of_kind = {
        *(() if manifest.several_labels else OF_LABELS),
        *(() if manifest.test_rows == "private" else NOISY_TEST),
        *(WITH_COUNTS if manifest.class_counts is None else ()),
        "test_owners",  # a run without it has test people apart
        "largest_n_private",  # a run without it counts no releases of another one, or states no number for it
        "refined",  # a run without it was not refined
    }
    keys = [key for key, proof in KEYS.items() if proof.by == STATED and (manifest.has(key) or key not in of_kind)]
    if PER_RECORD not in names and manifest.per_record_commitment is not None:
        keys.append("per_record_commitment")
    unsigned = [SIGNATURE] if SIGNATURE in names else []
    files = [name for name, proof in FILES.items() if proof.by == STATED and name in names]
    return [*keys, *files, *unsigned, *manifest.histogram_files]
