"""MetaSchedule's JSON database: two text files, one of workloads and one of tuning records, a line each.

A workload is `[hash, module]`, the module's JSON after its length in eight bytes, both in base64; a record is
`[workload's line, [trace, run_secs, target, args_info]]`. TVM computes the hashes anew when it reads them, as they
differ between platforms, so we write 0. How a trace becomes a sketch with decisions, and back, is the caller's to
say: this file imports no TVM.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from slipstream.errors import first_line
from slipstream.store.errors import StoreError
from slipstream.store.records import OperatorRecord, ProgramRecord, TrialRecord, digest
from slipstream.store.store import Store

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"

# What MetaSchedule writes for a program that has no time.
_NO_TIME = 1e10

_LENGTH = struct.Struct("<Q")

ToTrace = Callable[[str, str, str], list[Any]]  # operator's module, sketch's text, decisions -> trace
FromTrace = Callable[[str, list[Any]], tuple[str, str]]  # operator's module, trace -> sketch's text, decisions
Describe = Callable[[str], OperatorRecord]  # module -> the operator it is


@dataclass(frozen=True)
class Transferred:
    """What went over, what was there already, and what the other side cannot say, with the first reason."""

    operators: int
    trials: int
    known: int = 0
    skipped: int = 0
    reason: str = ""


def require_files(directory: Path) -> None:
    """Refuse a directory that holds no database."""
    for name in (WORKLOADS, RECORDS):
        if not (directory / name).is_file():
            raise StoreError(f"{directory} has no {name}: give the directory of a MetaSchedule database")


def export_metaschedule(
    store: Store, directory: Path, hardware: str, to_trace: ToTrace, target: Mapping[str, Any] | None = None
) -> Transferred:
    """Write the trials of one piece of hardware, failures as MetaSchedule's "no time", all or nothing.

    `target` is the TVM target as a dictionary; MetaSchedule describes hardware by nothing else.
    """
    operators = written = skipped = 0
    reason = ""
    with _new_files(directory, (WORKLOADS, RECORDS)) as (workloads, records):
        for key in store.counts(hardware):
            operator = store.operator(key)
            assert operator is not None
            _write_line(workloads, ["0", _encode(operator.module)])
            for trial in store.trials(operator=key, hardware=hardware):
                try:
                    trace = _trace(store, operator, trial.program, to_trace)
                except Exception as error:  # whatever TVM says of one program, the others go on
                    skipped, reason = skipped + 1, reason or first_line(error)
                    continue
                seconds = trial.samples if trial.failure is None and trial.samples else (_NO_TIME,)
                _write_line(records, [operators, [trace, seconds, target, _arguments(operator)]])
                written += 1
            operators += 1
    return Transferred(operators, written, 0, skipped, reason)


def import_metaschedule(
    store: Store,
    directory: Path,
    from_trace: FromTrace,
    describe: Describe,
    hardware: str | None = None,
    sketch_digest: Callable[[str], str] = digest,
) -> Transferred:
    """Add a database's records, all or nothing; those that are here already are not added twice.

    Without `hardware` the records get one of their own, which is no machine's: a target does not say which CPU
    it was. Give `hardware` only for a database that was made on it.
    """
    require_files(directory)
    workloads = [_workload(line, where) for where, line in _lines(directory / WORKLOADS)]
    operators = [describe(module) for module in workloads]
    added = known = skipped = 0
    reason = ""
    read = []  # all of it before the transaction, which keeps others waiting
    for where, line in _lines(directory / RECORDS):
        index, trace, seconds, target = _record(line, where, len(workloads))
        try:
            read.append((index, *from_trace(workloads[index], trace), seconds, target))
        except Exception as error:  # as above
            skipped, reason = skipped + 1, reason or f"{where}: {first_line(error)}"
    with store.database.transaction():
        store.add_operators(operators)
        for index, text, decisions, seconds, target in read:
            machine = hardware or store.add_hardware({"source": "MetaSchedule", "target": target})
            program = ProgramRecord(sketch_digest(text), decisions, "metaschedule")
            trial = _trial(operators[index].key, machine, program, seconds)
            if store.is_known(trial):
                known += 1
                continue
            store.add_sketch(program.sketch, text)
            store.append_trial(trial)
            added += 1
    return Transferred(len(workloads), added, known, skipped, reason)


def _trace(store: Store, operator: OperatorRecord, program: ProgramRecord, to_trace: ToTrace) -> list[Any]:
    sketch = store.sketch(program.sketch)
    if sketch is None:
        raise ValueError(f"the text of sketch {program.sketch} is not in the store")
    return to_trace(operator.module, sketch, program.decisions)


def _arguments(operator: OperatorRecord) -> list[Any] | None:
    """The arguments as MetaSchedule writes them; it cannot say that a dimension is unknown."""
    if any(dimension < 0 for shape, _ in operator.shapes for dimension in shape):
        return None
    return [["TENSOR", dtype, shape] for shape, dtype in operator.shapes]


def _trial(operator: str, hardware: str, program: ProgramRecord, seconds: list[float]) -> TrialRecord:
    timed = [value for value in seconds if value < _NO_TIME]
    if not timed:
        return TrialRecord(operator, hardware, program, failure="no time", message="MetaSchedule recorded no time")
    return TrialRecord(operator, hardware, program, samples=tuple(timed))


@contextmanager
def _new_files(directory: Path, names: tuple[str, ...]) -> Iterator[list[TextIO]]:
    """Files that get their names when all of them are complete."""
    if there := [name for name in names if (directory / name).exists()]:
        raise StoreError(f"{directory / there[0]} exists: choose an empty directory to export to")
    temporary = [directory / f".{name}.partial-{os.getpid()}" for name in names]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            yield [stack.enter_context(path.open("w")) for path in temporary]
        for path, name in zip(temporary, names, strict=True):
            path.replace(directory / name)
    except OSError as error:
        raise StoreError(f"cannot write to {directory}: {error.strerror}; choose another directory") from error
    finally:
        for path in temporary:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _write_line(file: TextIO, value: Any) -> None:
    # TVM's reader does not support \u escapes.
    file.write(f"{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n")


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Every line of a file as JSON, with where it stands, for messages."""
    try:
        with path.open() as file:
            for number, line in enumerate(file, 1):
                where = f"line {number} of {path}"
                try:
                    yield where, json.loads(line)
                except ValueError as error:
                    raise StoreError(f"{where} is not JSON: the file is damaged or not MetaSchedule's") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {path} ({error}): check that it is readable text") from error


def _workload(line: Any, where: str) -> str:
    match line:
        case [str(), str(module)]:
            try:
                return _decode(module)
            except (ValueError, struct.error) as error:
                raise StoreError(f"{where} is not a workload: its module is not text in base64") from error
    raise StoreError(f"{where} is not a workload: expected [hash, module]")


def _encode(module: str) -> str:
    text = module.encode()
    return base64.b64encode(_LENGTH.pack(len(text)) + text).decode()


def _decode(module: str) -> str:
    data = base64.b64decode(module, validate=True)
    (length,) = _LENGTH.unpack_from(data)
    if length != len(data) - _LENGTH.size:
        raise ValueError(f"{length} bytes were announced")
    return data[_LENGTH.size :].decode()


def _record(line: Any, where: str, workloads: int) -> tuple[int, list[Any], list[float], Any]:
    match line:
        case [int(index), [[list(), list()] as trace, (list() | None) as seconds, target, _]]:
            if not 0 <= index < workloads:
                raise StoreError(
                    f"{where} is about workload {index}, but there are {workloads}: files of two databases?"
                )
            return index, trace, [float(value) for value in seconds or ()], target
    raise StoreError(f"{where} is not a tuning record: expected [workload, [trace, run_secs, target, args_info]]")
