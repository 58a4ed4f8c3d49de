"""Reading the functions of a Relax module, and replacing its `main`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax, tirx

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


def bindings_of_main(mod: tvm.IRModule) -> Iterator[Any]:
    """Every top-level binding of `main`, in order."""
    body = mod["main"].body
    if isinstance(body, relax.SeqExpr):
        for block in body.blocks:
            yield from block.bindings


def calls_in(func: relax.Function) -> list[Any]:
    """Every call in a function of Relax, those of arguments before those that they are arguments of."""
    found: list[Any] = []
    relax.analysis.post_order_visit(func, lambda value: found.append(value) if isinstance(value, relax.Call) else None)
    return found


def is_call_tir(value: Any) -> bool:
    """Whether `value` calls a TIR function that writes its results into fresh tensors."""
    return isinstance(value, relax.Call) and value.op == _CALL_TIR


def is_constant(value: Any) -> bool:
    """Whether `value` is a tensor known at compile time."""
    return isinstance(value, tvm.ir.GenericConst)


def prim_funcs(mod: tvm.IRModule) -> dict[Any, tirx.PrimFunc]:
    """The module's TIR functions by global variable."""
    return {gv: func for gv, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}


def with_main(mod: tvm.IRModule, main: relax.Function) -> tvm.IRModule:
    """A copy of `mod` with another `main`."""
    changed = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    changed["main"] = main
    return changed


def rewritten(mod: tvm.IRModule, change: Any) -> tvm.IRModule:
    """`mod` with `main` changed by a mutator that was made of it, and functions that this added."""
    main = mod.get_global_var("main")
    change.builder_.update_func(main, change.visit_expr(mod[main]))
    return change.builder_.get()


def cleaned(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` without bindings that name another one, and without what nothing uses."""
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(passes)(mod)


def map_prim_funcs(mod: tvm.IRModule, change: Any) -> tvm.IRModule:
    """A copy of `mod` with each TIR function replaced by `change(function)`."""
    functions = {gv: change(func) if isinstance(func, tirx.PrimFunc) else func for gv, func in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
