"""Small operators to try searches and measurers on, made with TVM's own expressions: no model is needed."""

from __future__ import annotations

from functools import cache
from typing import Any

from slipstream.graph.describe.key import operator_key
from slipstream.machine.target import resolve_target
from slipstream.measure.reference import reference_text
from slipstream.measure.types import Candidate
from slipstream.program.space import Space


@cache
def matmul(rows: int = 64) -> Any:
    """The product of a `rows` x 64 and a 64 x 64 matrix, unscheduled."""
    from tvm import te

    a, b = te.placeholder((rows, 64), name="a"), te.placeholder((64, 64), name="b")
    k = te.reduce_axis((0, 64), "k")
    product = te.compute((rows, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, product]).with_attr("global_symbol", "main")


@cache
def matmul_space(rows: int = 64) -> Space:
    """Its design space on this machine."""
    return Space(operator_key(matmul(rows)), matmul(rows), resolve_target())


@cache
def closed_space() -> Space:
    """The space of a copy of eight numbers, which leaves nothing to decide."""
    from tvm import te

    a = te.placeholder((8,), name="a")
    func = te.create_prim_func([a, te.compute((8,), lambda i: a[i], name="c")]).with_attr("global_symbol", "main")
    return Space(operator_key(func), func, resolve_target())


def references() -> dict[str, str]:
    """The operators that `scheduled` makes programs of, as a measurer takes them."""
    return {"matmul": reference_text(matmul())}


def scheduled(tile: int, label: str = "", *, wrong: bool = False) -> Candidate:
    """A program of `matmul` whose columns are split by `tile`; a `wrong` one computes the double of it."""
    import tvm
    from tvm import s_tir, te

    func = matmul()
    if wrong:
        a, b = (te.placeholder((64, 64), name=name) for name in "ab")
        k = te.reduce_axis((0, 64), "k")
        doubled = te.compute((64, 64), lambda i, j: te.sum(2 * a[i, k] * b[k, j], axis=k), name="c")
        func = te.create_prim_func([a, b, doubled]).with_attr("global_symbol", "main")
    schedule = s_tir.Schedule(tvm.IRModule({"main": func}))
    i, j, k = schedule.get_loops(schedule.get_sblock("c"))
    outer, inner = schedule.split(j, [None, tile])
    schedule.reorder(i, outer, k, inner)
    return Candidate("matmul", str(tvm.ir.save_json(schedule.mod)), label or f"tile {tile}")
