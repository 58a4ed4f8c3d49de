"""`slipstream report`."""

from __future__ import annotations

from pathlib import Path

import click

from slipstream.cli.errors import one_line_errors

_PLOTS = ("latency", "timeline", "operators", "roofline", "time")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write [default: in DIRECTORY].")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON instead; -o writes them to a file.")
@click.option("--png", type=click.Choice(_PLOTS), help="Write a single plot as an image instead.")
@one_line_errors
def report(directory: Path, output: Path | None, as_json: bool, png: str | None) -> None:
    """Write what the session in DIRECTORY did as one HTML page, which needs no network and no server.

    The session may be running. 'slipstream bench DIRECTORY --against onnxruntime' before adds the comparison.
    """
    import json

    from slipstream.report.errors import ReportError
    from slipstream.report.view import session_structure

    if as_json and png:
        raise click.UsageError("--json and --png are different reports: choose one")
    structure = session_structure(directory)
    if as_json and output is None:
        click.echo(json.dumps(structure, indent=1, allow_nan=False))
        return
    path = output or directory / (f"report-{png}.png" if png else "report.html")
    try:
        if png:
            from slipstream.report.plots import write_plot

            write_plot(structure, png, path)
        elif as_json:
            path.write_text(json.dumps(structure, indent=1, allow_nan=False) + "\n")
        else:
            from slipstream.report.page import report_page

            path.write_text(report_page(structure), encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write {path} ({error.strerror}): choose another place with -o") from error
    click.echo(str(path))
