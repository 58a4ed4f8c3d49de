"""Runs kernels of the templates in Triton's interpreter, on the CPU, and prints how far they are from TVM's result.

A program of its own: Triton decides when it is imported whether kernels are interpreted.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import astuple

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import tvm

from slipstream.graph.gpu.triton.contraction import find_contraction
from slipstream.graph.gpu.triton.contraction_source import contraction_kernel, extents_of
from slipstream.graph.gpu.triton.kernel import imported
from slipstream.graph.gpu.triton.tiles import CANDIDATES, Tiles
from tests.triton.operators import CASES

_SHARED = 160 << 10
_MOST_BLOCKS = 12


def main() -> None:
    rng = np.random.default_rng(int(sys.argv[1]))
    for name, func in CASES.items():
        contraction = find_contraction(func)
        assert contraction is not None, name
        sizes = extents_of(contraction)
        arrays = [(rng.standard_normal([int(n) for n in p.ty.shape]) / 4).astype(str(p.ty.dtype)) for p in func.params]
        expected = [tvm.runtime.tensor(array) for array in arrays]
        tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target="llvm")["main"](*expected)
        drawn = [_draw(sizes, rng, splits) for splits in (False, True)]
        for tiles in (tiles for tiles in drawn if tiles is not None):
            kernel = contraction_kernel(contraction, tiles)
            tensors = [torch.from_numpy(array.copy()) for array in arrays]
            tensors[-1].fill_(float("nan"))
            types = (torch.float32, torch.int32)
            scratch = [torch.zeros(size // 4, dtype=t) for size, t in zip(kernel.scratch, types, strict=False)]
            for _ in range(1 + bool(scratch)):  # scratch memory has to be ready for the next launch
                imported(kernel).kernel[kernel.grid](*tensors, *scratch)
            wanted = expected[-1].numpy().astype(np.float32)
            error = np.abs(tensors[-1].numpy().astype(np.float32) - wanted).max() / np.abs(wanted).max()
            print(json.dumps([name, astuple(tiles), float(error)]))


def _draw(sizes: object, rng: np.random.Generator, splits: bool) -> Tiles | None:
    for _ in range(5000):
        tiles = Tiles(*(int(rng.choice(values)) for values in CANDIDATES.values()))
        few = sizes.tiles(tiles) * tiles.splits <= _MOST_BLOCKS  # type: ignore[attr-defined]
        if few and (tiles.splits > 1) == splits and not sizes.refusal(tiles, _SHARED):  # type: ignore[attr-defined]
            return tiles
    return None


if __name__ == "__main__":
    main()
