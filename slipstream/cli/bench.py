"""`slipstream bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import input_data_option, named_arrays, threads_option

if TYPE_CHECKING:
    from slipstream.artifact.bench import BenchResult
    from slipstream.artifact.comparison import Part
    from slipstream.artifact.request_pattern import RequestPattern


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--against",
    default="",
    metavar="NAMES",
    help="onnxruntime, openvino, torch, torch.compile; on a GPU also torch:tf32, torch.compile:max-autotune.",
)
@click.option("--pause", metavar="TIME", help="Call after pauses of this length, such as 20ms; 0 is back to back.")
@click.option("--rate", type=float, metavar="N", help="N requests a second at random times; latency has their waiting.")
@click.option("--callers", type=click.IntRange(min=1), metavar="N", help="N threads call the same model.")
@click.option("--model", help="The model file, if it is no longer where it was compiled from.")
@threads_option
@input_data_option
@click.option("--seconds", default=10.0, show_default=True, help="How long to measure, all contenders together.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def bench(
    directory: Path,
    against: str,
    pause: str | None,
    rate: float | None,
    callers: int | None,
    model: str | None,
    threads: int | None,
    input_data: tuple[Path, ...],
    seconds: float,
    as_json: bool,
) -> None:
    """Time the compiled model in DIRECTORY, in turns with other runtimes on the same inputs and threads.

    Every runtime has a process of its own. Without --pause, --rate and --callers: back to back, then after pauses of
    20 ms. Without --input-data: on the data that the model was compiled with, if there was any, or on random inputs. Of
    a model for several shapes, each in turn.
    """
    import json
    from dataclasses import asdict

    from slipstream.artifact.bench import bench_shapes as measure
    from slipstream.cli.progress import fraction
    from slipstream.session.benchmark import keep_benchmark

    names = [name.strip() for name in against.split(",") if name.strip()]
    patterns, arrays = _patterns(pause, rate, callers), named_arrays(*input_data)
    with fraction(f"timing {directory}") as progress:
        results = measure(
            directory,
            against=names,
            model=model,
            threads=threads,
            seconds=seconds,
            patterns=patterns,
            input_data=arrays,
            progress=progress,
        )
    keep_benchmark(directory, results)
    if as_json:
        found = [asdict(result) for result in results]
        click.echo(json.dumps(found[0] if len(found) == 1 else {"shapes": found}, indent=1))
    else:
        _print(results)


def _patterns(pause: str | None, rate: float | None, callers: int | None) -> Sequence[RequestPattern]:
    from slipstream.artifact.bench import PATTERNS
    from slipstream.artifact.request_pattern import RequestPattern
    from slipstream.session.budget import parse_duration

    if pause is None and rate is None and callers is None:
        return PATTERNS
    seconds = 0.0 if pause is None or pause.strip() == "0" else parse_duration(pause, "a pause")
    return [RequestPattern(seconds, rate, callers or 1)]


def _print(results: Sequence[BenchResult]) -> None:
    measured = [(result, part) for result in results for part in result.parts]
    for number, (result, part) in enumerate(measured):
        if number:
            click.echo()
        where = f"{result.device or f'{result.threads} threads'}, {part.pattern}"
        _print_part(part, f"{result.model}{result.shape and f' {result.shape}'}, {where}")


def _print_part(part: Part, title: str) -> None:
    from slipstream.cli.tables import print_table

    ratios = {ratio.against: ratio for ratio in part.ratios}
    rows = []
    for timing in part.timings:
        ratio = ratios.get(timing.name)
        rows.append(
            (
                f"{timing.name} ({timing.setting})" if timing.setting else timing.name,
                *(f"{seconds * 1e3:.3f}" for seconds in (timing.median, timing.p90, timing.p99)),
                timing.runs,
                f"{timing.requests_per_second:.1f}",
                f"{timing.processor_seconds * 1e3:.3f}",
                f"{ratio.median:.2f}x as fast" if ratio else "",
                f"{ratio.low:.2f} - {ratio.high:.2f}" if ratio else "",
            )
        )
    columns = ("runtime", "p50 ms", "p90", "p99", "requests", "a second", "CPU ms each")
    print_table((*columns, "slipstream is", "95 % interval"), rows, title=title, numeric=8)
    for timing in part.timings:
        if timing.unserved:
            click.echo(f"{timing.name} did not keep up: {timing.unserved} of {timing.runs} requests were never served")
