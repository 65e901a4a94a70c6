"""The loss of rows with several labels: binary cross-entropy, summed over the labels.

    loss_i = sum_k log(1 + e^{s_ik}) - y_ik s_ik,    s_i = W^T x_i,    y_ik in {0, 1}

Its gradient is x_i r_i^T with r_ik = 1 / (1 + e^{-s_ik}) - y_ik: rank one, like that of softmax.
"""

from __future__ import annotations

from typing import Any

from linprobe.parallel.array_api import Array, double, namespace


def sigmoid(scores: Array) -> Array:
    """1 / (1 + exp(-scores)), in place. It never overflows, as it is (1 + tanh(scores / 2)) / 2."""
    scores *= 0.5
    namespace(scores).tanh(scores, out=scores)
    scores += 1
    scores *= 0.5
    return scores


def label_losses(scores: Array, y: Array) -> Array:
    """Losses of rows in nats, summed over labels, shape (b,), float64."""
    xp, wide = namespace(scores), double(scores)
    return (wide.clip(0, None) - y * wide + xp.log1p(xp.exp(-abs(wide)))).sum(-1)


def sigmoid_residuals(scores: Array, y: Array, with_loss: bool, weights: Array | None) -> tuple[Array, Any]:
    """Residuals of scores (b, n_labels), in place, and the summed loss of the rows, or 0 unless `with_loss`.

    Each residual depends on its own row only, and on no other entry of it.

    Args:
        y: 0 or 1, shape (b, n_labels). weights: factors on losses and residuals, shape (b,); None for ones.
    """
    value: Any = 0.0
    if with_loss:
        losses = label_losses(scores, y)
        value = (losses if weights is None else weights * losses).sum()
    r = sigmoid(scores)
    r -= y
    if weights is not None:
        r *= weights[:, None]
    return r, value
