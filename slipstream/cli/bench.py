"""`slipstream bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import threads_option
from slipstream.tvm_bridge.imports import import_tvm_without_torch

if TYPE_CHECKING:
    from slipstream.artifact.bench import BenchResult


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--against",
    default="",
    metavar="NAMES",
    help="onnxruntime, openvino, torch, torch.compile; on a GPU also torch:tf32, torch.compile:max-autotune.",
)
@click.option("--model", help="The model file, if it is no longer where it was compiled from.")
@threads_option
@click.option("--seconds", default=10.0, show_default=True, help="How long to measure, all contenders together.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def bench(directory: Path, against: str, model: str | None, threads: int | None, seconds: float, as_json: bool) -> None:
    """Time the compiled model in DIRECTORY, interleaved with other runtimes on the same inputs and threads."""
    import json
    from dataclasses import asdict

    import_tvm_without_torch()
    from slipstream.artifact.bench import bench as measure
    from slipstream.cli.progress import fraction
    from slipstream.session.benchmark import keep_benchmark

    names = [name.strip() for name in against.split(",") if name.strip()]
    with fraction(f"timing {directory}") as progress:
        result = measure(directory, against=names, model=model, threads=threads, seconds=seconds, progress=progress)
    keep_benchmark(directory, result)
    if as_json:
        click.echo(json.dumps(asdict(result), indent=1))
    else:
        _print(result)


def _print(result: BenchResult) -> None:
    from slipstream.cli.tables import print_table

    ratios = {ratio.against: ratio for ratio in result.ratios}
    rows = []
    for timing in result.timings:
        ratio = ratios.get(timing.name)
        rows.append(
            (
                timing.name,
                f"{timing.median * 1e3:.3f}",
                f"{timing.low * 1e3:.3f} - {timing.high * 1e3:.3f}",
                timing.runs,
                f"{ratio.median:.2f}x as fast" if ratio else "",
                f"{ratio.low:.2f} - {ratio.high:.2f}" if ratio else "",
            )
        )
    columns = ("runtime", "median ms", "95 % interval", "runs", "slipstream is", "95 % interval")
    print_table(columns, rows, title=f"{result.model}, {result.device or f'{result.threads} threads'}", numeric=5)
