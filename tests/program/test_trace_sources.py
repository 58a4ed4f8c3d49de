"""One program, three sources of its trace: the design space, TVM's search, and a database written and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from slipstream.program.space import Realized, Space
from slipstream.program.trace import apply, read_trace
from slipstream.search.evolutionary import Evolution, Evolutionary
from slipstream.search.types import Measured, Question
from tests.program.zoo_operators import labels, space

TINY = Evolution(population_size=8, init_min_unmeasured=4, genetic_num_iters=1, genetic_max_fail_count=2)


def _equal_scores(rows: Any) -> Any:
    return np.ones(len(rows))


def searched(operator: Space, count: int = 3, known: tuple[Measured, ...] = ()) -> list[Realized]:
    return Evolutionary(1, TINY).propose(Question(operator, count, 3, known, _equal_scores))


@pytest.mark.parametrize("label", labels()[::11])
def test_the_same_program_from_every_source(label: str, tmp_path: Path) -> None:
    operator = space(label)
    sketches = {example.sketch for example in operator.stock}
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    workload = database.commit_workload(operator.mod)
    found = searched(operator)
    for seconds, realized in enumerate(found, start=1):
        program = realized.program
        assert program.sketch in sketches
        operator.check(program)
        mine = operator.realize(program)
        assert mine is not None
        assert mine.program == program
        assert tvm_ffi.structural_equal(mine.module, realized.module, map_free_vars=True)
        schedule = s_tir.Schedule(operator.mod)
        apply(program.sketch, program.decisions, schedule, operator.names)
        schedule.enter_postproc()
        for postproc in operator.context(1).space_generator.postprocs:
            postproc.apply(schedule)
        record = ms.database.TuningRecord(schedule.trace, workload, [float(seconds)], operator.target.tvm)
        database.commit_tuning_record(record)
    del database
    again = ms.database.JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()
    read = {float(record.run_secs[0]): read_trace(record.trace, operator.names) for record in again}
    expected = {float(n): (r.program.sketch, r.program.decisions) for n, r in enumerate(found, start=1)}
    assert read == expected


def test_a_search_proposes_nothing_twice_and_the_same_for_the_same_seed() -> None:
    operator = space(labels()[0])
    first = searched(operator)
    assert [r.program for r in searched(operator)] == [r.program for r in first]
    known = tuple(Measured(r.program, 1.0) for r in first)
    second = searched(operator, known=known)
    assert second
    assert not {r.program.identity for r in first} & {r.program.identity for r in second}
    assert len({r.program.identity for r in second}) == len(second)


def test_the_operators_function_survives_a_search() -> None:
    operator = space(labels()[0])
    before = tvm_ffi.structural_hash(operator.func)
    searched(operator)
    assert tvm_ffi.structural_hash(operator.func) == before
