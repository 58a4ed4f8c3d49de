"""Between TVM's traces and our sketches with decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from slipstream.graph.cpu.tile_intrinsics import register_named
from slipstream.program.decisions import Decisions
from slipstream.program.operands import blocks_of
from slipstream.program.sketch import Sketch, read_instructions, write_instructions


def block_names(func: tirx.PrimFunc) -> tuple[str, ...]:
    """The names of the function's blocks in program order, without the root."""
    return tuple(str(block.name_hint) for block in blocks_of(func))


def read_trace(trace: Any, names: Sequence[str], form: str = "") -> tuple[Sketch, Decisions]:
    """The sketch and the decisions of a trace, wherever it comes from. `names` are the blocks of that form."""
    instructions, decisions = trace.simplified(remove_postproc=True).as_json()
    return read_instructions(plain(instructions), plain(decisions), names, form)


def apply(sketch: Sketch, decisions: Decisions, schedule: s_tir.Schedule, names: Sequence[str]) -> None:
    """Replay the sketch with these decisions; TVM's `ScheduleError` says that they do not fit."""
    for name, _, attributes, _ in sketch.instructions:
        if name == "Tensorize":
            register_named(str(attributes[0]))
    s_tir.schedule.Trace.apply_json_to_schedule(write_instructions(sketch, decisions, names), schedule)


def plain(value: Any) -> Any:
    """TVM's JSON as Python's: its numbers and strings are objects of their own."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tvm.ir.Expr):
        return value.value
    if isinstance(value, dict | tvm_ffi.Map):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]
