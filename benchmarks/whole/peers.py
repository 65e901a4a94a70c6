"""One classifier of another library, from a feature file to test accuracy: `peers.py NAME FILE.h5 EPSILON SEED`.

Rows are divided by their length, as in linprobe, so that a gradient or a row has a public bound. Prints one JSON:
test accuracy, and the setting that was used. `opacus` and `jax-privacy` train with several learning rates, and
`diffprivlib` with several penalties. They report the best on the test rows, which no user could do without budget;
their seconds are those of one training.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

DELTA = 1e-5
RATES, EPOCHS, CLIP = (0.03125, 0.125, 0.5, 2.0, 8.0), 20, 1.0
STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)  # C of diffprivlib: one over the penalty
ITERATIONS = 1000
PADDED = 64  # JAX compiles a step for every size of batch, so sizes are multiples of this


def rows(path: Path) -> tuple[Any, ...]:
    """Unit rows and labels of training and test."""
    with h5py.File(path) as file:
        parts = [(file[group]["x"][:].astype(np.float32), file[group]["y"][:]) for group in ("train", "test")]
    return tuple(part for x, y in parts for part in (x / np.linalg.norm(x, axis=1, keepdims=True), y))


def scikit_learn(path: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """Logistic regression without privacy, scikit-learn's default solver."""
    from sklearn.linear_model import LogisticRegression

    x, y, test_x, test_y = rows(path)
    return {"accuracy": LogisticRegression(C=100, max_iter=ITERATIONS).fit(x, y).score(test_x, test_y), "C": 100}


def diffprivlib(path: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """Objective perturbation, one class against the others; its guarantee has delta 0."""
    from diffprivlib.models import LogisticRegression

    x, y, test_x, test_y = rows(path)

    def accuracy(strength: float) -> float:
        probe = LogisticRegression(epsilon=epsilon, data_norm=1.0, C=strength, max_iter=ITERATIONS)
        return float(probe.fit(x.astype(np.float64), y).score(test_x, test_y))

    return _best(accuracy, "C", STRENGTHS)


def opacus(path: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """DP-SGD of a linear layer: batches of a tenth of the rows, 20 epochs, momentum 0.9, the PRV accountant."""
    x, y, test_x, test_y = rows(path)
    return _best(lambda rate: _opacus_accuracy(x, y, test_x, test_y, epsilon, rate), "learning_rate", RATES)


def _best(train: Callable[[float], float], setting: str, values: Sequence[float]) -> dict[str, Any]:
    """The best accuracy of `train` over `values`, and the wall and processor seconds of the other values."""
    tried = {}
    for value in values:
        started = time.perf_counter(), time.process_time()
        accuracy = train(value)
        tried[value] = accuracy, time.perf_counter() - started[0], time.process_time() - started[1]
    best = max(tried, key=lambda value: tried[value][0])
    seconds, cpu = (sum(spent[place] for value, spent in tried.items() if value != best) for place in (1, 2))
    return {"accuracy": tried[best][0], setting: best, "of_other_rates": [seconds, cpu]}


def _opacus_accuracy(x: Any, y: Any, test_x: Any, test_y: Any, epsilon: float, rate: float) -> float:
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    layer = torch.nn.Linear(x.shape[1], int(y.max()) + 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))
    private, optimizer, loader = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=layer,
        optimizer=torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9),
        data_loader=DataLoader(data, batch_size=max(1, len(x) // 10)),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=CLIP,
    )
    for _ in range(EPOCHS):
        for some_x, some_y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(some_x), some_y).backward()
            optimizer.step()
    with torch.no_grad():
        return float((private(torch.from_numpy(test_x)).argmax(dim=1).numpy() == test_y).mean())


def jax_privacy(path: Path, epsilon: float, seed: int) -> dict[str, Any]:
    """DP-SGD of a linear layer as in `opacus`, with JAX Privacy's accountant, sampling, clipping and noise."""
    x, y, test_x, test_y = rows(path)
    return _best(lambda rate: _jax_accuracy(x, y, test_x, test_y, epsilon, rate), "learning_rate", RATES)


def _jax_accuracy(x: Any, y: Any, test_x: Any, test_y: Any, epsilon: float, rate: float) -> float:
    import secrets

    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import accounting, batch_selection, clipping, noise_addition

    n_rows, batch = len(x), max(1, len(x) // 10)
    n_steps = EPOCHS * n_rows // batch
    sigma = accounting.calibrate_noise_multiplier(
        target_epsilon=epsilon,
        accountant=accounting.DpsgdTrainingAccountant(dp_accountant_config=accounting.PldAccountantConfig()),
        batch_sizes=batch,
        num_updates=n_steps,
        num_samples=n_rows,
        target_delta=DELTA,
    )

    def loss(weights: Any, rows: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(rows @ weights, labels).sum()

    gradient = clipping.clipped_grad(
        loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), normalize_by=batch, microbatch_size=PADDED
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=sigma * gradient.sensitivity(), prng_key=jax.random.key(secrets.randbits(63))
    )
    optimizer = optax.sgd(rate, momentum=0.9)
    weights = jnp.zeros((x.shape[1], int(y.max()) + 1))
    states = privatizer.init(weights), optimizer.init(weights)

    @jax.jit
    def step(weights: Any, states: Any, rows: Any, labels: Any, padding: Any) -> Any:
        noisy, noise_state = privatizer.update(gradient(weights, rows, labels, is_padding_example=padding), states[0])
        change, state = optimizer.update(noisy, states[1])
        return optax.apply_updates(weights, change), (noise_state, state)

    sampling = batch_selection.CyclicPoissonSampling(sampling_prob=batch / n_rows, iterations=n_steps)
    for chosen in sampling.batch_iterator(n_rows, rng=np.random.default_rng(secrets.randbits(128))):
        places = batch_selection.pad_to_multiple_of(chosen, PADDED)
        weights, states = step(weights, states, x[places], y[places], places < 0)
    return float((np.argmax(test_x @ np.asarray(weights), axis=1) == test_y).mean())


PEERS: dict[str, Callable[[Path, float, int], dict[str, Any]]] = {
    "scikit-learn": scikit_learn,
    "diffprivlib": diffprivlib,
    "opacus": opacus,
    "jax-privacy": jax_privacy,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, path, epsilon, seed = sys.argv[1:]
    print(json.dumps(PEERS[name](Path(path), float(epsilon), int(seed))))
