"""Programs for one small operator, `c[i] = 2 * a[i] + 1`: good ones, and ones that really misbehave when run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.script import tirx as T  # noqa: N812

from slipstream.measure.types import Candidate, FailureKind

KEY = "double-and-one"
SIZE = 4096


def program(func: Any, label: str) -> Candidate:
    """`func` is a function of TVM's, or makes one: parsing all of them would take seconds."""
    func = func if isinstance(func, tvm.tirx.PrimFunc) else func()
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return Candidate(KEY, str(tvm.ir.save_json(mod)), label)


def good(step: int) -> Any:
    """A correct program; every `step` (a divisor of SIZE) gives other code."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in T.parallel(4096 // step):
            for j in range(step):
                with T.sblock("c"):
                    v = T.axis.spatial(4096, i * step + j)
                    c[v] = a[v] * T.float32(2) + T.float32(1)

    return main


def prints() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in range(4096):
            with T.sblock("c"):
                v = T.axis.spatial(4096, i)
                c[v] = a[v] * T.float32(2) + T.float32(1)
        for _ in range(100):
            T.evaluate(T.call_extern("int32", "puts", '\\x00{"samples": [0]}\\n garbage'))

    return main


def segfault() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in range(4096):
            c[T.Cast("int64", i) * T.int64(1 << 40)] = a[i]

    return main


def out_of_bounds() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in range(4097):
            c[i] = a[i % 4096] * T.float32(2) + T.float32(1)

    return main


def out_of_bounds_below() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in range(4100):
            c[i - 4] = a[T.max(i - 4, 0)] * T.float32(2) + T.float32(1)

    return main


def abort() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        c[0] = a[0]
        T.evaluate(T.call_extern("int32", "puts", "last words"))
        T.evaluate(T.call_extern("int32", "fflush", T.int64(0)))
        T.evaluate(T.call_extern("int32", "abort"))

    return main


def leave() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        c[0] = a[0]
        T.evaluate(T.call_extern("int32", "_exit", 0))

    return main


def endless_loop() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        c[0] = a[0]
        while T.bool(True):
            T.evaluate(T.call_extern("int32", "rand"))

    return main


def endless_allocation() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        c[0] = a[0]
        while T.bool(True):
            # LLVM would drop a malloc whose result nobody needs. MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE
            T.evaluate(T.call_extern("int64", "mmap", T.int64(0), T.int64(1 << 22), 3, 0x8022, -1, T.int64(0)))

    return main


def huge_allocation() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        scratch = T.sblock_alloc_buffer((T.int64(25 << 30),), "float32")
        for i in range(T.int64(25 << 30)):
            with T.sblock("scratch"):
                v = T.axis.spatial(T.int64(25 << 30), i)
                scratch[v] = a[v % T.int64(4096)]
        for i in range(4096):
            with T.sblock("c"):
                v = T.axis.spatial(4096, i)
                c[v] = scratch[T.Cast("int64", v) * T.int64(1 << 20)]

    return main


def wrong_result() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in range(4096):
            c[i] = a[i] * T.float32(2) + T.float32(2)

    return main


def forgets_an_element() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in range(4095):
            c[i] = a[i] * T.float32(2) + T.float32(1)

    return main


def overwrites_input() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in range(4096):
            c[i] = a[i] * T.float32(2) + T.float32(1)
            a[i] = T.float32(0)

    return main


def unknown_symbol() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        c[0] = a[0]
        T.evaluate(T.call_extern("int32", "no_such_function_anywhere"))

    return main


BAD: dict[str, tuple[Any, tuple[FailureKind, ...]]] = {
    "segfault": (segfault, (FailureKind.CRASH,)),
    "out of bounds": (out_of_bounds, (FailureKind.CRASH, FailureKind.WRONG_RESULT)),
    "out of bounds below": (out_of_bounds_below, (FailureKind.CRASH, FailureKind.WRONG_RESULT)),
    "abort": (abort, (FailureKind.CRASH,)),
    "leave": (leave, (FailureKind.CRASH,)),
    "endless loop": (endless_loop, (FailureKind.RUN_TIMEOUT,)),
    "endless allocation": (endless_allocation, (FailureKind.OUT_OF_MEMORY,)),
    "huge allocation": (huge_allocation, (FailureKind.OUT_OF_MEMORY,)),
    "wrong result": (wrong_result, (FailureKind.WRONG_RESULT,)),
    "forgets an element": (forgets_an_element, (FailureKind.WRONG_RESULT,)),
    "overwrites input": (overwrites_input, (FailureKind.WRONG_RESULT,)),
    "unknown symbol": (unknown_symbol, (FailureKind.BUILD_ERROR, FailureKind.CRASH)),
}

GOOD: dict[str, Callable[[], Any]] = {
    f"good {step}": (lambda step=step: good(step)) for step in (1, 2, 8, 32, 128, 512)
}
