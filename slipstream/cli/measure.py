"""`slipstream measure`: times each operator's default program, on this machine or on a remote device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import (
    ModelArgument,
    constant_option,
    dtype_option,
    input_data_option,
    named_arrays,
    parse_constants,
    parse_shapes,
    rpc_options,
    shape_option,
    target_option,
    threads_option,
)
from slipstream.errors import InputError
from slipstream.tvm_bridge.imports import import_tvm_without_torch

if TYPE_CHECKING:
    from slipstream.machine.target import Target
    from slipstream.measure import Measurement

_STAGES = ("import", "prepare", "extract", "measure")


@dataclass(frozen=True)
class _Operator:
    """An operator as text, so that this process need not import TVM. `program` is its default program."""

    key: str
    name: str
    weight: int
    flops: int
    reference: str
    program: str


@dataclass(frozen=True)
class _Row:
    """What is printed about an operator. Times are seconds; `share` is of the time of all that could be measured."""

    name: str
    key: str
    weight: int
    seconds: float | None
    low: float | None
    high: float | None
    gflops: float | None
    share: float | None
    verified: bool
    noisy: bool
    failure: str | None
    message: str


@click.command()
@click.argument("model", type=ModelArgument())
@shape_option
@constant_option
@target_option
@dtype_option
@input_data_option
@threads_option
@click.option("--operator", "prefix", default="", metavar="PREFIX", help="Only operators whose name or key begins so.")
@rpc_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def measure(
    model: str,
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
    target: str,
    dtype: str,
    input_data: Path | None,
    threads: int | None,
    prefix: str,
    rpc: str | None,
    rpc_key: str | None,
    as_json: bool,
) -> None:
    """Time the default program of each operator of MODEL, and check what it computes.

    With --rpc and --rpc-key, programs are built here and run on the devices of an RPC tracker. TVM's RPC runs
    whatever code it is sent: use it on networks you trust.
    """
    from slipstream.cli.guard import run_guarded
    from slipstream.cli.progress import stages

    parsed_shapes, parsed_constants = parse_shapes(shapes), parse_constants(constants)
    arrays = named_arrays(input_data)
    from slipstream.measure.choose import check_rpc

    check_rpc(rpc, rpc_key)

    def read(progress: Any) -> tuple[Target, list[_Operator]]:
        if not model.endswith(".pt2"):
            import_tvm_without_torch()
        from slipstream.frontends import load_model
        from slipstream.graph.operators import extract_operators
        from slipstream.graph.prepare import prepare_parts
        from slipstream.machine.target import resolve_target

        progress("import")
        resolved = resolve_target(target, threads, dtype)
        loaded = load_model(model, shapes=parsed_shapes, constants=parsed_constants, input_data=arrays)
        progress("prepare")
        prepared, _ = prepare_parts(loaded, resolved)
        progress("extract")
        operators = _chosen(extract_operators(*prepared), prefix)
        return replace(resolved), [_as_text(operator, resolved) for operator in operators]

    with stages(f"measuring {model}", _STAGES) as show:
        resolved, operators = run_guarded(read, show)
        show("measure")
        rows = _rows(operators, _measure(resolved, operators, rpc, rpc_key))
    _print_json(rows) if as_json else _print_table(rows)


def _chosen(operators: list[Any], prefix: str) -> list[Any]:
    chosen = [operator for operator in operators if operator.name.startswith(prefix) or operator.key.startswith(prefix)]
    if not chosen:
        some = "; ".join(operator.name for operator in operators[:3])
        raise InputError(
            f"no operator's name or key begins with {prefix!r}: 'slipstream operators' lists them ({some}; ...)"
        )
    return chosen


def _as_text(operator: Any, target: Target) -> _Operator:
    from slipstream.graph.forms import schedule_untuned
    from slipstream.measure import reference_text

    return _Operator(
        operator.key,
        operator.name,
        operator.weight,
        operator.flops,
        reference_text(operator.func),
        reference_text(schedule_untuned(operator.func, target)),
    )


def _measure(
    target: Target, operators: list[_Operator], rpc: str | None, rpc_key: str | None
) -> dict[str, Measurement]:
    """The measurement of each operator's default program, by its key."""
    from slipstream.measure import Candidate

    programs = [Candidate(operator.key, operator.program, operator.name) for operator in operators]
    from slipstream.measure.choose import make_measurer

    measurer = make_measurer(target, {o.key: o.reference for o in operators}, rpc=rpc, rpc_key=rpc_key)
    try:
        return {m.program.operator: m for m in measurer.measure(programs)}
    finally:
        measurer.close()


def _rows(operators: list[_Operator], measurements: dict[str, Measurement]) -> list[_Row]:
    known = {key: m for key, m in measurements.items() if m.failure is None}
    total = sum(operator.weight * known[operator.key].median for operator in operators if operator.key in known)
    rows = [_row(operator, measurements[operator.key], total) for operator in operators]
    return sorted(rows, key=lambda row: -(row.share or 0.0))


def _row(operator: _Operator, measured: Measurement, total: float) -> _Row:
    failure, seconds = measured.failure, measured.median
    return _Row(
        operator.name,
        operator.key,
        operator.weight,
        seconds=None if failure else seconds,
        low=None if failure else measured.interval.low,
        high=None if failure else measured.interval.high,
        gflops=None if failure else operator.flops / seconds / 1e9,
        share=None if failure else operator.weight * seconds / total,
        verified=measured.verified,
        noisy=measured.noisy,
        failure=failure.kind.value if failure else None,
        message=failure.message if failure else "",
    )


def _print_json(rows: list[_Row]) -> None:
    import json

    click.echo(json.dumps([asdict(row) for row in rows], indent=1))


def _print_table(rows: list[_Row]) -> None:
    from collections import Counter

    from slipstream.cli.quantities import latency
    from slipstream.cli.tables import print_table

    def cells(row: _Row) -> tuple[Any, ...]:
        if row.seconds is None or row.low is None or row.high is None:
            return (row.name, row.failure, row.weight, "-", "-", "-", "-")
        spread = f"{latency(row.low)} .. {latency(row.high)}"
        state = ("right" if row.verified else "not checked") + (", noisy" if row.noisy else "")
        share, gflops = f"{100 * (row.share or 0):.1f}", f"{row.gflops:.1f}"
        return (row.name, state, row.weight, latency(row.seconds), spread, share, gflops)

    columns = ("operator", "result", "calls", "a call", "95 % interval", "% of time", "GFLOP/s")
    print_table(columns, [cells(row) for row in rows], numeric=5)
    total = sum(row.weight * row.seconds for row in rows if row.seconds is not None)
    failures = Counter(row.failure for row in rows if row.failure)
    click.echo(
        f"{len(rows)} operators, {latency(total)} for all calls" + (", without the failures" if failures else "")
    )
    for kind, count in failures.most_common():
        example = next(row for row in rows if row.failure == kind)
        click.echo(f"{count} failed: {kind}: {example.message}")
    if any(row.noisy for row in rows):
        click.echo("the machine was busy with other things: measure again when it is not")
