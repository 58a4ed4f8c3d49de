"""`slipstream doctor`: checks the installation and the machine, and prints what to repair."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from slipstream.machine.doctor import Machine, Report


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--no-measure", is_flag=True, help="Skip measuring peak FLOP/s and memory bandwidth.")
def doctor(as_json: bool, no_measure: bool) -> None:
    """Show versions, CPU, GPUs and measured speed, and whether anything known to be broken is installed.

    Exits with 1 if a problem was found.
    """
    from dataclasses import asdict

    from slipstream.machine.doctor import examine

    report = examine(measure=not no_measure)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=2))
    else:
        _print(report)
    sys.exit(1 if report.problems else 0)


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # No markup: a remedy such as "slipstream[linker]" is to be printed as it is.
    console = Console(markup=False, highlight=False)
    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(report):
        table.add_row(name, value)
    console.print(table)
    for note in report.notes:
        console.print(Text.assemble(("note: ", "yellow"), note), soft_wrap=True)
    for problem in report.problems:
        console.print(Text.assemble(("problem: ", "bold red"), problem.what), soft_wrap=True)
        console.print(Text.assemble(("   mend: ", "green"), problem.remedy), soft_wrap=True)
    if not report.problems:
        console.print(Text("nothing known to be broken", "green"))


def _rows(report: Report) -> list[tuple[str, str]]:
    versions = [(name, version) for name, version in report.versions.items() if version]
    environment = list(report.environment.items())
    return [*versions, *_machine_rows(report.machine), *environment]


def _machine_rows(machine: Machine) -> list[tuple[str, str]]:
    rows = [
        ("CPU", f"{machine.cpu}, {machine.architecture}"),
        ("cores", f"{machine.cores} (load {machine.load:.1f})"),
    ]
    if machine.target is not None:
        rows += [("target", machine.target), ("features", " ".join(machine.features))]
    if machine.hardware_class is not None:
        rows.append(("hardware class", machine.hardware_class))
    for gpu in machine.gpus:
        memory = f"{gpu.memory / 2**30:.0f} GiB, " if gpu.memory is not None else ""
        rows.append(("GPU", f"{gpu.name}, {memory}driver {gpu.driver}"))
    if not machine.gpus:
        rows.append(("GPU", "none seen"))
    if machine.gpu_target is not None:
        rows.append(("GPU target", machine.gpu_target))
    if machine.gpus and machine.nvrtc is not None:
        rows.append(("NVRTC", machine.nvrtc))
    if machine.gpu_flops is not None:
        rows.append(("GPU peak", f"{machine.gpu_flops / 1e12:.1f} TFLOP/s in float32, without tensor cores"))
    if machine.gpu_tensor_flops is not None:
        rows.append(("", f"{machine.gpu_tensor_flops / 1e12:.0f} TFLOP/s at tensor cores, float16 (mma.sync)"))
    if machine.gpu_bandwidth is not None:
        rows.append(("GPU memory", f"{machine.gpu_bandwidth / 1e9:.0f} GB/s copied, read and written"))
    if machine.peak_flops is not None:
        rows.append(("peak", f"{machine.peak_flops / 1e9:.0f} GFLOP/s in float32 on {machine.cores} cores"))
    if machine.peak_half_flops:
        rows.append(("", f"{machine.peak_half_flops / 1e9:.0f} GFLOP/s in float16 on {machine.cores} cores"))
    elif machine.peak_half_flops is not None:
        rows.append(("float16", "no arithmetic in it: --dtype float16 is refused, float32 or int8 are what to use"))
    if machine.peak_bfloat16_flops is not None:
        by = "AMX" if "amx-bf16" in machine.features else "AVX512-BF16"
        rows.append(("", f"{machine.peak_bfloat16_flops / 1e9:.0f} GFLOP/s in bfloat16 by {by}"))
    if machine.integer_instruction == "":
        rows.append(("int8", "no instruction for 8-bit dot products: quantised models are computed in float32"))
    elif machine.peak_integer_ops is not None:
        speed = f"{machine.peak_integer_ops / 1e9:.0f} GOP/s in int8"
        rows.append(("", f"{speed} by {machine.integer_instruction} on {machine.cores} cores"))
    if machine.bandwidth is not None:
        rows.append(("memory", f"{machine.bandwidth / 1e9:.1f} GB/s streamed"))
    return rows
