"""The method of a request that names none, and whether a method has the public rows it needs, before rows are read."""

from __future__ import annotations

from pathlib import Path

from linprobe.commands._row_sources import open_features
from linprobe.data.feature_file import FeatureFile
from linprobe.errors import UsageError
from linprobe.methods import ChosenMethod, Facts, Method, choose


def choose_method(features: Path | None, public: Path | None, shots: int | None) -> ChosenMethod:
    """The method for a feature file, or the built-in digits for None, from public facts."""
    with open_features(features, whole=False) as file:
        known = public is not None or bool(shots)
        if shots is None:
            known = known or features is None or "public" in file.sizes
        return choose(Facts(known, file.text_weights() is not None and not file.description.several_labels))


def refuse_missing_public(method: Method, path: Path) -> None:
    """Refuse a run that lacks public rows before the whole file is read."""
    if "public" not in method.needs or not path.is_file():
        return
    with FeatureFile(path) as features:
        if "public" not in features.sizes:
            raise UsageError(
                f"method {method.name} needs public rows and {path} has no public group; "
                "give --public FILE or --public-shots K"
            )
