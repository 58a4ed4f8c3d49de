"""The best programs of a session, and a module with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import transform

from slipstream.graph.describe.key import operator_key
from slipstream.graph.fold import fold_constants
from slipstream.graph.prepare import with_root_block
from slipstream.graph.relax_walk import map_prim_funcs
from slipstream.machine.target import Target, resolve_target
from slipstream.program.scheduled import schedule_with
from slipstream.program.space import Program
from slipstream.session.directory import SessionDirectory, SessionDirectoryError, open_store
from slipstream.session.state_names import WINNERS
from slipstream.session.stored_programs import StoredPrograms
from slipstream.store import ProgramRecord
from slipstream.tvm.module import is_tunable

_SCHEDULED = "tirx.is_scheduled"
_PACKING = "meta_schedule.layout_rewrite_preproc"
_MOST_TRACED = 64  # of an operator's fastest programs are looked through for one that is a trace


@dataclass(frozen=True)
class BestPrograms:
    """By operator: the best program, None where none was measured yet and the default one has to do, and the best of
    those that are a trace, with its seconds."""

    target: Target
    best: Mapping[str, Program | None]
    traced: Mapping[str, tuple[Program, float]]


def read_best(work_dir: str | Path) -> BestPrograms:
    """What the session in `work_dir` has found."""
    directory = SessionDirectory.read(work_dir)
    with open_store(directory, read_only=True) as store:
        record = store.session(directory.session)
        saved = store.state(record.id, WINNERS)
        if saved is None:
            raise SessionDirectoryError(f"the session in {work_dir} has not ended yet: call tune_relax again to go on")
        programs = StoredPrograms(store)
        wrong = bool((record.result or {}).get("fallback"))
        best: dict[str, Program | None] = {} if wrong else dict.fromkeys(store.session_operators(record.id))
        traced = {}
        for key, (sketch, decisions) in json.loads(saved[1]).items():
            winner = programs.get(key, ProgramRecord(sketch, decisions))
            if winner is not None:
                best[key] = winner
            fastest = ((programs.get(key, t.program), t.median) for t in store.top(key, record.hardware, _MOST_TRACED))
            known = [(program, seconds) for program, seconds in fastest if program is not None and is_trace(program)]
            # The winner of a race is not always the one with the best single measurement.
            chosen = [pair for pair in known if winner is not None and pair[0].identity == winner.identity] or known
            if chosen:
                traced[key] = chosen[0]
        target = resolve_target(*(record.options[name] for name in ("target", "threads")))
    return BestPrograms(target, best, traced)


def is_trace(program: Program) -> bool:
    """Whether MetaSchedule can write the program down: a trace of the operator as it stands."""
    return bool(program.sketch.instructions) and not program.sketch.form


def with_programs(mod: tvm.IRModule, programs: Mapping[str, Program | None], target: Target) -> tvm.IRModule:
    """The module with its operators scheduled as `programs` say, and constants packed for them; others stay."""
    winners = {key: program for key, program in programs.items() if program is not None}
    schedule = schedule_with(winners, target)

    def scheduled(func: tirx.PrimFunc) -> tirx.PrimFunc:
        if not is_tunable(func) or operator_key(func) not in programs:
            return func
        result = schedule(func)
        return func if tvm_ffi.structural_equal(result, func) else result.with_attr(_SCHEDULED, True)

    with target.tvm:
        mod = map_prim_funcs(mod, scheduled)
        if not any(_packs(func) for func in mod.functions.values()):
            return mod
        mod = transform.SplitLayoutRewritePreproc()(map_prim_funcs(mod, with_root_block))
        return fold_constants(mod, target) if _has_main(mod) else mod


def _packs(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and _PACKING in str(func.script())


def _has_main(mod: tvm.IRModule) -> bool:
    return any(v.name_hint == "main" and isinstance(f, relax.Function) for v, f in mod.functions.items())
