"""`linprobe verify`: whether a run is private, intact, and judged alike by all accountants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linprobe.cli._shared import Json, RunArgument, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def verify(
        run: RunArgument,
        features: Annotated[
            Path | None, typer.Option(help="Feature file; also check that the run was trained on its private rows.")
        ] = None,
        public_key: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Ed25519 public key (PEM); refuse a run that it did not sign."),
        ] = None,
        max_eps: Annotated[float | None, typer.Option(help="Refuse a larger epsilon.")] = None,
        max_delta: Annotated[float | None, typer.Option(help="Refuse a larger delta.")] = None,
        as_json: Json = False,
    ) -> None:
        """Check that a run is private, intact, and judged alike by all accountants.

        The guarantee is under zero-out adjacency: one private record is present, or its place is empty.

        Anything else ends with exit status 4 and the reason: a seeded or non-private run, an edit, a missing file, a
        guarantee above the limits, a signature that is missing or of another key.
        """
        from linprobe.cli import _terminal
        from linprobe.commands.figures import gaussian_words, rounded_up
        from linprobe.commands.verify import verify
        from linprobe.errors import PrivacyError

        result = verify(run, features, public_key=public_key, max_epsilon=max_eps, max_delta=max_delta)
        if as_json:
            print_json(result)
        if result["refused"] is not None:
            raise PrivacyError(result["refused"])
        if as_json:
            return
        signed = "" if result["signature"] is None else f"; signature {result['signature']}"
        opinion = "" if result["epsilon_autodp"] is None else f", autodp {rounded_up(result['epsilon_autodp'])}"
        checks = f"cross-check {rounded_up(result['epsilon_cross_check'])}{opinion}"
        _terminal.note(
            f"epsilon {rounded_up(result['epsilon'])} ({checks}) at delta {rounded_up(result['delta'])}, "
            f"{gaussian_words(result['gdp_mu'], result['zcdp_rho'])}; {result['releases']} releases; data "
            f"{result['data']}{signed}"
        )
        _terminal.note(f"per-record file {result['per_record']}")
        if result["not_covered"]:
            _terminal.note(f"covered by no digest and no signature: {', '.join(result['not_covered'])}")
        _terminal.note(f"stated, not checked: {', '.join(result['stated_not_checked'])}")
        typer.echo("verified")
