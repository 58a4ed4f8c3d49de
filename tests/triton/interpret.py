"""Runs kernels of the templates in Triton's interpreter, on the CPU, and prints how far they are from TVM's result.

A program of its own: Triton decides when it is imported whether kernels are interpreted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import astuple
from itertools import product
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import tvm

from slipstream.graph.gpu.triton import reduction_source, tiles
from slipstream.graph.gpu.triton.contraction import find_contraction
from slipstream.graph.gpu.triton.contraction_source import contraction_kernel, extents_of
from slipstream.graph.gpu.triton.kernel import Kernel, imported
from slipstream.graph.gpu.triton.reduction import find_reduction
from tests.triton.operators import CASES, REDUCTIONS

_SHARED = 160 << 10
_MOST_BLOCKS = 12


def main() -> None:
    rng = np.random.default_rng(int(sys.argv[1]))
    for name, func in CASES.items():
        contraction = find_contraction(func)
        assert contraction is not None, name
        _compare(name, func, _contractions(contraction, rng), rng)
    for name, func in REDUCTIONS.items():
        reduction = find_reduction(func)
        assert reduction is not None, name
        _compare(name, func, _reductions(reduction, rng), rng)


def _contractions(contraction: Any, rng: np.random.Generator) -> Iterator[tuple[Any, Kernel]]:
    """Kernels with and without parts of sums."""
    sizes = extents_of(contraction)
    every = [tiles.Tiles(*values) for values in product(*tiles.CANDIDATES.values())]
    fitting = [t for t in every if sizes.tiles(t) * t.splits <= _MOST_BLOCKS and not sizes.refusal(t, _SHARED)]
    for divided in (False, True):
        some = [t for t in fitting if (t.splits > 1) == divided]
        if some:
            chosen = some[int(rng.integers(len(some)))]
            yield chosen, contraction_kernel(contraction, chosen)


def _reductions(reduction: Any, rng: np.random.Generator) -> Iterator[tuple[Any, Kernel]]:
    """Kernels for whole rows and, where there are any, for one element after the other."""
    sizes = reduction_source.RowExtents.of(reduction)
    every = [reduction_source.RowTiles(*values) for values in product(*reduction_source.CANDIDATES.values())]
    fitting = [t for t in every if -(-sizes.rows // t.block_rows) <= _MOST_BLOCKS and not sizes.refusal(t)]
    for one_by_one in (0, 1):
        some = [t for t in fitting if t.one_by_one == one_by_one]
        if some:
            chosen = some[int(rng.integers(len(some)))]
            yield chosen, reduction_source.reduction_kernel(reduction, chosen)


def _compare(name: str, func: Any, kernels: Iterator[tuple[Any, Kernel]], rng: np.random.Generator) -> None:
    arrays = [(rng.standard_normal([int(n) for n in p.ty.shape]) / 4).astype(str(p.ty.dtype)) for p in func.params]
    expected = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")["main"](*expected)
    wanted = expected[-1].numpy().astype(np.float32)
    for decided, kernel in kernels:
        tensors = [torch.from_numpy(array.copy()) for array in arrays]
        tensors[-1].fill_(float("nan"))
        types = (torch.float32, torch.int32)
        scratch = [torch.zeros(size // 4, dtype=t) for size, t in zip(kernel.scratch, types, strict=False)]
        for _ in range(1 + bool(scratch)):  # scratch memory has to be ready for the next launch
            imported(kernel).kernel[kernel.grid](*tensors, *scratch)
        error = np.abs(tensors[-1].numpy().astype(np.float32) - wanted).max() / np.abs(wanted).max()
        print(json.dumps([name, astuple(decided), float(error), len(scratch)]))


if __name__ == "__main__":
    main()
