"""The `slipstream` command. NumPy and TVM are imported only when needed, so that `--help` is instant."""

from __future__ import annotations

import click

from slipstream.cli.bench import bench
from slipstream.cli.check import check
from slipstream.cli.compile import compile_command
from slipstream.cli.completion import completion
from slipstream.cli.doctor import doctor
from slipstream.cli.export import export_command
from slipstream.cli.fleet import fleet
from slipstream.cli.measure import measure
from slipstream.cli.operators import operators
from slipstream.cli.quantize import quantize_command
from slipstream.cli.report import report
from slipstream.cli.run import run
from slipstream.cli.serve import serve
from slipstream.cli.store import store
from slipstream.cli.tune import resume_command, status_command, tune_command
from slipstream.cli.zoo import zoo
from slipstream.version import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="slipstream")
def main() -> None:
    """Turn a trained model into a compiled, verified, faster one.

    \b
    slipstream tune zoo:resnet18 -o r18 --budget 5m  tune, compile and verify
    slipstream run r18 --random                      run it once
    slipstream bench r18 --against onnxruntime       compare it
    slipstream report r18                            see what happened, as a web page
    slipstream compile zoo:resnet18 -o untuned       compile and verify only
    """


for command in (
    tune_command,
    resume_command,
    status_command,
    compile_command,
    quantize_command,
    run,
    bench,
    check,
    export_command,
    report,
    serve,
    operators,
    measure,
    store,
    fleet,
    zoo,
    doctor,
    completion,
):
    main.add_command(command)
