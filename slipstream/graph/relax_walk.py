"""Reading a legalised Relax module: the bindings of `main` and the TIR calls in them."""

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


def is_call_tir(value: Any) -> bool:
    """Whether `value` calls a TIR function that writes its results into fresh tensors."""
    return isinstance(value, relax.Call) and value.op == _CALL_TIR


def is_constant(value: Any) -> bool:
    """Whether `value` is a tensor known at compile time."""
    return isinstance(value, tvm.ir.GenericConst)


def prim_funcs(mod: tvm.IRModule) -> dict[Any, tirx.PrimFunc]:
    """The module's TIR functions by global variable."""
    return {gv: func for gv, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}


def map_prim_funcs(mod: tvm.IRModule, change: Any) -> tvm.IRModule:
    """A copy of `mod` with each TIR function replaced by `change(function)`."""
    functions = {gv: change(func) if isinstance(func, tirx.PrimFunc) else func for gv, func in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
