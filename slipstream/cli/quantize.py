"""`slipstream quantize`, and `--dtype int8` of other commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import ModelArgument, named_arrays
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.frontends.quantize import QuantizedModel

calibration_option = click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE.npz",
    help="Real inputs by name, one sample after the other, from which 8-bit ranges are taken.",
)


@click.command("quantize")
@click.argument("model", type=ModelArgument())
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The ONNX file to write.")
@calibration_option
@click.option(
    "--random-calibration",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Calibrate on N random samples: for measuring speed, the results mean nothing.",
)
@click.option(
    "--keep-float", multiple=True, metavar="NAME", help="Leave the layer of this name in float32 (repeatable)."
)
@click.option(
    "--most-error",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Leave layers in float32 until the outputs' relative error is at most this, such as 0.05.",
)
@click.option(
    "--activations",
    type=click.Choice(["signed", "unsigned"]),
    help="Bytes of activations.  [default: unsigned on x86-64, whose instructions take those, else signed]",
)
@click.option("--layers", is_flag=True, help="Print the error of every layer.")
@one_line_errors
def quantize_command(
    model: str,
    output: Path,
    calibration: Path | None,
    random_calibration: int | None,
    keep_float: tuple[str, ...],
    most_error: float | None,
    activations: str | None,
    layers: bool,
) -> None:
    """Write MODEL, an ONNX file in float32 or zoo:NAME, in 8 bits: ONNX Runtime's quantiser, QDQ form, per channel."""
    from slipstream.frontends.quantize import quantize

    result = quantize(
        model,
        output,
        _samples(calibration),
        random_samples=random_calibration or 0,
        keep_float=keep_float,
        most_error=most_error,
        activations=activations,
    )
    if layers:
        from slipstream.cli.tables import print_table

        rows = [(one.name, one.kind, f"{one.error:.1%}", f"{one.added:.1%}") for one in result.layers]
        print_table(("layer", "operator", "error", "added by it"), rows, numeric=2)
    print_quantized(result)


def quantized_model(
    model: str,
    output: Path,
    calibration: Path | None,
    options: dict[str, Any],
    check: Callable[[], object],
    *,
    to_stderr: bool = False,
) -> str:
    """The model to compile: with `--dtype int8` a quantised file beside `output`, which is written first.

    `check` is called before and refuses what would fail later: the file may be the model of what is at `output`.
    """
    if options.get("dtype") != "int8":
        if calibration is not None:
            raise InputError("--calibration is for quantising: add --dtype int8")
        return model
    if options.get("target", "cpu").startswith("cuda"):
        raise InputError("int8 is for CPUs: use --dtype float16 on a GPU")
    from slipstream.frontends.quantize import quantize

    check()
    options["dtype"] = "float32"
    if output.name in ("", ".."):
        output = output.resolve()
    path = output.with_name(f"{output.name}.int8.onnx")
    print_quantized(quantize(model, path, _samples(calibration)), to_stderr=to_stderr)
    return str(path)


def _samples(calibration: Path | None) -> dict[str, Any] | None:
    return None if calibration is None else named_arrays(calibration)


def refuse_quantizing(calibration: Path | None, options: dict[str, Any]) -> None:
    """Of several models, each would need data of its own to be quantised with."""
    if calibration is not None or options.get("dtype") == "int8":
        raise InputError("of several models, quantise each first: slipstream quantize MODEL -o FILE --calibration DATA")


def print_quantized(result: QuantizedModel, *, to_stderr: bool = False) -> None:
    kept = f", in float32: {', '.join(result.kept)}" if result.kept else ""
    click.echo(f"{result.path}: {len(result.layers)} layers in 8 bits{kept}", err=to_stderr)
    for name, error in result.errors.items():
        said = f"  {name}: relative error {error:.1%} against float32 on {result.samples} samples"
        click.echo(said, err=to_stderr)
