"""Features of real programs, and our form of TVM's cost model against TVM's own."""

from __future__ import annotations

import inspect

import numpy as np
import tvm
from scipy.stats import spearmanr
from tvm import te

from slipstream.cost import Example
from slipstream.cost.features import WIDTH, extract
from slipstream.cost.metaschedule import MetaSchedule
from slipstream.machine.target import resolve_target
from slipstream.tvm_bridge.intrinsics import import_intrinsics, quick_inspect_stack

PROGRAMS_PER_OPERATOR = 70


def matmul(rows: int, columns: int, depth: int) -> tvm.IRModule:
    a, b = te.placeholder((rows, depth), name="a"), te.placeholder((depth, columns), name="b")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    relu = te.compute((rows, columns), lambda i, j: te.max(c[i, j], 0.0), name="relu")
    return tvm.IRModule({"main": te.create_prim_func([a, b, relu])})


def random_schedules(module: tvm.IRModule, count: int) -> list[tvm.s_tir.Schedule]:
    """Tilings of the matmul with random factors, some vectorised, parallel or unrolled."""
    schedules = []
    for seed in range(1, count + 1):
        schedule = tvm.s_tir.Schedule(module, seed=seed)
        block = schedule.get_sblock("c")
        i, j, k = schedule.get_loops(block)
        outer_i, inner_i = schedule.split(i, schedule.sample_perfect_tile(i, 2))
        outer_j, inner_j = schedule.split(j, schedule.sample_perfect_tile(j, 2, max_innermost_factor=16))
        outer_k, inner_k = schedule.split(k, schedule.sample_perfect_tile(k, 2))
        schedule.reorder(outer_i, outer_j, outer_k, inner_i, inner_k, inner_j)
        if seed % 2:
            schedule.vectorize(inner_j)
        if seed % 3:
            schedule.parallel(outer_i)
        if seed % 5 == 0:
            schedule.unroll(inner_k)
        schedules.append(schedule)
    return schedules


def test_features_of_a_program_are_always_the_same() -> None:
    target = resolve_target()
    modules = [schedule.mod for schedule in random_schedules(matmul(32, 48, 64), 20)]
    first = extract(modules, target)
    again = extract([tvm.ir.load_json(tvm.ir.save_json(module)) for module in modules], target)
    assert all(rows.dtype == np.float32 and rows.shape[1] == WIDTH and len(rows) for rows in first)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({rows.tobytes() for rows in first}) > 10
    assert extract([], target) == []


def test_the_quick_stack_has_the_same_frames() -> None:
    original = inspect.stack
    with quick_inspect_stack():
        quick = inspect.stack()
    assert inspect.stack is original
    slow = inspect.stack()
    assert [(f.filename, f.function) for f in quick] == [(f.filename, f.function) for f in slow]
    assert [f.lineno for f in quick[1:]] == [f.lineno for f in slow[1:]]


def test_metaschedule_ranks_as_tvm_does() -> None:
    """TVM's XGBModel through its own interface, fed the same programs and times in the same rounds."""
    import_intrinsics()
    from tvm.s_tir.meta_schedule import MeasureCandidate, TuneContext
    from tvm.s_tir.meta_schedule.cost_model import XGBModel
    from tvm.s_tir.meta_schedule.runner import RunnerResult

    target = resolve_target()
    theirs = XGBModel(num_tuning_cores=1)
    ours = MetaSchedule(seed=0, threads=1)
    rng = np.random.default_rng(0)
    rounds = []
    for shape in ((32, 48, 64), (64, 64, 32)):
        module = matmul(*shape)
        schedules = random_schedules(module, PROGRAMS_PER_OPERATOR)
        candidates = [MeasureCandidate(schedule, []) for schedule in schedules]
        features = extract([schedule.mod for schedule in schedules], target)
        work = np.array([rows.sum() for rows in features])
        seconds = 1e-4 * (1 + 9 * (work - work.min()) / np.ptp(work) + 0.1 * rng.random(len(work)))
        rounds.append((TuneContext(module, target=target.tvm), candidates, features, seconds))
    for context, candidates, features, seconds in rounds:
        theirs.update(context, candidates, [RunnerResult([float(s)], None) for s in seconds])
        ours.learn([Example(str(context.mod), rows, float(s)) for rows, s in zip(features, seconds, strict=True)])
    for context, candidates, features, seconds in rounds:
        predicted = ours.score(features)
        assert spearmanr(predicted, theirs.predict(context, candidates)).statistic > 0.99
        assert spearmanr(predicted, seconds).statistic < -0.9
