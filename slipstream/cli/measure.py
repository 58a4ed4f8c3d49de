"""`slipstream measure`: times each operator's default program, on this machine or on a remote device."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.model_operators import STAGES, read_operators
from slipstream.cli.options import ModelArgument, model_options, rpc_options, threads_option
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.machine.target import Target
    from slipstream.measure import Measurement

# An operator as text, so that this process need not import TVM: its name, key, weight, flops, reference and program.
_Operator = dict[str, Any]
_Row = dict[str, Any]


@click.command()
@click.argument("model", type=ModelArgument())
@model_options
@threads_option
@click.option("--operator", "prefix", default="", metavar="PREFIX", help="Only operators whose name or key begins so.")
@rpc_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def measure(model: str, prefix: str, rpc: str | None, rpc_key: str | None, as_json: bool, **source: Any) -> None:
    """Time the default program of each operator of MODEL, and check what it computes.

    With --rpc and --rpc-key, programs are built here and run on the devices of an RPC tracker. TVM's RPC runs
    whatever code it is sent: use it on networks you trust.
    """
    from slipstream.cli.guard import run_guarded
    from slipstream.cli.progress import stages
    from slipstream.measure.choose import check_rpc

    check_rpc(rpc, rpc_key)

    def read(progress: Any) -> tuple[Target, list[_Operator], int]:
        from slipstream.graph.operators import weights_read

        target, operators = read_operators(progress, model, **source)
        return target, [_as_text(operator, target) for operator in _chosen(operators, prefix)], weights_read(operators)

    with stages(f"measuring {model}", (*STAGES, "measure")) as show:
        target, operators, model_weights = run_guarded(read, show)
        show("measure")
        rows = _rows(operators, _measure(target, operators, model_weights, rpc, rpc_key))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print_table(rows)


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

    known = {name: getattr(operator, name) for name in ("key", "name", "weight", "flops")}
    program = schedule_untuned(operator.func, target)
    return {**known, "reference": reference_text(operator.func), "program": reference_text(program)}


def _measure(
    target: Target, operators: list[_Operator], model_weights: int, rpc: str | None, rpc_key: str | None
) -> dict[str, Measurement]:
    """The measurement of each operator's default program, by its key."""
    from slipstream.measure import Candidate
    from slipstream.measure.choose import make_measurer

    programs = [Candidate(operator["key"], operator["program"], operator["name"]) for operator in operators]
    references = {o["key"]: o["reference"] for o in operators}
    measurer = make_measurer(target, references, rpc=rpc, rpc_key=rpc_key, model_weights=model_weights)
    try:
        return {m.program.operator: m for m in measurer.measure(programs)}
    finally:
        measurer.close()


def _rows(operators: list[_Operator], measurements: dict[str, Measurement]) -> list[_Row]:
    """What is printed about each operator: seconds, and its share of the time of all that could be measured."""
    known = {key: m.median for key, m in measurements.items() if m.failure is None}
    total = sum(operator["weight"] * known[operator["key"]] for operator in operators if operator["key"] in known)
    rows = [_row(operator, measurements[operator["key"]], total) for operator in operators]
    return sorted(rows, key=lambda row: -(row["share"] or 0.0))


def _row(operator: _Operator, measured: Measurement, total: float) -> _Row:
    failure, seconds = measured.failure, measured.median
    figures: dict[str, Any] = dict.fromkeys(("seconds", "low", "high", "gflops", "share"))
    if failure is None:
        figures |= {"seconds": seconds, "low": measured.interval.low, "high": measured.interval.high}
        figures |= {"gflops": operator["flops"] / seconds / 1e9, "share": operator["weight"] * seconds / total}
    return {
        **{name: operator[name] for name in ("name", "key", "weight")},
        **figures,
        "verified": measured.verified,
        "noisy": measured.noisy,
        "failure": failure.kind.value if failure else None,
        "message": failure.message if failure else "",
    }


def _print_table(rows: list[_Row]) -> None:
    from slipstream.cli.tables import print_table
    from slipstream.session.quantities import latency

    def cells(row: _Row) -> tuple[Any, ...]:
        if row["failure"]:
            return (row["name"], row["failure"], row["weight"], "-", "-", "-", "-")
        spread = f"{latency(row['low'])} .. {latency(row['high'])}"
        state = ("right" if row["verified"] else "not checked") + (", noisy" if row["noisy"] else "")
        figures = (latency(row["seconds"]), spread, f"{100 * row['share']:.1f}", f"{row['gflops']:.1f}")
        return (row["name"], state, row["weight"], *figures)

    columns = ("operator", "result", "calls", "a call", "95 % interval", "% of time", "GFLOP/s")
    print_table(columns, [cells(row) for row in rows], numeric=5)
    failed = [row for row in rows if row["failure"]]
    total = sum(row["weight"] * row["seconds"] for row in rows if not row["failure"])
    click.echo(f"{len(rows)} operators, {latency(total)} for all calls" + (", without the failures" if failed else ""))
    for kind, count in Counter(row["failure"] for row in failed).most_common():
        example = next(row for row in failed if row["failure"] == kind)
        click.echo(f"{count} failed: {kind}: {example['message']}")
    if any(row["noisy"] for row in rows):
        click.echo("the machine was busy with other things: measure again when it is not")
