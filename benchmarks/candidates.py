"""Real operators of ResNet-18 and BERT, and programs for them drawn at random from MetaSchedule's design space."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import s_tir

from slipstream.frontends import load_model
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import Target
from slipstream.measure.types import Candidate
from slipstream.tvm_bridge.intrinsics import import_intrinsics

# Kind of operator -> (model of the zoo, how `Operator.name` begins).
OPERATORS: dict[str, tuple[str, str]] = {
    "conv3x3": ("resnet18", "conv2d 3x3 128→128 28x28 + add + relu"),
    "conv1x1": ("resnet18", "conv2d 1x1/2 128→256 14x14 + add"),
    "matmul": ("bert_base", "matmul 128x768x768 + add"),
}


def pick_operators(target: Target, kinds: tuple[str, ...] = tuple(OPERATORS)) -> dict[str, Operator]:
    """The operators named in `OPERATORS`, by kind."""
    models = {OPERATORS[kind][0] for kind in kinds}
    known = {(model, operator.name): operator for model in models for operator in operators_of(model, target)}
    return {kind: known[OPERATORS[kind]] for kind in kinds}


def operators_of(model: str, target: Target) -> list[Operator]:
    """The operators of a zoo model, prepared for `target`."""
    return extract_operators(prepare(load_model(f"zoo:{model}").module, target)[0])


def sample_programs(operator: Operator, target: Target, count: int, rng: np.random.Generator) -> list[Candidate]:
    """`count` different valid programs: a random sketch with random decisions each."""
    import_intrinsics()
    from tvm.s_tir import meta_schedule as ms

    mod = tvm.IRModule({"main": operator.func.with_attr("global_symbol", "main")})
    with target.tvm:
        context = ms.TuneContext(
            mod, target=target.tvm, space_generator="post-order-apply", rand_state=int(rng.integers(1, 2**30))
        )
        space = context.generate_design_space()
    programs: dict[str, Candidate] = {}
    while len(programs) < count:
        sketch = space[int(rng.integers(len(space)))]
        scheduled = _random_program(mod, sketch, context, int(rng.integers(1, 2**30)))
        if scheduled is not None:
            module = tvm.ir.save_json(scheduled)
            programs.setdefault(module, Candidate(operator.key, module, f"{operator.name} #{len(programs)}"))
    return list(programs.values())


def _random_program(mod: Any, sketch: Any, context: Any, seed: int) -> Any | None:
    """Replay the sketch's trace without its decisions, so that every sampling instruction draws anew."""
    schedule = s_tir.Schedule(mod, seed=seed, debug_mask=0, error_render_level="none")
    trace = s_tir.schedule.Trace(sketch.trace.insts, {})
    try:
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        for postproc in context.space_generator.postprocs:
            if not postproc.apply(schedule):
                return None
    except (s_tir.schedule.ScheduleError, tvm.error.InternalError, ValueError):
        return None
    return schedule.mod
