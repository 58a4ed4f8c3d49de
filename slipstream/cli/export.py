"""`slipstream export`."""

from __future__ import annotations

from pathlib import Path

import click

from slipstream.cli.errors import one_line_errors


@click.command("export")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="New directory for the files.")
@one_line_errors
def export_command(directory: Path, output: Path) -> None:
    """Write the compiled model in DIRECTORY as a C library with a header, an example and its CMake file.

    Neither Python nor TVM is needed to run it: cc main.c -L. -lNAME, or cmake.
    """
    from slipstream.artifact.export import export

    for path in export(directory, output):
        click.echo(f"{path}  {path.stat().st_size:,} bytes")
