"""`slipstream compile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import (
    ModelArgument,
    model_options,
    named_arrays,
    pad_option,
    parse_constants,
    parse_shapes,
    partition_option,
    threads_option,
)
from slipstream.cli.quantize import calibration_option, quantized_model
from slipstream.tvm_bridge.imports import import_tvm_without_torch

if TYPE_CHECKING:
    from slipstream.artifact.compile import CompileResult
    from slipstream.artifact.manifest import Verification

_STAGES = ("import", "prepare", "schedule", "build", "link", "threads", "verify")


@click.command("compile")
@click.argument("model", type=ModelArgument(), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Directory to write the compiled model to.")
@model_options
@calibration_option
@threads_option
@pad_option
@partition_option
@click.option(
    "--lock",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rebuild what 'slipstream tune --lock FILE' recorded: its programs, target, threads and shapes.",
)
@click.option(
    "--explain", is_flag=True, help="Print the passes; with MODEL, also what each one took and how the model was cut."
)
@one_line_errors
def compile_command(
    model: str | None,
    output: Path | None,
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
    input_data: tuple[Path, ...],
    calibration: Path | None,
    partition: bool,
    explain: bool,
    **options: Any,
) -> None:
    """Compile MODEL into a directory, verified against ONNX Runtime (PyTorch models: against PyTorch).

    MODEL is an ONNX file, a saved torch.export program (.pt2), or zoo:NAME ('slipstream zoo' lists them).
    """
    if model is None:
        if not explain:
            raise click.UsageError("Missing argument 'MODEL'.")
        _print_passes()
        return
    if output is None:
        raise click.UsageError("Missing option '-o': the directory to write the compiled model to.")
    own = {
        "shapes": parse_shapes(shapes),
        "constants": parse_constants(constants),
        "input_data": named_arrays(*input_data),
    }
    model = quantized_model(model, output, calibration, options, lambda: _check(output))
    result = _compile(model, output, partition=partition, **own, **options)
    for warning in filter(None, (*result.warnings, *(report.warning for report in result.passes))):
        click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {warning}", err=True)
    if explain:
        _print_passes(result.passes)
        _print_parts(result)
    _print_result(result)


def _check(output: Path) -> None:
    from slipstream.artifact.directory import check_destination, check_executable

    check_destination(output)
    check_executable(output)


def _compile(model: str, output: Path, **options: Any) -> CompileResult:
    from slipstream.cli.guard import run_guarded
    from slipstream.cli.progress import stages

    def work(progress: Any) -> Any:
        from slipstream.artifact.compile import compile

        return compile(model, output, progress=progress, **options)

    with stages(f"compiling {model}", _STAGES) as show:
        result: CompileResult = run_guarded(work, show)
    return result


def _print_passes(reports: Any = None) -> None:
    from slipstream.cli.tables import print_table

    if reports is None:
        import_tvm_without_torch()
        from slipstream.graph.prepare import PASSES

        print_table(("pass", "what it is for"), [(step.name, step.why) for step in PASSES])
        return
    rows = [
        (
            report.name,
            f"{report.why} (left out: {report.skipped})" if report.skipped else report.why,
            f"{report.seconds:.2f}",
        )
        for report in reports
    ]
    print_table(("pass", "what it is for", "seconds"), rows, numeric=1)


def _print_parts(result: CompileResult) -> None:
    from slipstream.cli.tables import print_table

    rows = [
        (part.name, "compiled" if part.is_compiled else "ONNX Runtime", "; ".join(part.reasons), part.nodes)
        for part in result.manifest.all_parts
        if not part.is_compiled or part.nodes
    ]
    if rows:
        print_table(("part", "runs", "why it is not compiled", "nodes"), rows, numeric=1)


def _worst(checked: Verification | None) -> float:
    return max((output.max_relative for output in checked.outputs), default=0.0) if checked else 0.0


def _print_result(result: CompileResult) -> None:
    manifest, checked = result.manifest, result.verification
    size = sum(path.stat().st_size for path in result.directory.iterdir())
    click.echo(f"{result.directory}: {manifest.model} for {manifest.cpu}, {size / 1e6:.1f} MB")
    for own in manifest.single_shapes if manifest.variants else ():
        click.echo(f"  {', '.join(map(str, own.inputs))}: verified, relative error {_worst(own.verification):.1e}")
    first = manifest.single_shapes[0]
    if left := [part for part in first.parts if not part.is_compiled]:
        nodes, total = sum(part.nodes for part in left), sum(part.nodes for part in first.parts)
        click.echo(
            f"{nodes} of {total} nodes run in ONNX Runtime: {'; '.join(r for part in left for r in part.reasons)}"
        )
    for note in checked.notes if checked is not None else ():
        click.echo(note)
    if checked is not None:
        inputs = f"{checked.seeds} seeds" if checked.seeds > 1 else "the inputs given"
        click.echo(
            f"verified against {checked.reference}: {len(checked.outputs)} output(s), {inputs}, "
            f"largest relative error {_worst(checked):.1e}"
        )
    spent = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in result.seconds.items())
    click.echo(f"took {sum(result.seconds.values()):.1f} s ({spent})")
