"""The operators of a model that was named on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.options import named_arrays, parse_constants, parse_shapes
from slipstream.tvm_bridge.imports import import_tvm_without_torch

if TYPE_CHECKING:
    from slipstream.graph.operators import Operator
    from slipstream.machine.target import Target

STAGES = ("import", "prepare", "extract")


def read_operators(
    progress: Callable[[str], None],
    model: str,
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
    target: str,
    dtype: str,
    input_data: tuple[Path, ...] = (),
    threads: int | None = None,
) -> tuple[Target, list[Operator]]:
    """Import and prepare MODEL as the options say: the target, and its operators."""
    fixed = {
        "shapes": parse_shapes(shapes),
        "constants": parse_constants(constants),
        "input_data": named_arrays(*input_data),
    }
    if not model.endswith(".pt2"):
        import_tvm_without_torch()
    from slipstream.frontends import load_model
    from slipstream.graph.operators import extract_operators
    from slipstream.graph.prepare import prepare_parts
    from slipstream.machine.target import resolve_target

    progress("import")
    resolved = resolve_target(target, threads, dtype)
    loaded = load_model(model, **fixed)  # type: ignore[arg-type]
    progress("prepare")
    prepared, _ = prepare_parts(loaded, resolved)
    progress("extract")
    return resolved, extract_operators(*prepared)
