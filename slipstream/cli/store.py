"""`slipstream store`: shows, merges, prunes, checks, distils, exports and imports the stored measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.errors import one_line_errors
from slipstream.cli.options import StoreParameter

if TYPE_CHECKING:
    from slipstream.store import OperatorRecord, Store, StoreLocation
    from slipstream.store.metaschedule import Transferred

_SHOWN = 8


path_argument = click.argument("path", type=StoreParameter())
hardware_option = click.option("--hardware", metavar="DIGEST", help="Hardware by its digest, or how that begins.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def store() -> None:
    """Show and maintain the measurements stored by tuning sessions.

    PATH is a store's file, the directory of a session, or postgresql://USER@HOST/DATABASE.
    """


@store.command()
@path_argument
@json_option
@one_line_errors
def stats(path: StoreLocation, as_json: bool) -> None:
    """Count what the store at PATH holds."""
    import json

    from slipstream.store import Store
    from slipstream.store.summary import summarise

    with Store.open(path, read_only=True) as opened:
        summary = summarise(opened)
        sessions = opened.sessions()
    if as_json:
        click.echo(json.dumps(summary | {"session_ids": [s.id for s in sessions]}, indent=1))
        return
    failed = sum(summary["failures"].values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in summary["failures"].items())
    click.echo(f"{path}: {summary['bytes'] / 1e6:.1f} MB")
    click.echo(
        f"models     {len(summary['models'])}" + (f" ({', '.join(summary['models'])})" if summary["models"] else "")
    )
    click.echo(f"operators  {summary['operators']}")
    click.echo(f"programs   {summary['programs']}")
    click.echo(f"trials     {summary['trials']}, {failed} of them failed" + (f" ({kinds})" if kinds else ""))
    for record in sessions:
        click.echo(f"session    {record.id}  {record.model_name}, {record.status}, {record.elapsed:.0f} s")
    for row in summary["hardware"]:
        counts = f"{row['trials']} trials of {row['operators']} operators"
        click.echo(f"hardware   {row['digest']}  {counts}, {_words(row['descriptor'])}")


@store.command()
@path_argument
@click.argument("key", required=False)
@hardware_option
@click.option("--count", type=click.IntRange(min=1), default=5, show_default=True, help="Programs to show of KEY.")
@one_line_errors
def show(path: StoreLocation, key: str | None, hardware: str | None, count: int) -> None:
    """List the operators with their best times, or the best programs of the operator KEY (or how it begins)."""
    from slipstream.store import Store

    with Store.open(path, read_only=True) as opened:
        machines = [_hardware(opened, hardware)] if hardware else _all_hardware(opened)
        if key is None:
            _show_operators(opened, machines)
        else:
            _show_programs(opened, _operator(opened, key), machines, count)


@store.command()
@path_argument
@click.argument("others", type=StoreParameter(), nargs=-1, required=True)
@one_line_errors
def merge(path: StoreLocation, others: tuple[StoreLocation, ...]) -> None:
    """Add the trials of OTHERS to the store at PATH, which is created if missing. No trial is added twice."""
    from slipstream.store import Store
    from slipstream.store.merge import merge as merge_stores

    for other in others:
        Store.open(other, read_only=True).close()
    with Store.open(path) as opened:
        for other in others:
            done = merge_stores(opened, other)
            click.echo(f"{other}: {done.trials} trials and {done.sessions} sessions added, {done.known} trials known")


@store.command()
@path_argument
@click.option("--keep", type=click.IntRange(min=1), required=True, help="Programs to keep per operator and hardware.")
@click.option("--yes", is_flag=True, help="Do it; without this, only say what would go.")
@one_line_errors
def prune(path: StoreLocation, keep: int, yes: bool) -> None:
    """Remove trials of no session beyond the best programs of each operator, and make the file smaller.

    Trials of sessions stay: their status and report need all of them.
    """
    from slipstream.store import Store
    from slipstream.store.prune import prune as prune_store

    with Store.open(path, create=False) as opened:
        done = prune_store(opened, keep, dry_run=not yes)
    if yes:
        size = f"{done.bytes_before / 1e6:.1f} MB before, {done.bytes_after / 1e6:.1f} MB now"
        click.echo(f"{done.going} trials removed, {done.staying} kept; {size}")
    else:
        click.echo(f"{done.going} trials would go, {done.staying} would stay; add --yes to do it")


@store.command()
@click.argument("paths", type=StoreParameter(), nargs=-1, required=True)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The file; one that exists is added to."
)
@click.option(
    "--keep", type=click.IntRange(min=2), default=48, show_default=True, help="Programs of an operator on a machine."
)
@click.option("--noisy", is_flag=True, help="Also trials that were measured while others used the machine.")
@one_line_errors
def distil(paths: tuple[StoreLocation, ...], output: Path, keep: int, noisy: bool) -> None:
    """Write what the stores at PATHS teach about fast programs to a small file, by class of hardware.

    'slipstream tune --priors FILE' starts from it on any machine of such a class. It has operators, decisions and
    times; no weights, and of models no more than their operators' shapes.
    """
    from slipstream.diffusion.distilled import read_priors, write_priors
    from slipstream.session.distil import distil_stores

    classes = distil_stores(paths, read_priors(output) if output.exists() else {}, keep=keep, noisy=noisy)
    size = write_priors(classes, output)
    for name, known in sorted(classes.items()):
        programs = sum(len(operator.programs) for operator in known.operators)
        machines = "; ".join(known.machines)
        click.echo(f"{name:10} {programs} programs of {len(known.operators)} operators, from {machines}")
    click.echo(f"{output}: {size / 1e3:.0f} kB")


@store.command()
@path_argument
@click.option("--salvage", "output", type=click.Path(path_type=Path), metavar="NEW", help="Save what can be read.")
@one_line_errors
def check(path: StoreLocation, output: Path | None) -> None:
    """Check that the store at PATH is whole, and save what can be saved if it is not."""
    from slipstream.store import StoreDamagedError, StoreError
    from slipstream.store.check import find_problems
    from slipstream.store.salvage import salvage

    if output is not None:
        if not isinstance(path, Path):
            raise StoreError(f"{path} is no file to salvage: 'slipstream store merge {output} {path}' copies it")
        saved = salvage(path, output)
        rows = ", ".join(f"{count} {table}" for table, count in saved.rows.items() if count)
        click.echo(f"{output}: {rows or 'nothing could be read'}; {saved.dropped} rows left out that made no sense")
        return
    if problems := find_problems(path):
        for problem in problems[:_SHOWN]:
            click.echo(problem)
        remedy = f"'slipstream store check {path} --salvage NEW' saves what it can"
        if not isinstance(path, Path):
            remedy = "repair the server's settings, or restore its backup"
        raise StoreDamagedError(f"{path} is damaged: {remedy}")
    click.echo(f"{path} is whole")


@store.command()
@path_argument
@click.argument("directory", type=click.Path(path_type=Path))
@hardware_option
@one_line_errors
def export(path: StoreLocation, directory: Path, hardware: str | None) -> None:
    """Write the trials of one piece of hardware to DIRECTORY as a MetaSchedule JSON database."""
    from slipstream.store import Store
    from slipstream.store.metaschedule import export_metaschedule
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    with Store.open(path, read_only=True) as opened:
        machine = _the_hardware(opened, hardware)
        target = opened.hardware(machine).get("target")
        import_tvm_without_torch()
        from slipstream.program.metaschedule import to_metaschedule

        done = export_metaschedule(
            opened, directory, machine, to_metaschedule, target if isinstance(target, dict) else None
        )
    _report(f"{directory}: {done.trials} records of {done.operators} operators written", done)


@store.command("import")
@path_argument
@click.argument("directory", type=click.Path(path_type=Path))
@hardware_option
@one_line_errors
def import_command(path: StoreLocation, directory: Path, hardware: str | None) -> None:
    """Add the MetaSchedule JSON database in DIRECTORY to the store at PATH.

    A database does not say which machine it was made on. Its records become those of no known machine, unless
    --hardware says on which of the store's they were measured.
    """
    from slipstream.store import Store
    from slipstream.store.metaschedule import import_metaschedule, require_files
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    require_files(directory)
    with Store.open(path) as opened:
        machine = _hardware(opened, hardware) if hardware else None
        import_tvm_without_torch()
        from slipstream.program.metaschedule import from_metaschedule

        done = import_metaschedule(opened, directory, from_metaschedule, describe_module, machine)
    _report(f"{path}: {done.trials} trials of {done.operators} operators added, {done.known} known", done)


def _report(message: str, done: Transferred) -> None:
    click.echo(message)
    if done.skipped:
        click.echo(f"{done.skipped} left out, the first because {done.reason}")


def describe_module(text: str) -> OperatorRecord:
    """The operator that a MetaSchedule workload computes."""
    import tvm

    from slipstream.graph.describe.key import operator_key
    from slipstream.graph.operators import make_operator
    from slipstream.store import OperatorRecord, StoreError

    try:
        func = tvm.ir.load_json(text)["main"]
        found = make_operator(operator_key(func), [], func, weight=1)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise StoreError(
            f"a workload is not a TIR module with a function 'main' ({reason}): cannot import it"
        ) from error
    return OperatorRecord(found.key, found.name, found.kinds, found.flops, found.bytes, found.shapes, text)


def _show_operators(opened: Store, machines: list[str]) -> None:
    from slipstream.cli.tables import print_table

    rows = []
    for machine in machines:
        counts = opened.counts(machine)
        for operator in opened.operators():
            trials, failures = counts.get(operator.key, (0, 0))
            best = opened.best(operator.key, machine)
            speed = f"{operator.flops / best.median / 1e9:.1f}" if best and best.median else ""
            if trials:
                rows.append((operator.name, operator.key, machine, trials, failures, _time(best), speed))
    print_table(("operator", "key", "hardware", "trials", "failed", "best µs", "GFLOP/s"), rows, numeric=4)


def _show_programs(opened: Store, key: str, machines: list[str], count: int) -> None:
    from slipstream.cli.tables import print_table

    operator = opened.operator(key)
    assert operator is not None
    rows = [
        (machine, _time(trial), trial.program.origin, trial.program.sketch, trial.program.decisions)
        for machine in machines
        for trial in opened.top(key, machine, count)
    ]
    print_table(("hardware", "µs", "proposed by", "sketch", "decisions"), rows, title=f"{operator.name}  {key}")


def _time(trial: Any) -> str:
    return f"{trial.median * 1e6:.2f}" if trial else ""


def _words(descriptor: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in descriptor.items() if not isinstance(value, dict | list))


def _operator(opened: Store, prefix: str) -> str:
    return _one(prefix, [(operator.key, operator.name) for operator in opened.operators()], "operator")


def _all_hardware(opened: Store) -> list[str]:
    return [digest for (digest,) in opened.database.rows("SELECT digest FROM hardware ORDER BY id")]


def _hardware(opened: Store, prefix: str) -> str:
    return _one(prefix, [(digest, _words(opened.hardware(digest))) for digest in _all_hardware(opened)], "hardware")


def _the_hardware(opened: Store, prefix: str | None) -> str:
    """The hardware asked for, or the only one there is."""
    from slipstream.store import StoreError

    if prefix is not None:
        return _hardware(opened, prefix)
    known = _all_hardware(opened)
    if len(known) != 1:
        raise StoreError(
            f"{opened.location} holds {len(known)} pieces of hardware: choose with --hardware{_list(known)}"
        )
    return known[0]


def _one(prefix: str, named: list[tuple[str, str]], what: str) -> str:
    """The key that begins with `prefix`, if there is exactly one."""
    from slipstream.store import StoreError

    found = [(key, name) for key, name in named if key.startswith(prefix)]
    if not found:
        raise StoreError(f"no {what} begins with {prefix!r}: 'slipstream store stats' and 'show' list what there is")
    if len(found) > 1:
        raise StoreError(f"{prefix!r} is ambiguous, give more of it{_list([f'{key} ({name})' for key, name in found])}")
    return found[0][0]


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f": {shown}{', ...' if len(names) > _SHOWN else ''}" if names else ""
