"""The rows of a run and what is publicly known about the task, before training; and what no run may combine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linprobe.accounting.events import OWNER, RECORD
from linprobe.data.owners import Bounds
from linprobe.data.row_weights import RowWeights
from linprobe.data.sources import ChainedSource, Source
from linprobe.errors import UsageError
from linprobe.methods import METHODS, Method
from linprobe.options.declaration import declared, refuse_idle
from linprobe.training.settings import Settings


@dataclass(frozen=True)
class Sources:
    """Raw rows, and what is publicly known about the task.

    Attributes:
        private: rows protected under zero-out of one record, or of one person if there are `bounds`.
        n_classes: labels of all rows are 0 to n_classes - 1; or the number of labels of each row.
        public: labelled public rows, or None.
        text_weights: class-name encodings, shape (n_features, n_classes), or None.
        bounds: rows of person u are bounds[u] to bounds[u + 1] of `private`, shape (n_people + 1,); None if each row
            is a unit of privacy by itself.
        weights: public factors on the losses of the private rows; None for ones. Public rows have those of their
            classes.
        several_labels: whether each row has a 0 or 1 for every class, (n_rows, n_classes), in place of one class.
    """

    private: Source
    n_classes: int
    public: Source | None = None
    text_weights: NDArray[np.floating] | None = None
    bounds: Bounds | None = None
    weights: RowWeights | None = None
    several_labels: bool = False

    @property
    def n_units(self) -> int:
        """Number of private units: rows, or people. Public."""
        return self.private.n_rows if self.bounds is None else len(self.bounds) - 1

    @property
    def unit(self) -> str:
        """The unit of privacy, `record` or `owner`."""
        return RECORD if self.bounds is None else OWNER

    @property
    def weights_shape(self) -> tuple[int, int]:
        """(n_features, n_classes) of weights on raw rows."""
        return self.private.n_features, self.n_classes


def refuse(sources: Sources, settings: Settings) -> None:
    """UsageError for rows and settings that have no meaning, or no proof, together."""
    _refuse_units(sources, settings)
    _refuse_labels(sources, settings)
    _refuse_weights(sources, settings)
    _refuse_text_scale(sources, settings)


def _refuse_labels(sources: Sources, settings: Settings) -> None:
    """UsageError for what has no meaning where rows have several labels."""
    if not sources.several_labels:
        return
    method, options = settings.method, settings.options
    if not method.several_labels:
        allowed = ", ".join(name for name, other in METHODS.items() if other.several_labels)
        raise UsageError(
            f"method is {method.name}, which takes one class a row, and these rows have several labels each; "
            f"allowed: {allowed}"
        )
    refused: dict[str, tuple[bool, str]] = {
        "variant 'theory'": (getattr(options, "variant", "") == "theory", "variant practical"),
        "option loss": (getattr(options, "loss", None) is not None, "none, for binary cross-entropy"),
        "output 'vote'": (getattr(options, "output", "") == "vote", "another output, such as average"),
        "init 'text'": (settings.starts_from_text, "init auto, zero or public"),
        "init from a run": (settings.first_run is not None, "init auto, zero or public"),
        "weights of classes": (sources.weights is not None and not sources.weights.of_rows_alone, "weights of rows"),
        "--test-epsilon": (settings.test_epsilon is not None, "public test rows, or none"),
        "selection on private rows": (bool(settings.shrink), "train, with settings that you state"),
    }
    for what, (given, allowed) in refused.items():
        if given:
            raise UsageError(f"{what} is for rows with one class, and these have several labels; allowed: {allowed}")


def _refuse_units(sources: Sources, settings: Settings) -> None:
    """UsageError for what has no meaning, or no proof, where people are protected."""
    if sources.bounds is None:
        return
    method = settings.method
    if getattr(settings.options, "variant", "practical") == "theory":
        raise UsageError(
            "variant is 'theory' and unit 'owner', but the analysis bounds the gradient of one row; allowed: variant "
            "practical, or unit record"
        )
    if settings.test_epsilon is not None:
        raise UsageError(
            f"test epsilon is {settings.test_epsilon:g} with unit owner; a person may have several test rows, so the "
            "noise would not protect people; leave out --test-epsilon"
        )
    if method.joins_public and sources.public is not None:
        raise UsageError(
            f"method {method.name} protects public rows like private ones, but knows no owners of them; allowed with "
            "unit owner: no public rows; leave them out, or use noisy-gd"
        )


def _refuse_weights(sources: Sources, settings: Settings) -> None:
    """UsageError for weights that the method would not use."""
    method, variant = settings.method, getattr(settings.options, "variant", "practical")
    if sources.weights is not None and (not method.weighs or variant == "theory"):
        allowed = ", ".join(name for name, other in METHODS.items() if other.weighs)
        raise UsageError(
            f"weights of classes or rows do nothing for {method.name} here; allowed: {allowed}, without variant "
            "theory; leave them out"
        )


def _refuse_text_scale(sources: Sources, settings: Settings) -> None:
    """UsageError for a scale of text weights where the first weights are others."""
    options = settings.options
    init = getattr(options, "init", "text")
    if init == "text" or "text_scale" not in declared(type(options)):
        return
    why = f"init {'of an earlier run' if init == 'run' else init}"
    if init == "auto":
        if sources.public is not None and sources.public.n_rows:
            why += ", which takes the public rows here"
        elif sources.text_weights is None or sources.several_labels:
            why += ", as there are no text weights for these rows"
        else:
            return
    refuse_idle(options, ("text_scale",), why)


def with_roles(sources: Sources, method: Method) -> Sources:
    """The sources without empty public rows, and with all rows private if the method protects public rows too.

    Raises:
        UsageError: the method needs public rows or text weights, and there are none.
    """
    public = sources.public if sources.public is not None and sources.public.n_rows else None
    if "public" in method.needs and public is None:
        raise UsageError(
            f"method {method.name} needs public rows and got none; "
            "give --public FILE or --public-shots K (in Python: X_public, y_public)"
        )
    if "text" in method.needs and sources.text_weights is None:
        raise UsageError(
            f"method {method.name} needs text weights and got none; "
            "use a feature file with text/weights (in Python: text_weights)"
        )
    if method.joins_public and public is not None:
        weights = None if sources.weights is None else sources.weights.with_more(public.n_rows)
        return replace(sources, private=ChainedSource(sources.private, public), public=None, weights=weights)
    text = None if sources.several_labels else sources.text_weights  # their scale is that of softmax
    return replace(sources, public=public, text_weights=text)
