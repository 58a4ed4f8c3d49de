"""`slipstream operators`."""

from __future__ import annotations

import json
from typing import Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.model_operators import STAGES, read_operators
from slipstream.cli.options import ModelArgument, model_options


@click.command()
@click.argument("model", type=ModelArgument())
@model_options
@click.option("--families", is_flag=True, help="Show which operators share what tuning finds.")
@click.option(
    "--family-mode",
    default="anchor",
    show_default=True,
    metavar="anchor|sequence|sketch",
    help="How --families groups: by the main operator, by the whole sequence, or by identical sketches.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def operators(model: str, families: bool, family_mode: str, as_json: bool, **source: Any) -> None:
    """List the operators of MODEL: each distinct fused function once, with its share of the arithmetic.

    With several shapes: the operators of all of them, and how often each is called in one run of every shape.
    """
    from slipstream.cli.guard import run_guarded
    from slipstream.cli.progress import stages

    def work(progress: Any) -> list[dict[str, Any]]:
        target, extracted = read_operators(progress, model, **source)
        rows = [_row(operator) for operator in extracted]
        return _with_families(rows, extracted, target, family_mode) if families else rows

    with stages(f"reading {model}", STAGES) as show:
        rows = run_guarded(work, show)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif families:
        _print_families(rows)
    else:
        _print_table(rows)


def _row(operator: Any) -> dict[str, Any]:
    return {name: getattr(operator, name) for name in ("name", "key", "weight", "flops", "bytes", "shapes")}


def _with_families(rows: list[dict[str, Any]], operators: list[Any], target: Any, mode: str) -> list[dict[str, Any]]:
    from slipstream.diffusion.families import Member, find_families
    from slipstream.program.space import Space

    members = [Member(operator, Space(operator.key, operator.func, target)) for operator in operators]
    found = {
        key: {"family": number, "similarity": family.similarity[key]}
        for number, family in enumerate(find_families(members, mode))
        for key in family.members
    }
    return [{**row, **found[row["key"]]} for row in rows]


def _print_families(rows: list[dict[str, Any]]) -> None:
    from slipstream.cli.tables import print_table

    table = []
    for number in sorted({row["family"] for row in rows}):
        family = [row for row in rows if row["family"] == number]
        for row in sorted(family, key=lambda r: -r["similarity"]):
            table.append((str(number + 1), row["name"], f"{row['similarity']:.3f}" if len(family) > 1 else "alone"))
    print_table(("family", "operator", "mean similarity to the others"), table, numeric=1)
    alone = sum(1 for row in rows if sum(r["family"] == row["family"] for r in rows) == 1)
    click.echo(f"{len(rows)} operators in {len({r['family'] for r in rows})} families, {alone} of them alone")


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
