"""`linprobe release`: the files of a run that may be published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import DryRunFlag, Json, RunArgument, print_dry_run, print_made


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def release(
        run: RunArgument,
        out: Annotated[Path, typer.Option(help="Folder to make.")],
        name: Annotated[str | None, typer.Option(help="Name of the model. [default: that of the folder]")] = None,
        curator: Annotated[
            list[str] | None, typer.Option(help="Who publishes the model; repeat for more. [default: not stated]")
        ] = None,
        use: Annotated[str | None, typer.Option(help="Intended use. [default: not stated]")] = None,
        region: Annotated[
            str | None, typer.Option(help="Where the data come from, or whose law applies. [default: not stated]")
        ] = None,
        licence: Annotated[
            str | None, typer.Option("--license", help="Licence id, such as cc-by-4.0. [default: not stated]")
        ] = None,
        public_key: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Ed25519 public key (PEM); refuse a run that it did not sign."),
        ] = None,
        sign: Annotated[
            Path | None,
            typer.Option(metavar="KEY", help="Ed25519 key (PEM) that signs the release; of a signed run, its key."),
        ] = None,
        as_json: Json = False,
        dry_run: DryRunFlag = False,
    ) -> None:
        """Collect what may leave the building, and print the folder.

        Verifies the run first. The folder holds weights, manifest, ledger, signature, a model card and an entry for the
        registry of DP deployments. Runs that are not private are refused. A signature covers the card and the entry: to
        change those of a signed run, give --sign.
        """
        from linprobe.cli import _terminal
        from linprobe.commands import release as command

        request = command.ReleaseRequest(
            run=run,
            out=out,
            name=name,
            curators=tuple(curator or ()),
            use=use,
            region=region,
            licence=licence,
            public_key=public_key,
            sign=sign,
        )
        if dry_run:
            print_dry_run(command.dry_run(request), as_json=as_json)
            return
        released = command.release(request)
        if as_json:
            print_made("release", released["release"], released)
            return
        _terminal.note(f"{', '.join(released['files'])}; read {out / 'README.md'} before you publish it")
        print_made("release", released["release"])
