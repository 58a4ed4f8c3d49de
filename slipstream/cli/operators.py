"""`slipstream operators`."""

from __future__ import annotations

from typing import Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import (
    ModelArgument,
    constant_option,
    parse_constants,
    parse_shapes,
    shape_option,
    target_option,
)
from slipstream.cli.tvm_import import import_tvm_without_torch

_STAGES = ("import", "prepare", "extract")


@click.command()
@click.argument("model", type=ModelArgument())
@shape_option
@constant_option
@target_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def operators(model: str, shapes: tuple[str, ...], constants: tuple[str, ...], target: str, as_json: bool) -> None:
    """List the operators of MODEL: each distinct fused function once, with its share of the arithmetic."""
    from slipstream.cli.guard import run_guarded
    from slipstream.cli.progress import stages

    parsed_shapes, parsed_constants = parse_shapes(shapes), parse_constants(constants)

    def work(progress: Any) -> list[dict[str, Any]]:
        if not model.endswith(".pt2"):
            import_tvm_without_torch()
        from slipstream.frontends import load_model
        from slipstream.graph.operators import extract_operators
        from slipstream.graph.prepare import prepare
        from slipstream.target import resolve_target

        progress("import")
        resolved = resolve_target(target)
        loaded = load_model(model, shapes=parsed_shapes, constants=parsed_constants)
        progress("prepare")
        prepared, _ = prepare(loaded.module, resolved)
        progress("extract")
        return [_row(operator) for operator in extract_operators(prepared)]

    with stages(f"reading {model}", _STAGES) as show:
        rows = run_guarded(work, show)
    _print_json(rows) if as_json else _print_table(rows)


def _row(operator: Any) -> dict[str, Any]:
    return {
        "name": operator.name,
        "key": operator.key,
        "weight": operator.weight,
        "flops": operator.flops,
        "bytes": operator.bytes,
        "shapes": operator.shapes,
    }


def _print_json(rows: list[dict[str, Any]]) -> None:
    import json

    click.echo(json.dumps(rows, indent=1))


def _print_table(rows: list[dict[str, Any]]) -> None:
    from slipstream.cli.tables import print_table

    total = sum(row["weight"] * row["flops"] for row in rows) or 1
    table = [
        (
            row["name"],
            row["key"],
            row["weight"],
            f"{row['flops'] / 1e6:.2f}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{100 * row['weight'] * row['flops'] / total:.1f}",
        )
        for row in rows
    ]
    print_table(("operator", "key", "times", "MFLOP", "MB", "% of FLOPs"), table, numeric=4)
    click.echo(f"{len(rows)} operators, run {sum(row['weight'] for row in rows)} times, {total / 1e9:.2f} GFLOP")
