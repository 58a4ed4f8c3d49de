"""`slipstream zoo`."""

from __future__ import annotations

import click

from slipstream.cli.errors import one_line_errors


@click.command()
@one_line_errors
def zoo() -> None:
    """List the models that can be compiled by name, built offline with seeded weights."""
    from slipstream.frontends.zoo import names

    for name in names():
        click.echo(f"zoo:{name}")
