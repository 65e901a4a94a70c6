"""`linprobe extract`: images to a feature file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from linprobe.cli._shared import PRIVATE_TEST, DryRunFlag, Json, numbers, print_dry_run, print_made

_IMAGES = "Images"
_NETWORK = "Network"
_SPEED = "Speed and reliability"
_NAMED = 10


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def extract(
        source: Annotated[
            str,
            typer.Argument(
                metavar="SOURCE",
                help="Folder of train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE; .tar; arrays; data set name.",
            ),
        ],
        backbone: Annotated[
            str | None,
            typer.Option(
                "--backbone",
                "-b",
                help="resnet50, wide-resnet50-2, clip:MODEL/PRETRAINED, wrn-16-4 (-40-4, -28-10), timm:NAME, pixels, "
                "scattering. [default: resnet50, or scattering if its weights cannot be fetched]",
            ),
        ] = None,
        like: Annotated[
            Path | None,
            typer.Option(
                metavar="RUN|FILE",
                help="Extract with the settings of this run or feature file. SOURCE may then be any folder of images, "
                "without labels.",
            ),
        ] = None,
        out: Annotated[
            Path | None, typer.Option(help="Feature file to write. [default: features/SOURCE-BACKBONE.h5]")
        ] = None,
        overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
        as_json: Json = False,
        dry_run: DryRunFlag = False,
        classes: Annotated[
            Path | None,
            typer.Option(help="File of class names in label order, one per line.", rich_help_panel=_IMAGES),
        ] = None,
        test_fraction: Annotated[
            float | None,
            typer.Option(help="Share of the images to test on, if SOURCE has no test group.", rich_help_panel=_IMAGES),
        ] = None,
        private_test: Annotated[
            bool, typer.Option("--private-test", help=PRIVATE_TEST, rich_help_panel=_IMAGES)
        ] = False,
        owners: Annotated[
            Path | None,
            typer.Option(
                help="CSV with the columns id and owner: the person each image belongs to.", rich_help_panel=_IMAGES
            ),
        ] = None,
        owner_regex: Annotated[
            str | None,
            typer.Option(
                help="Regular expression for an image's id; its first group is the owner.", rich_help_panel=_IMAGES
            ),
        ] = None,
        public: Annotated[
            Path | None,
            typer.Option(help="Folder of public images, CLASS/IMAGE.", rich_help_panel=_IMAGES),
        ] = None,
        augment_views: Annotated[
            int,
            typer.Option(help="Augmented rows added for each public image.", rich_help_panel=_IMAGES),
        ] = 0,
        root: Annotated[
            Path, typer.Option(help="Folder of the data set that SOURCE names.", rich_help_panel=_IMAGES)
        ] = Path("data"),
        download: Annotated[
            bool, typer.Option("--download", help="Download the data set that SOURCE names.", rich_help_panel=_IMAGES)
        ] = False,
        on_error: Annotated[
            str,
            typer.Option(help="What to do about unreadable images: fail, skip.", rich_help_panel=_IMAGES),
        ] = "fail",
        weights: Annotated[
            str | None,
            typer.Option(
                help="Weights: a name (IMAGENET1K_V1) or a .pt, .pth or .safetensors file.", rich_help_panel=_NETWORK
            ),
        ] = None,
        random_weights: Annotated[
            bool,
            typer.Option("--random-weights", help="Random weights, for tests.", rich_help_panel=_NETWORK),
        ] = False,
        backbone_arg: Annotated[
            list[str] | None,
            typer.Option(
                metavar="KEY=VALUE",
                help="KEY=VALUE for the network's constructor; repeat for more.",
                rich_help_panel=_NETWORK,
            ),
        ] = None,
        class_names: Annotated[
            Path | None,
            typer.Option(help="CLIP: file of class names for prompts, in label order.", rich_help_panel=_NETWORK),
        ] = None,
        templates: Annotated[
            str | None,
            typer.Option(
                help="CLIP: openai-80, simple-7, or a file with one template per line. [default: a photo of a {}.]",
                rich_help_panel=_NETWORK,
            ),
        ] = None,
        resize: Annotated[
            int | None, typer.Option(help="Length of the short side; 0 keeps the size.", rich_help_panel=_NETWORK)
        ] = None,
        crop: Annotated[
            int | None, typer.Option(help="Side of the centre crop; 0 crops nothing.", rich_help_panel=_NETWORK)
        ] = None,
        mean: Annotated[
            str | None,
            typer.Option(help="Mean to subtract from values in [0, 1]: M or R,G,B.", rich_help_panel=_NETWORK),
        ] = None,
        std: Annotated[
            str | None, typer.Option(help="Standard deviation to divide by: S or R,G,B.", rich_help_panel=_NETWORK)
        ] = None,
        interpolation: Annotated[
            str | None, typer.Option(help="nearest, bilinear, bicubic, lanczos.", rich_help_panel=_NETWORK)
        ] = None,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", rich_help_panel=_SPEED)] = "auto",
        precision: Annotated[
            str,
            typer.Option(
                help="auto (bfloat16 on CUDA, else float32; scattering float32), float32, bfloat16, float16.",
                rich_help_panel=_SPEED,
            ),
        ] = "auto",
        batch_size: Annotated[
            str,
            typer.Option(
                help="Images per batch, or auto: 512 on CUDA, else 8 (scattering 256), halved if memory runs out.",
                rich_help_panel=_SPEED,
            ),
        ] = "auto",
        workers: Annotated[
            int | None,
            typer.Option(
                help="Number of decoding processes. [default: none on a CPU, else one fewer than the cores of this "
                "process, at most 16]",
                rich_help_panel=_SPEED,
            ),
        ] = None,
        compile_: Annotated[
            bool, typer.Option("--compile", help="Compile the network with torch.compile.", rich_help_panel=_SPEED)
        ] = False,
        dtype: Annotated[
            str, typer.Option(help="Type of a feature on disk: float16, float32.", rich_help_panel=_SPEED)
        ] = "float16",
        timeout: Annotated[
            float, typer.Option(help="Seconds to wait for a batch of images.", rich_help_panel=_SPEED)
        ] = 300.0,
    ) -> None:
        """Turn images into a feature file and print its path.

        A frozen network computes the features.

        Run the same command again to resume an interrupted run.
        """
        from linprobe.cli import _terminal
        from linprobe.commands import extract as command

        request = command.ExtractRequest(
            source=source,
            backbone=backbone,
            out=out,
            weights=weights,
            random_weights=random_weights,
            arguments=_arguments(backbone_arg or []),
            classes=classes,
            test_fraction=test_fraction,
            root=root,
            download=download,
            public=public,
            augment_views=augment_views,
            class_names=class_names,
            templates=templates,
            resize=resize,
            crop=crop,
            mean=_channels("mean", mean),
            std=_channels("std", std),
            interpolation=interpolation,
            device=device,
            precision=precision,
            batch_size=_batch_size(batch_size),
            workers=workers,
            compile=compile_,
            dtype=dtype,
            on_error=on_error,
            timeout=timeout,
            overwrite=overwrite,
            private_test=private_test,
            owners=owners,
            owner_regex=owner_regex,
        )
        if dry_run:
            with _terminal.TerminalProgress() as progress:
                found = command.dry_run(request, progress, like)
            print_dry_run(found, as_json=as_json)
            return
        with _terminal.TerminalProgress() as progress:
            outcome = command.extract(request, progress, like)
        if outcome is None:
            return
        _summary(outcome, _terminal.note)
        if as_json:
            print_made("feature file", outcome.file, {**vars(outcome), "file": str(outcome.file)})
            return
        print_made("feature file", outcome.file)


def _arguments(pairs: list[str]) -> dict[str, Any]:
    """KEY=VALUE pairs; a value that is not JSON is text."""
    import json

    from linprobe.errors import UsageError

    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key.isidentifier() or not equals:
            raise UsageError(f"backbone argument is {pair!r}; allowed: KEY=VALUE, as in pad_type=same")
        try:
            arguments[key] = json.loads(text)
        except ValueError:
            arguments[key] = text
    return arguments


def _channels(name: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    refusal = f"{name} is {text!r}; allowed: a number, or one per channel, as in 0.5,0.5,0.5"
    return tuple(numbers(text.split(","), float, refusal))


def _batch_size(text: str) -> int | None:
    from linprobe.errors import UsageError

    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"batch size is {text!r}; allowed: auto, or a whole number above 0")
    return int(text)


def _summary(outcome: Any, note: Any) -> None:
    rows = ", ".join(f"{count} {'unlabelled' if group == 'rows' else group}" for group, count in outcome.rows.items())
    note(f"{rows} rows, {outcome.n_features} features, {outcome.n_classes} classes")
    if outcome.extracted:
        rate = outcome.extracted / outcome.seconds
        waited = (
            f"; {outcome.waiting_share:.0%} of the time spent waiting for images" if outcome.waiting_share > 0.1 else ""
        )
        note(f"{rate:.1f} images/s on {outcome.device} in {outcome.precision}{waited}")
    if outcome.converted:
        note("converted images: " + ", ".join(f"{count} {kind}" for kind, count in outcome.converted.items()))
    for name, reason in outcome.skipped[:_NAMED]:
        note(f"skipped {name}: {reason}")
    if len(outcome.skipped) > _NAMED:
        note(f"and {len(outcome.skipped) - _NAMED} more; private_log/skipped_id in the file lists them all")
