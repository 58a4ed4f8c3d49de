"""Indices as short as the ranges of their variables allow: what Triton sees as contiguous it loads as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from slipstream.graph.describe.blocks import TensorLoad


def simplified(expression: Any, extents: Mapping[Any, int]) -> Any:
    """The expression with simpler indices, given that each variable counts from 0 to its extent."""
    analyzer = sym.Analyzer()
    for variable, extent in extents.items():
        analyzer.bind(variable, tvm.ir.Range(0, extent))

    def load(each: Any) -> Any:
        return tirx.BufferLoad(each.source, [analyzer.simplify(index) for index in each.indices])

    return tvm_ffi.structural_map(expression, ((TensorLoad, load),))
