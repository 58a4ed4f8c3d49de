"""Our programs as MetaSchedule's traces and back, for exchanging databases with TVM."""

from __future__ import annotations

from typing import Any

import tvm

from slipstream.program.decisions import from_json, to_json
from slipstream.program.sketch import Sketch, SketchError, read_instructions, write_instructions
from slipstream.program.trace import block_names


def to_metaschedule(module: str, sketch: str, decisions: str) -> list[Any]:
    """The trace `[instructions, decisions]` of a program, for the operator whose unscheduled module this is."""
    if Sketch(sketch).form:
        raise SketchError(f"MetaSchedule has no programs in the form {Sketch(sketch).form} of an operator")
    func = tvm.ir.load_json(module)["main"]
    return write_instructions(Sketch(sketch), from_json(decisions), block_names(func))


def from_metaschedule(module: str, trace: list[Any]) -> tuple[str, str]:
    """The sketch's text and the decisions of a trace from a database; its post-processing is left out."""
    from tvm import s_tir

    mod = tvm.ir.load_json(module)
    schedule = s_tir.Schedule(mod, debug_mask=0, error_render_level="none")
    s_tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
    simple = schedule.trace.simplified(remove_postproc=True).as_json()
    from slipstream.program.trace import plain

    read, values = read_instructions(plain(simple[0]), plain(simple[1]), block_names(mod["main"]))
    return read.text, to_json(values)
