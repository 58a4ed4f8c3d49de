"""The tensors of a block and how its loops walk them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx

from slipstream.tvm_bridge.nodes import nodes

Strides = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Operand:
    """A tensor: for each of its dimensions (loop, stride) of those that walk it."""

    element_bytes: int
    dimensions: tuple[Strides, ...]

    def bytes(self, extents: Any) -> Any:
        """How many a tile touches; `extents` has the tile's extent of each loop: a number, or an array of them."""
        count: Any = self.element_bytes
        for walked in self.dimensions:
            count = count * (1 + sum(stride * (extents[loop] - 1) for loop, stride in walked))
        return count


def operand(region: Any, dimensions: Sequence[Strides]) -> Operand:
    """The tensor of a block's region, walked so."""
    return Operand(max(1, tvm.DataType(str(region.source.dtype)).itemsize), tuple(dimensions))


def blocks_of(func: tirx.PrimFunc) -> list[Any]:
    """The function's blocks in program order, without the root."""
    return [block for block in nodes(func.body, s_tir.SBlock) if block.name_hint != "root"]


def strides(index: Any, variables: Sequence[Any]) -> Strides:
    """By how much each variable moves an index, where it moves it at all; `ValueError` if that is not constant."""
    coefficients = tvm.sym.detect_linear_equation(index, list(variables))
    if not coefficients:
        raise ValueError(f"the index {index} is not linear in the loops")
    return tuple((n, abs(int(c))) for n, c in enumerate(coefficients[:-1]) if int(c))
