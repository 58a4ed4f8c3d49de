"""Fusion by TVM's rules, and what corrects them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.relax import transform

from slipstream.graph.relax_walk import map_prim_funcs

KNOWN_PATTERN = "slipstream.op_pattern"
"""A function's attribute: TVM's number for what may be fused with it, where TVM itself would be wrong."""

# Such numbers: it is element-wise, or what follows it may be, or nothing.
ELEMENT_WISE, PRODUCT, OPAQUE = 0, 4, 8


def fuse_as_tvm(mod: tvm.IRModule, regroup: Callable[[tvm.IRModule], tvm.IRModule] = lambda mod: mod) -> tvm.IRModule:
    """A legalised module fused by TVM's rules, for CPUs and programs without tensor cores.

    `regroup` may change which operators are one function, after TVM has decided it and before they are.
    """
    annotated = map_prim_funcs(transform.AnnotateTIROpPattern()(mod), _with_known_pattern)
    grouped = regroup(transform.FuseOps()(annotated))
    return tvm.transform.Sequential([transform.FuseTIR(), transform.DeadCodeElimination()])(grouped)


def _with_known_pattern(func: Any) -> Any:
    """TVM does not fuse a convolution with what changes its type."""
    known = func.attrs.get(KNOWN_PATTERN) if func.attrs else None
    return func if known is None else func.with_attr("op_pattern", int(known)).without_attr(KNOWN_PATTERN)
