"""What a method trains on: rows in training space, and what is publicly known about the task."""

from __future__ import annotations

from dataclasses import dataclass, replace

from linprobe.data.rows import Rows
from linprobe.errors import UsageError
from linprobe.gradients.loss import Weights
from linprobe.options import Loss


@dataclass(frozen=True)
class Problem:
    """Rows in training space and what is publicly known about the task.

    Attributes:
        n_features, n_classes: shape of the weights.
        private: rows protected under zero-out of one record, or of one person, which then counts as a row; None if
            the method reads none.
        public: labelled public rows, or None.
        text_weights: unit-norm class encodings, shape (n_features, n_classes), or None.
        run_weights: weights of an earlier run, shape (n_features, n_classes), or None.
        centred: whether the mean of the rows was subtracted, so that no direction holds most of their length.
        several_labels: whether each row has a 0 or 1 for every class, (n_rows, n_classes), in place of one class.
    """

    n_features: int
    n_classes: int
    private: Rows | None = None
    public: Rows | None = None
    text_weights: Weights | None = None
    run_weights: Weights | None = None
    centred: bool = False
    several_labels: bool = False

    def with_public(self, public: Rows) -> Problem:
        """The same problem with other public rows."""
        return replace(self, public=public)

    def loss(self, chosen: Loss | None = None) -> Loss:
        """The loss of a method whose option says `chosen`: by default that which the labels call for."""
        return chosen or ("sigmoid" if self.several_labels else "softmax")

    @property
    def gradient_rank(self) -> int:
        """Largest rank of a summed gradient: residuals of softmax sum to 0 in each row, those of labels need not."""
        return self.n_classes if self.several_labels else self.n_classes - 1

    @property
    def private_rows(self) -> Rows:
        """The private rows. Raises UsageError if there are none."""
        if self.private is None:
            raise UsageError("no private rows were given; this method trains on them; give training rows")
        return self.private

    @property
    def public_rows(self) -> Rows:
        """The public rows. Raises UsageError if there are none."""
        if self.public is None:
            raise UsageError("no public rows were given; give --public FILE or --public-shots K")
        return self.public
