"""`slipstream check`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import ModelArgument, input_data_option, named_arrays
from slipstream.errors import SlipstreamError
from slipstream.tvm_bridge.imports import import_tvm_without_torch

_STAGES = ("import", "prepare", "schedule", "build", "link", "verify", "time")
FAILED = 1
_WORDS = {True: ("ok", "green"), False: ("failed", "red"), None: ("left out", "yellow")}


@click.command()
@click.argument("model", type=ModelArgument())
@click.option(
    "--lock",
    default="slipstream.lock",
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What 'slipstream tune --lock' wrote.",
)
@click.option(
    "--max-regression", default="10%", show_default=True, metavar="SHARE", help="How much longer it may take: 10%, 0.1."
)
@click.option("--seconds", type=float, help="How long to measure, at least. [default: 6]")
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit's .xml, or .json."
)
@input_data_option
@one_line_errors
def check(
    model: str,
    lock: Path,
    max_regression: str,
    seconds: float | None,
    report_file: Path | None,
    input_data: tuple[Path, ...],
) -> None:
    """Check in CI that MODEL is as right and as fast as its lock file says.

    MODEL is a model file or zoo:NAME, which is rebuilt from the lock file, or the directory of a compiled model. Its
    results are compared with ONNX Runtime's (PyTorch models: with PyTorch's). Since times differ between machines, the
    time is compared as a ratio to the same runtime, which runs here in turns with the model. Of a model for several
    shapes each is checked and timed. The exit code is 0 if all is well, 1 if a result is wrong or the model has become
    slower, 2 if it cannot be checked.
    """
    from slipstream.artifact.check_report import check_report_file, failed_report, write_report
    from slipstream.session.budget import parse_share

    share = parse_share(max_regression, "a largest regression")
    if report_file is not None:
        check_report_file(report_file)
    options: dict[str, Any] = {"max_regression": share, "input_data": named_arrays(*input_data)}
    options |= {} if seconds is None else {"seconds": seconds}
    try:
        result = _check(model, lock, **options)
    except SlipstreamError as error:
        if report_file is not None:
            write_report(report_file, failed_report(model, str(lock), str(error)))
        raise
    if report_file is not None:
        write_report(report_file, result)
    for warning in result.warnings:
        click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {warning}", err=True)
    width = max(len(part.name) for part in result.parts) + 1
    for part in result.parts:
        word, colour = _WORDS[part.passed]
        click.echo(f"{part.name:{width}} {click.style(word, fg=colour, bold=True)}: {part.text}")
    if not result.passed:
        sys.exit(FAILED)


def _check(model: str, lock: Path, **options: Any) -> Any:
    from slipstream.cli.guard import run_guarded
    from slipstream.cli.progress import stages

    def work(progress: Any) -> Any:
        if not model.endswith(".pt2"):
            import_tvm_without_torch()
        from slipstream.artifact.check import check

        return check(model, lock, progress=progress, **options)

    with stages(f"checking {model}", _STAGES) as show:
        return run_guarded(work, show)
