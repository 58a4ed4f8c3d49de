"""`slipstream run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import read_arrays, threads_option
from slipstream.errors import InputError
from slipstream.tvm_bridge.imports import import_tvm_without_torch

if TYPE_CHECKING:
    from slipstream.artifact.loaded import CompiledModel


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE",
    help="A .npy array or a .npz of named arrays (repeatable).",
)
@click.option(
    "--random",
    "use_random",
    is_flag=True,
    help="Fill inputs that were not given: as compiled with --input-data, or random.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of --random.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE.npz", help="Save the outputs by name.")
@threads_option
@one_line_errors
def run(
    directory: Path, inputs: tuple[str, ...], use_random: bool, seed: int, output: Path | None, threads: int | None
) -> None:
    """Run the compiled model in DIRECTORY once and print its outputs; of a model for several shapes, --random runs
    each.
    """
    import time

    import numpy as np

    import_tvm_without_torch()
    from slipstream.artifact.loaded import load
    from slipstream.frontends.archives import write_archive

    model = load(directory, threads=threads)
    feeds = _read_inputs(inputs, [spec.name for spec in model.inputs])
    if not use_random and not feeds and model.inputs:
        expected = ", ".join(map(str, model.inputs))
        raise InputError(f"no inputs: give --input FILE or --random; the model takes {expected}")
    runs = _random_feeds(model, feeds, seed) if use_random else {"": feeds}
    if output is not None and len(runs) > 1:
        raise InputError(f"--output saves one run and the model has {len(runs)} shapes: give --input of one of them")
    for shape, feed in runs.items():
        began = time.perf_counter()
        results = model(feed)
        name = f"{model.manifest.model}{shape and f' {shape}'}"
        click.echo(f"ran {name} in {(time.perf_counter() - began) * 1e3:.1f} ms (first run)")
        for name, value in results.items():
            click.echo(f"{name}: {_summary(value)}")
    if output is not None:
        output = output if output.suffix == ".npz" else output.with_name(f"{output.name}.npz")
        try:
            write_archive(output, {name: np.asarray(value) for name, value in results.items()})
        except OSError as error:
            raise InputError(f"cannot write {output}: {error.strerror}") from error
        click.echo(f"saved {output}")


def _random_feeds(model: CompiledModel, given: dict[str, Any], seed: int) -> dict[str, dict[str, Any]]:
    """By shape: `given` with random values for what is missing; of all shapes, those that `given` fits."""
    from slipstream.artifact.loaded import example_inputs

    shapes = model.manifest.single_shapes
    fitting = {
        label: {**example_inputs(model.directory, own, seed), **given}
        for label, own in zip(model.manifest.shape_labels, shapes, strict=True)
        if all(spec.name not in given or given[spec.name].shape == spec.shape for spec in own.inputs)
    }
    # What fits nowhere is refused by the model, or filled up.
    return fitting or {"": {**example_inputs(model.directory, shapes[-1], seed), **given}}


def _read_inputs(texts: tuple[str, ...], names: list[str]) -> dict[str, Any]:
    feeds: dict[str, Any] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in names:
            name, file = "", text
        arrays = read_arrays(Path(file))
        if isinstance(arrays, dict) and not name:
            feeds.update(arrays)
        elif isinstance(arrays, dict):
            raise InputError(f"{file} holds several arrays: pass it as --input {file}, without a name")
        else:
            free = [n for n in names if n not in feeds]
            if not name and not free:
                raise InputError(f"more inputs were given than the model takes ({', '.join(names)})")
            feeds[name or free[0]] = arrays
    return feeds


def _summary(value: Any) -> str:
    import numpy as np

    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} {str(value)[:80]}"
    kind = f"{value.dtype}{list(value.shape)}"
    if value.size == 0:
        return f"{kind} (empty)"
    head = np.array2string(value.reshape(-1)[:5], precision=4, separator=" ")
    values = f"{kind} {head[:-1]}{' ...' if value.size > 5 else ''}]"
    return values if value.dtype.kind not in "biufV" else f"{values}  min {value.min():.4g}  max {value.max():.4g}"
