"""`claim.yaml`: an entry for the registry of DP deployments, filled from a manifest.

The layout is `schemas/deployments-schema.yaml` of github.com/opendp/deployments-registry-data, tier 3. The registry's
schema allows no other keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linprobe.reporting import privacy_points as points
from linprobe.runs.run_files import LEDGER, MODEL
from linprobe.runs.task import MULTICLASS, MULTILABEL, task_of

NOT_STATED = "not stated by the publisher"
LABELS_OF = {MULTICLASS: "one of {} labels", MULTILABEL: "a 0 or 1 for each of {} labels"}


@dataclass(frozen=True)
class Publisher:
    """What the publisher says of a release; the manifest does not know it.

    Attributes:
        name: of the model. curators: who publishes it. use: what it is for. region: where the data come from, or whose
            law applies. licence: a licence id, such as cc-by-4.0. published: date, YYYY-MM-DD.
    """

    name: str
    published: str
    curators: Sequence[str] = ()
    use: str | None = None
    region: str | None = None
    licence: str | None = None


def registry_claim(manifest: dict[str, Any], publisher: Publisher) -> str:
    """The entry as YAML text, for a run that is private."""
    return "\n".join(_lines(_entry(manifest, publisher))) + "\n"


def _entry(manifest: dict[str, Any], publisher: Publisher) -> dict[str, Any]:
    parameters = {"epsilon": float(manifest["epsilon"]), "delta": float(manifest["delta"])}
    if manifest["zcdp_rho"] is not None:
        parameters["rho"] = float(manifest["zcdp_rho"])
    curators = list(publisher.curators) or [NOT_STATED]
    return {
        "url_slug": re.sub("[^a-z0-9]+", "-", publisher.name.lower()).strip("-") or "model",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": publisher.name,
                "data_curators": curators,
                "intended_use": publisher.use or NOT_STATED,
                "data_product_type": "Machine learning model",
                "data_product_region": publisher.region or NOT_STATED,
                "description": _description(manifest),
                "publication_date": publisher.published,
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"any values of {points.data_of(manifest)}: {manifest['n_features']} finite numbers in "
                f"each row, with {LABELS_OF[task_of(manifest)].format(manifest['n_classes'])}",
                "unprotected_quantities": points.unprotected_of(manifest),
            },
            "privacy_loss": {
                "privacy_unit": points.unit_of(manifest),
                "privacy_unit_details": manifest["adjacency"],
                "privacy_parameters": parameters,
                "privacy_parameters_details": points.parameters_of(manifest),
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": points.TRUST,
                "release_type": "One release",
                "release_type_details": "this run alone; " + points.tuning_of(manifest),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
                "access_type_details": "the weights are published; nobody queries the rows",
            },
            "accounting": {
                "post_processing": "the iterates of training are averaged, or vote, and are folded into one linear map",
                "composition": points.composition_of(manifest),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "each row is divided by its own length; "
                + points.tuning_of(manifest),
                "mechanisms": "\n".join(f"- {line}" for line in _mechanisms(manifest)),
                "justification": f"{manifest['method']}, {manifest['paper']}; the bounds on one record are proved "
                "in the documentation of linprobe and tested on neighbouring data sets",
            },
            "administrative": {
                "notes": f"SHA-256 of {MODEL}: {manifest['files'][MODEL]}; of {LEDGER}: {manifest['files'][LEDGER]}; "
                "check the folder with `linprobe verify`",
                "registry_authors": curators,
            },
        },
    }


def _description(manifest: dict[str, Any]) -> str:
    rows = manifest["extraction"]["backbone"] if manifest.get("extraction") else manifest["backbone"]
    kind = "classes" if task_of(manifest) == MULTICLASS else "labels, of which a row may have several,"
    return (
        f"A linear classifier of {manifest['n_classes']} {kind} on {manifest['n_features']} features"
        f"{f' of {rows}' if rows else ''}, trained with {manifest['method']}. {manifest['guarantee']}"
    )


def _mechanisms(manifest: dict[str, Any]) -> Sequence[str]:
    versions = manifest["software"]
    return (
        f"mechanism: {manifest['mechanism']}; {points.RANDOMNESS}",
        f"implementation: linprobe {versions['linprobe']}, Python {versions['python']}, NumPy {versions['numpy']}",
        f"floating point: {points.FLOATING_POINT}",
        f"timing: {points.TIMING}",
        f"platform: computed on {manifest['device']} in {manifest['precision']}; memory and swap of the owner's "
        "machine are not covered",
        f"access: {points.ACCESS}",
    )


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """YAML of nested mappings, lists of scalars, and scalars."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(item, f"{indent}  ")
        elif isinstance(item, list):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {_scalar(one)}" for one in item)
        else:
            yield f"{indent}{name}: {_scalar(item)}"


def _scalar(value: Any) -> str:
    """A JSON string or number, which is YAML too; YAML 1.1 wants a point in a number with an exponent."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text
