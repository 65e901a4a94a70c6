"""Public facts of a run for an experiment tracker: MLflow, Weights & Biases or TensorBoard.

Only what the manifest of a private run states is sent: settings, the guarantee, and figures on public or noised test
rows. Per-record losses and the ledger stay where they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from linprobe.runs.manifest import Manifest

SETTINGS = (
    "method", "epsilon_target", "delta", "noise_multiplier", "sampling_rate", "steps", "unit", "n_units", "n_public",
    "n_features", "n_classes", "backbone", "centre", "precision", "preset", "public_shots", "split_seed",
)  # fmt: skip
FIGURES = (
    "epsilon", "gdp_mu", "zcdp_rho", "test_accuracy", "test_accuracy_std", "test_balanced_accuracy",
    "test_balanced_accuracy_std", "test_macro_auroc", "test_calibration_error", "test_label_accuracy",
    "test_macro_average_precision",
)  # fmt: skip
PROJECT = "linprobe"  # of Weights & Biases, unless WANDB_PROJECT names one
BOARD = "tensorboard"  # folder of TensorBoard, in the working directory


def track(name: str, run: str, manifest: Manifest, history: Sequence[Mapping[str, float]]) -> None:
    """Send the public facts of a run to a tracker.

    Args:
        name: of the tracker. run: name of the run there.
        manifest: of a run with a guarantee. history: public facts of every step.

    Raises:
        ValueError: a run without a guarantee.
    """
    if not manifest.private:
        raise ValueError(f"run {run} has no guarantee; nothing of it is sent")
    settings = {key: value for key, value in manifest.stated(SETTINGS).items() if value is not None}
    settings |= {f"option.{key}": value for key, value in manifest.options.items() if key not in settings}
    figures = {key: float(value) for key, value in manifest.stated(FIGURES).items() if value is not None}
    facts = [{key: value for key, value in step.items() if key != "step"} for step in history]
    SENDERS[name](run, settings, figures, facts)


def _to_mlflow(
    run: str, settings: Mapping[str, Any], figures: Mapping[str, float], facts: Sequence[Mapping[str, float]]
) -> None:
    import mlflow

    with mlflow.start_run(run_name=run):
        mlflow.log_params(dict(settings))
        for step, values in enumerate(facts, start=1):
            mlflow.log_metrics(dict(values), step=step)
        mlflow.log_metrics(dict(figures))


def _to_wandb(
    run: str, settings: Mapping[str, Any], figures: Mapping[str, float], facts: Sequence[Mapping[str, float]]
) -> None:
    import wandb

    with wandb.init(project=os.environ.get("WANDB_PROJECT", PROJECT), name=run, config=dict(settings)) as tracked:
        for step, values in enumerate(facts, start=1):
            tracked.log(dict(values), step=step)
        tracked.summary.update(dict(figures))


def _to_tensorboard(
    run: str, settings: Mapping[str, Any], figures: Mapping[str, float], facts: Sequence[Mapping[str, float]]
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(f"{BOARD}/{run}") as writer:
        for step, values in enumerate(facts, start=1):
            for key, value in values.items():
                writer.add_scalar(key, value, step)
        for key, value in figures.items():
            writer.add_scalar(key, value, len(facts))
        writer.add_text("settings", "\n\n".join(f"{key}: {value}" for key, value in settings.items()))


SENDERS = {"mlflow": _to_mlflow, "wandb": _to_wandb, "tensorboard": _to_tensorboard}
