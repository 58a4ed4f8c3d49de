"""Triton templates: what they take, that their kernels are right (in Triton's interpreter) and that they compile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.diffusion.signature import signature
from slipstream.graph.gpu.triton.contraction import find_contraction
from slipstream.graph.gpu.triton.contraction_source import contraction_kernel, extents_of
from slipstream.graph.gpu.triton.kernel import Kernel, compile_kernel, kernel_of
from slipstream.graph.gpu.triton.templates import find_template
from slipstream.graph.gpu.triton.tiles import Extents
from slipstream.machine.target import resolve_target
from slipstream.program.decisions import IllegalDecisionError
from slipstream.program.space import Space
from slipstream.search.diffusion import Diffusion
from slipstream.search.types import Question
from tests.triton.operators import CASES, REDUCTIONS, batched, convolution, depthwise, matmul

pytest.importorskip("triton")

_H200 = resolve_target("cuda:sm_90", 1, "float16")
_EXACT = 2e-3  # a rounding of float16, at the largest value


@pytest.mark.parametrize(
    ("func", "sizes"),
    [
        (convolution(9, 24, 40, 3, 1, 1), (1, 81, 40, 216)),
        (matmul(33, 80, 48, heads=3), (1, 33, 48, 80)),
        (batched(3, 20, 64, 28), (3, 20, 28, 64)),
    ],
)
def test_an_operator_is_read_as_a_contraction(func: object, sizes: tuple[int, ...]) -> None:
    contraction = find_contraction(func)
    assert contraction is not None
    assert contraction.sizes == sizes


def test_a_depthwise_convolution_is_none() -> None:
    assert find_contraction(depthwise(8, 16)) is None


def test_kernels_compute_what_tvm_computes() -> None:
    command = [sys.executable, "-m", "tests.triton.interpret", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {name for name, *_ in results} == {*CASES, *REDUCTIONS}
    assert any(scratch for *_, scratch in results)
    assert not [result for result in results if not result[2] < _EXACT]


@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_is_no_contraction_is_read_as_reductions_of_rows(name: str) -> None:
    template = find_template(REDUCTIONS[name], _H200)
    assert template is not None
    assert template.name == "reduction"
    assert not template.refusal(template.start)
    compiled = compile_kernel(template.kernel(template.start), "sm_90")
    assert compiled.code[:4] == b"\x7fELF"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_kernels_compile_without_a_gpu(architecture: str) -> None:
    contraction = find_contraction(CASES["conv 3x3, dilated"])
    assert contraction is not None
    tiles = extents_of(contraction).start(96 << 10, 8)
    assert tiles is not None
    compiled = compile_kernel(contraction_kernel(contraction, tiles), architecture)
    assert compiled.code[:4] == b"\x7fELF"
    assert compiled.parameters >= 5
    assert compiled.kernel.name.encode() in compiled.code


def test_parts_of_sums_are_kept_in_memory_of_the_kernels_own() -> None:
    contraction = find_contraction(matmul(16, 2048, 32))
    assert contraction is not None
    tiles = extents_of(contraction).start(96 << 10, 64)
    assert tiles is not None
    assert tiles.splits > 1
    kernel = contraction_kernel(contraction, tiles)
    assert len(kernel.scratch) == 2
    compiled = compile_kernel(kernel, "sm_90")
    assert f"{kernel.name}_scratch_1".encode() in compiled.code
    assert Kernel.from_json(kernel.to_json()) == kernel


def test_the_start_is_within_the_limits_whatever_the_sizes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        batch, rows, columns, terms = (int(2 ** rng.uniform(0, top)) for top in (4, 13, 12, 13))
        extents = Extents(batch, rows, columns, terms, 2)
        start = extents.start(99 << 10, 132)
        assert start is not None, extents
        assert not extents.refusal(start, 99 << 10)


def test_templates_are_sketches_like_others() -> None:
    space, other = (Space(str(n), convolution(n, 64, 64, 3, 1, 1), _H200) for n in (14, 28))
    assert space.default.sketch.form.startswith("triton")
    assert signature(space.default.sketch) == signature(other.default.sketch)
    proposed = Diffusion().propose(Question(space, 8, 1, (), lambda rows: np.zeros(len(rows)), ()))
    assert len({realized.program.decisions for realized in proposed}) == 8
    for realized in proposed:
        space.check(realized.program)
        kernel = kernel_of(realized.module["main"])
        assert kernel is not None
    too_much = (*space.default.decisions[:3], 10, *space.default.decisions[4:])
    with pytest.raises(IllegalDecisionError):
        space.check(type(space.default)(space.key, space.default.sketch, too_much))
