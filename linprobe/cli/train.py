"""`linprobe train`: one private training run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from linprobe.data.precision import Precision

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
        steps: Annotated[int | None, typer.Option(help="Steps; fixes the noise. [default: 50; 200 on samples]")] = None,
        sampling_rate: Annotated[
            float | None,
            typer.Option(
                "--sampling-rate", "--q", help="Probability to join a step, methods on samples. [default: 0.15]"
            ),
        ] = None,
        accountant: Annotated[
            str | None, typer.Option(help="Methods on samples: auto, gdp, pld, rdp. [default: auto]")
        ] = None,
        per_record: Annotated[
            bool | None,
            typer.Option("--per-record/--no-per-record", help="Follow each record's own loss. [default: follow]"),
        ] = None,
        out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/METHOD-epsE-TIME]")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
        public: Annotated[
            Path | None, typer.Option(help="Feature file with public rows, same backbone; they join the shots, if any.")
        ] = None,
        public_shots: Annotated[
            int | None, typer.Option(help="Public rows per class, taken out of the training rows.")
        ] = None,
        split_seed: Annotated[int, typer.Option(help="Which rows become public shots.")] = 0,
        precision: Annotated[
            str, typer.Option(help="Rows in memory: float32, or bfloat16 or float16 in half of it.")
        ] = "float32",
        device: Annotated[
            str, typer.Option(help="cpu, cuda or cuda:N; on a GPU: noisy-gd, adamix, ngd, fully-private.")
        ] = "cpu",
        checkpoint: Annotated[
            float | None,
            typer.Option(metavar="SECONDS", help="Between checkpoints; 0: one after every step. [default: 60]"),
        ] = None,
        resume: Annotated[
            bool, typer.Option("--resume", help="Go on with the unfinished run of --out from its checkpoint.")
        ] = False,
        preset: Annotated[str, typer.Option(help="default, or paper (the AdaMix paper's settings).")] = "default",
        centre: Annotated[
            str | None,
            typer.Option(
                help="Subtract the public mean: auto, none, public; dpsgd-f: private, public. [default: auto]"
            ),
        ] = None,
        intercept: Annotated[float | None, typer.Option(help="Value of a bias column. [default: 0, none]")] = None,
        noise_seed: Annotated[int | None, typer.Option(help="Reproducible noise: NOT PRIVATE.")] = None,
        insecure_seed: Annotated[
            bool, typer.Option("--insecure-seed", help="Confirm that --noise-seed voids the guarantee.")
        ] = False,
        init: Annotated[
            str | None,
            typer.Option(
                help="First weights: auto, zero, public, text, or a run folder, whose releases then count too.",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        clip_norm: Annotated[
            float | None,
            typer.Option(help="Clip norm. [default: 0.5; 0.1 dpsgd-f]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        clip_quantile: Annotated[
            float | None,
            typer.Option(
                help="adamix: quantile of public gradient norms. [default: 0.9]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        clip_floor: Annotated[
            float | None,
            typer.Option(help="adamix, ppgd: least clip norm. [default: 0.02]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        learning_rate: Annotated[
            float | None,
            typer.Option(
                help="Constant rate on summed gradients. [default: from --score-noise]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        score_noise: Annotated[
            float | None,
            typer.Option(
                help="Noise of the whole run in a score, nats. [default: 1; 2.5 dpsgd-f]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        weight_decay: Annotated[
            float | None,
            typer.Option(help="L2 penalty on the summed loss. [default: 0.01]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        reference: Annotated[
            str | None,
            typer.Option(
                help="What weight decay pulls towards: init, zero. [default: init]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        output: Annotated[
            str | None,
            typer.Option(
                help="Released weights: last, average, weighted, ema, vote. [default: average]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        ensemble: Annotated[
            int | None,
            typer.Option(
                help="Last iterates averaged or voting. [default: a tenth of the steps]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        schedule: Annotated[
            str | None, typer.Option(help="noisy-gd: constant, theory.", rich_help_panel=_METHOD_OPTIONS)
        ] = None,
        radius: Annotated[
            float | None,
            typer.Option(
                help="noisy-gd, adamix theory: largest distance of the weights.", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        variant: Annotated[
            str | None, typer.Option(help="adamix, dpsgd-f: practical, theory.", rich_help_panel=_METHOD_OPTIONS)
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
            float | None, typer.Option(help="Scale of text weights. [default: 100]", rich_help_panel=_METHOD_OPTIONS)
        ] = None,
        optimizer: Annotated[
            str | None,
            typer.Option(help="On samples: sgd, momentum, adam. [default: momentum]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        momentum: Annotated[
            float | None, typer.Option(help="Momentum. [default: 0.9]", rich_help_panel=_METHOD_OPTIONS)
        ] = None,
        loss: Annotated[
            str | None,
            typer.Option(help="On samples: softmax, squared. [default: softmax]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        feature_epsilon_share: Annotated[
            float | None,
            typer.Option(
                help="dpsgd-f: share of epsilon for the mean. [default: 0.05]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        bias_scale: Annotated[
            float | None,
            typer.Option(help="dpsgd-f: value of the bias column. [default: 0.1]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        update: Annotated[
            str | None,
            typer.Option(
                help="mirror-descent: first-order, exact. [default: first-order]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        alpha: Annotated[
            float | None,
            typer.Option(
                help="mirror-descent: constant weight of private gradients. [default: cosine]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        horizon: Annotated[
            int | None,
            typer.Option(
                help="mirror-descent: K of the cosine. [default: 4 times the steps]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        ridge: Annotated[
            float | None,
            typer.Option(
                help="mirror-descent exact: ridge of the mirror map. [default: 1]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        extra_clip: Annotated[
            float | None,
            typer.Option(
                help="mirror-descent: bound on the noised mean gradient. [default: none]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        origin_norm: Annotated[
            float | None,
            typer.Option(
                help="dope-sgd: longest public gradient taken as origin. [default: any]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        public_batch: Annotated[
            int | None,
            typer.Option(help="dope-sgd: public rows a step. [default: all]", rich_help_panel=_METHOD_OPTIONS),
        ] = None,
        augment_public: Annotated[
            int | None,
            typer.Option(
                help="dope-sgd: public rows drawn from fitted Gaussians. [default: 0]", rich_help_panel=_METHOD_OPTIONS
            ),
        ] = None,
        extended: Annotated[
            float | None,
            typer.Option(
                help="dope-sgd: share of public rows that also train as private. [default: 0]",
                rich_help_panel=_METHOD_OPTIONS,
            ),
        ] = None,
        scale_floor: Annotated[
            float | None, typer.Option(help="adadps: least scale. [default: 1]", rich_help_panel=_METHOD_OPTIONS)
        ] = None,
    ) -> None:
        """Train a probe and print the run folder.

        One run is one release of the private rows. Training again on the same rows spends again: two runs at epsilon e
        together cost more than e.
        """
        from linprobe.atomic_files import path_from
        from linprobe.cli import _terminal
        from linprobe.cli._shared import print_json
        from linprobe.commands import train as command
        from linprobe.parallel import torch_group
        from linprobe.progress import Silent

        given = {
            "init": init,
            "clip_norm": clip_norm,
            "clip_quantile": clip_quantile,
            "clip_floor": clip_floor,
            "learning_rate": learning_rate,
            "score_noise": score_noise,
            "weight_decay": weight_decay,
            "reference": reference,
            "output": output,
            "ensemble": ensemble,
            "schedule": schedule,
            "radius": radius,
            "variant": variant,
            "subspace": subspace,
            "subspace_dim": subspace_dim,
            "strong_convexity": strong_convexity,
            "text_scale": text_scale,
            "optimizer": optimizer,
            "momentum": momentum,
            "loss": loss,
            "feature_epsilon_share": feature_epsilon_share,
            "bias_scale": bias_scale,
            "update": update,
            "alpha": alpha,
            "horizon": horizon,
            "ridge": ridge,
            "extra_clip": extra_clip,
            "origin_norm": origin_norm,
            "public_batch": public_batch,
            "augment_public": augment_public,
            "extended": extended,
            "scale_floor": scale_floor,
        }
        request = command.TrainRequest(
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
            sampling_rate=sampling_rate,
            accountant=accountant,
            per_record=per_record,
            centre=centre,
            intercept=intercept,
            preset=preset,
            noise_seed=noise_seed,
            insecure_seed=insecure_seed,
            precision=cast("Precision", precision),
            device=device,
            checkpoint_every=checkpoint,
            resume=resume,
            options={name: value for name, value in given.items() if value is not None},
        )
        with torch_group.group() as group:
            if group.rank > 0:
                command.train(request, Silent(), group)
                return
            with _terminal.TerminalProgress() as progress:
                outcome = command.train(request, progress, group)
        if as_json:
            print_json(outcome)
            return
        _terminal.table(
            f"{outcome['method']}: {outcome['n_private']} private, {outcome['n_public']} public rows",
            [
                ("test accuracy", _terminal.figure(outcome["test_accuracy"], ".4f")),
                ("epsilon", _terminal.figure(outcome["epsilon"], ".6g")),
                ("delta", _terminal.figure(outcome["delta"], "g")),
                ("steps", _terminal.figure(outcome["steps"], "d")),
                ("noise multiplier", _terminal.figure(outcome["noise_multiplier"])),
                ("seconds", _terminal.figure(outcome["seconds"], ".2f")),
            ],
        )
        typer.echo(outcome["run"])
