"""Kernels of the templates on an NVIDIA GPU, against TVM on the CPU. `pytest -m gpu tests/triton` there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from slipstream.graph.build import prepare_for_cuda
from slipstream.graph.gpu.triton.kernel import with_kernel
from slipstream.graph.gpu.triton.templates import Values, find_template
from slipstream.machine.target import resolve_target
from slipstream.measure.lowering import generate_library, lower
from tests.gpu import needs_gpu
from tests.triton.operators import CASES, REDUCTIONS, convolution

pytestmark = needs_gpu
_EXACT = 4e-3  # of the largest value: results are rounded to halves


def error_of(func: tvm.tirx.PrimFunc, values: Values | None, folder: Path) -> float:
    """The largest error of the template's kernel with these values, or with its start's, relative to the result."""
    target = resolve_target("cuda", dtype="float16")
    template = find_template(func, target)
    assert template is not None
    prepare_for_cuda()
    module = tvm.IRModule({"main": with_kernel(func, template.kernel(values or template.start))})
    with target.tvm:
        generate_library(lower(module, target), target, str(folder / "kernel.so"))
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal([int(n) for n in p.ty.shape]) / 4).astype(str(p.ty.dtype)) for p in func.params]
    expected = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(tvm.IRModule({"main": func}), target="llvm")["main"](*expected)
    actual = [tvm.runtime.tensor(array, tvm.cuda()) for array in arrays]
    run = tvm.runtime.load_module(str(folder / "kernel.so"))["main"]
    for _ in range(2):  # scratch memory has to be ready for the next launch
        run(*actual)
    mine, theirs = (tensors[-1].numpy().astype(np.float32) for tensors in (actual, expected))
    return float(np.abs(mine - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("name", [*CASES, *REDUCTIONS])
def test_every_template(name: str, tmp_path: Path) -> None:
    assert error_of({**CASES, **REDUCTIONS}[name], None, tmp_path) < _EXACT


@pytest.mark.parametrize("values", [(128, 64, 32, 1, 4, 4, 1), (128, 64, 64, 1, 2, 4, 1), (64, 64, 32, 1, 4, 4, 1)])
def test_terms_of_three_channels(values: Values, tmp_path: Path) -> None:
    """The first two were wrong where ptxas had divided the numbers of four terms at a time."""
    assert error_of(convolution(224, 3, 64, 7, 2, 3), values, tmp_path) < _EXACT
