"""MetaSchedule's database of the best programs of a session."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import tvm

from slipstream.graph.describe.key import operator_key
from slipstream.program.space import Space
from slipstream.store.metaschedule import RECORDS, WORKLOADS
from slipstream.tvm.module import fuse_as_compile_relax, is_tunable
from slipstream.tvm.programs import BestPrograms

logger = logging.getLogger(__name__)


def new_database(kind: Any, work_dir: Path, module_equality: str) -> Any:
    """The database that `kind` names, its files in `work_dir` written anew; an object as it is."""
    from tvm.s_tir import meta_schedule as ms

    if kind == "memory":
        return ms.database.MemoryDatabase(module_equality)
    if kind != "json":
        return kind
    for name in (WORKLOADS, RECORDS):
        (work_dir / name).unlink(missing_ok=True)
    return ms.database.JSONDatabase(str(work_dir / WORKLOADS), str(work_dir / RECORDS), module_equality=module_equality)


def fill_database(database: Any, mod: tvm.IRModule, found: BestPrograms) -> int:
    """Write the best trace of each operator of `mod`, under every workload that TVM may look it up by; how many
    functions of `mod` have one.

    `compile_relax` fuses again what is fused already, which changes attributes of functions that the database
    compares: without a record of its own, such a function is left untuned without a word.
    """
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks

    target = found.target.tvm
    counts = []
    for form in (mod, fuse_as_compile_relax(mod, found.target)):
        counts.append(0)
        for task in extract_tasks(form, target, {}):
            workload = task.dispatched[0]
            func = workload["main"]
            if not is_tunable(func) or (best := found.traced.get(key := operator_key(func))) is None:
                continue
            counts[-1] += 1
            if database.has_workload(workload):
                continue
            program, seconds = best
            scheduled = Space(key, func, found.target).schedule(program)
            if scheduled is not None:
                arguments = ms.arg_info.ArgInfo.from_prim_func(func)
                entry = database.commit_workload(workload)
                record = ms.database.TuningRecord(scheduled[0].trace, entry, [seconds], target, arguments)
                database.commit_tuning_record(record)
    if counts[1] < counts[0]:
        logger.warning(
            "compile_relax fuses %d operators of this module further and will not find them: apply "
            "slipstream.tvm.Tuned or relax.transform.MetaScheduleApplyDatabase to it instead",
            counts[0] - counts[1],
        )
    return counts[0]
