"""`linprobe train`: one private training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_METHOD_OPTIONS = "Options of methods"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def train(
        features: Annotated[
            str | None,
            typer.Argument(metavar="[FEATURES|-]", help="Feature file; - reads its path; none: digits."),
        ] = None,
        method: Annotated[str, typer.Option("--method", "-m", help="Method; see `linprobe methods`.")] = "adamix",
        eps: Annotated[float | None, typer.Option(help="Target epsilon, above 0, at most 100.")] = None,
        delta: Annotated[float, typer.Option(help="Target delta, below 1/N_private.")] = 1e-5,
        sigma: Annotated[float | None, typer.Option(help="Noise multiplier; fixes the steps.")] = None,
        steps: Annotated[int | None, typer.Option(help="Steps; fixes the noise. [default: 50]")] = None,
        out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/METHOD-epsE-TIME]")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
        public: Annotated[Path | None, typer.Option(help="Feature file with public rows, same backbone.")] = None,
        public_shots: Annotated[
            int | None, typer.Option(help="Public rows per class, taken out of the training rows.")
        ] = None,
        split_seed: Annotated[int, typer.Option(help="Which rows become public shots.")] = 0,
        preset: Annotated[str, typer.Option(help="default, or paper (the AdaMix paper's settings).")] = "default",
        centre: Annotated[
            str | None, typer.Option(help="Subtract the public mean: auto, none, public. [default: auto]")
        ] = None,
        intercept: Annotated[float | None, typer.Option(help="Value of a bias column. [default: 0, none]")] = None,
        noise_seed: Annotated[int | None, typer.Option(help="Reproducible noise: NOT PRIVATE.")] = None,
        insecure_seed: Annotated[
            bool, typer.Option("--insecure-seed", help="Confirm that --noise-seed voids the guarantee.")
        ] = False,
        init: Annotated[
            str | None,
            typer.Option(help="First weights: auto, zero, public, text.", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        clip_norm: Annotated[
            float | None,
            typer.Option(help="Fixed clip norm. [default: 0.5]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        clip_quantile: Annotated[
            float | None,
            typer.Option(
                help="adamix: quantile of public gradient norms. [default: 0.9]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        clip_floor: Annotated[
            float | None,
            typer.Option(help="adamix, ppgd: least clip norm. [default: 0.02]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        learning_rate: Annotated[
            float | None,
            typer.Option(
                help="Constant rate on summed gradients. [default: from --score-noise]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        score_noise: Annotated[
            float | None,
            typer.Option(help="Noise of the whole run in a score, nats. [default: 1]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        weight_decay: Annotated[
            float | None,
            typer.Option(help="L2 penalty on the summed loss. [default: 0.01]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        reference: Annotated[
            str | None,
            typer.Option(
                help="What weight decay pulls towards: init, zero. [default: init]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        average: Annotated[
            str | None,
            typer.Option(
                help="Released weights: last, tail, weighted. [default: tail]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        schedule: Annotated[
            str | None, typer.Option(help="noisy-gd: constant, theory.", rich_help_panel=_METHOD_OPTIONS)
        ] = None,
        radius: Annotated[
            float | None,
            typer.Option(
                help="noisy-gd, adamix theory: largest distance of the weights.",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        variant: Annotated[
            str | None, typer.Option(help="adamix: practical, theory.", rich_help_panel=_METHOD_OPTIONS)
        ] = None,
        subspace: Annotated[
            str | None,
            typer.Option(help="adamix: none, gradient, features. [default: none]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        subspace_dim: Annotated[
            int | None,
            typer.Option(help="adamix: dimensions kept. [default: classes - 1]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        strong_convexity: Annotated[
            float | None,
            typer.Option(help="adamix theory: c of the public pass. [default: 0.5]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        text_scale: Annotated[
            float | None,
            typer.Option(help="Scale of text weights. [default: 100]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
    ) -> None:
        """Train a probe and print the run folder.

        One run is one release of the private rows. Training again on the same rows spends again: two runs at epsilon e
        together cost more than e.
        """
        from linprobe import pipeline, render
        from linprobe.cli._shared import print_json
        from linprobe.files import path_from

        given = {
            "init": init,
            "clip_norm": clip_norm,
            "clip_quantile": clip_quantile,
            "clip_floor": clip_floor,
            "learning_rate": learning_rate,
            "score_noise": score_noise,
            "weight_decay": weight_decay,
            "reference": reference,
            "average": average,
            "schedule": schedule,
            "radius": radius,
            "variant": variant,
            "subspace": subspace,
            "subspace_dim": subspace_dim,
            "strong_convexity": strong_convexity,
            "text_scale": text_scale,
        }
        request = pipeline.TrainRequest(
            method=method,
            features=None if features is None else path_from(features),
            epsilon=eps,
            delta=delta,
            sigma=sigma,
            steps=steps,
            out=out,
            public=public,
            public_shots=public_shots,
            split_seed=split_seed,
            centre=centre,
            intercept=intercept,
            preset=preset,
            noise_seed=noise_seed,
            insecure_seed=insecure_seed,
            options={name: value for name, value in given.items() if value is not None},
        )
        with render.TerminalProgress() as progress:
            outcome = pipeline.train(request, progress)
        if as_json:
            print_json(outcome)
            return
        render.table(
            f"{outcome['method']}: {outcome['n_private']} private, {outcome['n_public']} public rows",
            [
                ("test accuracy", render.figure(outcome["test_accuracy"], ".4f")),
                ("epsilon", render.figure(outcome["epsilon"], ".6g")),
                ("delta", render.figure(outcome["delta"], "g")),
                ("steps", render.figure(outcome["steps"], "d")),
                ("noise multiplier", render.figure(outcome["noise_multiplier"])),
                ("seconds", render.figure(outcome["seconds"], ".2f")),
            ],
        )
        typer.echo(outcome["run"])
