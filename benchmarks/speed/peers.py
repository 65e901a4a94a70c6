"""One DP-SGD step of a linear softmax layer over all rows, in other libraries.

Each function prepares a step on rows x (n, d) float32 of unit norm and labels y (n,), from zero weights. It raises
ImportError if its library is not installed. Libraries with per-example gradients get micro-batches whose gradients fit
in cache, which is faster than larger ones. A step returns the sum that it releases.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]
Step = Callable[[], object]

OPACUS_BYTES, JAX_BYTES = (
    1 << 24,
    1 << 20,
)  # per-example gradients of a micro-batch; larger and smaller ones were slower


def plain_matmul(x: Rows, y: Labels, n_classes: int, clip: float, sigma: float) -> Step:
    """Two matrix products with softmax and clipping, over the whole array, with known row norms and without noise."""
    norms = np.linalg.norm(x, axis=1)
    weights = np.zeros((x.shape[1], n_classes), dtype=np.float32)
    places = np.arange(len(x))

    def step() -> NDArray[np.float32]:
        scores = x @ weights
        residuals = np.exp(scores - scores.max(axis=1, keepdims=True))
        residuals /= residuals.sum(axis=1, keepdims=True)
        residuals[places, y] -= 1
        factors = np.minimum(1, clip / (norms * np.linalg.norm(residuals, axis=1)))
        return x.T @ (residuals * factors[:, None])

    return step


def opacus_ghost(x: Rows, y: Labels, n_classes: int, clip: float, sigma: float) -> Step:
    """Opacus' ghost clipping: norms in closed form, then a second backward pass."""
    import torch
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    torch.set_num_threads(os.cpu_count() or 1)
    layer = torch.nn.Linear(x.shape[1], n_classes, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = GradSampleModuleFastGradientClipping(layer, max_grad_norm=clip, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=sigma,
        max_grad_norm=clip,
        expected_batch_size=len(x),
    )
    loss = DPLossFastGradientClipping(model, optimizer, torch.nn.CrossEntropyLoss())
    rows, labels = torch.from_numpy(x), torch.from_numpy(y)

    def step() -> NDArray[np.float32]:
        optimizer.zero_grad()
        loss(model(rows), labels).backward()
        optimizer.step()
        return layer.weight.grad.numpy().T * len(x)

    return step


def opacus_hooks(x: Rows, y: Labels, n_classes: int, clip: float, sigma: float) -> Step:
    """Opacus' default: per-example gradients by hooks, summed over micro-batches before one noisy step."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.set_num_threads(os.cpu_count() or 1)
    layer = torch.nn.Linear(x.shape[1], n_classes, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = GradSampleModule(layer)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=sigma,
        max_grad_norm=clip,
        expected_batch_size=len(x),
    )
    batch = max(1, OPACUS_BYTES // (4 * x.shape[1] * n_classes))
    parts = list(zip(torch.from_numpy(x).split(batch), torch.from_numpy(y).split(batch), strict=True))
    loss = torch.nn.CrossEntropyLoss()

    def step() -> NDArray[np.float32]:
        for place, (rows, labels) in enumerate(parts, 1):
            optimizer.signal_skip_step(place < len(parts))
            loss(model(rows), labels).backward()
            optimizer.step()
            total = layer.weight.grad
            optimizer.zero_grad(set_to_none=True)
        return total.numpy().T * len(x)

    return step


def jax_privacy(x: Rows, y: Labels, n_classes: int, clip: float, sigma: float) -> Step:
    """JAX Privacy's `clipped_grad` over micro-batches and its Gaussian privatizer, compiled before timing."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import clipped_grad, noise_addition

    def loss(weights: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(rows @ weights, labels).sum()

    most = max(1, JAX_BYTES // (4 * x.shape[1] * n_classes))
    batch = max(size for size in range(1, min(most, len(x)) + 1) if len(x) % size == 0)
    gradient = clipped_grad(loss, l2_clip_norm=clip, batch_argnums=(1, 2), microbatch_size=batch)
    privatizer = noise_addition.gaussian_privatizer(
        stddev=sigma * gradient.sensitivity(), prng_key=jax.random.key(secrets.randbits(63))
    )
    weights = jnp.zeros((x.shape[1], n_classes))
    rows, labels = jnp.from_dlpack(x), jnp.asarray(y, dtype=jnp.int32)
    state = privatizer.init(weights)

    def noisy(weights: jax.Array, rows: jax.Array, labels: jax.Array, state: object) -> jax.Array:
        return privatizer.update(gradient(weights, rows, labels), state)[0]

    compiled = jax.jit(noisy).lower(weights, rows, labels, state).compile()

    def step() -> NDArray[np.float32]:
        return np.asarray(compiled(weights, rows, labels, state).block_until_ready())

    return step
