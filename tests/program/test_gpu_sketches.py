"""Half precision: which operators tensor cores take, what of their programs TVM accepts, and that these compile."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tvm

from slipstream.artifact.runtime import TvmExecutor
from slipstream.artifact.verify import verification_inputs, verify
from slipstream.diffusion.posterior import Centre, Posterior
from slipstream.errors import TargetError, VerificationError
from slipstream.frontends import load_model
from slipstream.graph.build import apply_programs, build, prepare_for_cuda
from slipstream.graph.operators import Operator
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target
from slipstream.measure.lowering import generate_library, lower
from slipstream.program.gpu_sketches import multiplies_halves
from slipstream.program.space import Program, Space
from slipstream.tvm_bridge.intrinsics import WMMA
from tests.gpu import needs_nvrtc, operators, some_gpu

_FEW_SUMS = 64  # with these, as many threads as a block may have find registers enough


@cache
def _space(kind: str) -> Space:
    operator = next(o for o in operators(dtype="float16") if o.name.startswith(kind))
    return Space(operator.key, operator.func, some_gpu("float16"))


def _for_tensor_cores(space: Space) -> list[Program]:
    return [example for example in space.stock if WMMA["compute"] in example.sketch.text]


def _types(operator: Operator) -> set[str]:
    return {dtype for _, dtype in operator.shapes}


def test_products_are_of_halves_and_the_model_keeps_its_types() -> None:
    prepared = operators(dtype="float16")
    assert [o for o in prepared if multiplies_halves(o.func)]
    assert not [o for o in operators() if multiplies_halves(o.func) or "float16" in _types(o)]
    # Only what takes the inputs and what makes the outputs has floats of both kinds.
    assert any(_types(o) == {"float16"} for o in prepared)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(TargetError, match="float8"):
        resolve_target("cuda:sm_90", dtype="float8")


@pytest.mark.parametrize("kind", ["conv2d 3x3", "matmul"])
def test_metaschedules_sketches_for_tensor_cores_are_among_its_others(kind: str) -> None:
    space = _space(kind)
    tensor = _for_tensor_cores(space)
    assert tensor
    assert len(tensor) < len(space.stock)
    in_float32 = next(o for o in operators() if o.name.startswith(kind))
    assert not _for_tensor_cores(Space(in_float32.key, in_float32.func, some_gpu()))


def test_limits_refuse_no_program_that_tvm_accepts() -> None:
    rng = np.random.default_rng(0)
    accepted = 0
    space = _space("conv2d 3x3")
    unaware = Space(space.key, space.func, space.target)
    unaware.limits = lambda sketch: None  # type: ignore[method-assign]
    for example in _for_tensor_cores(space):
        limits = space.limits(example.sketch)
        assert limits is not None
        start = space.draw(rng, [example]).decisions
        for decisions, _ in Posterior(limits.points, [Centre(start, 1.0, "")]).sample(3, rng):
            usage = limits.usage(decisions)
            assert usage.threads % 32 == 0
            realized = unaware.realize(Program(space.key, example.sketch, decisions))
            accepted += realized is not None
            if realized is not None and usage.sums <= _FEW_SUMS and (usage.steps > 1 or not limits.steps):
                limits.check(decisions)
    assert accepted


def test_pieces_are_not_fetched_ahead_where_there_is_one() -> None:
    space = _space("conv2d 3x3")
    example = next(e for e in _for_tensor_cores(space) if "software_pipeline" in e.sketch.text)
    limits = space.limits(example.sketch)
    assert limits is not None
    (reduced,) = {decision for decision, _ in limits.steps}
    extent = int(np.prod(example.decisions[reduced]))
    for factors, fits in (((extent, 1, 1), False), ((1, extent, 1), True)):
        decisions = tuple(factors if n == reduced else value for n, value in enumerate(example.decisions))
        usage = limits.usage(decisions)
        assert (usage.steps > 1) == fits
        assert fits or not limits.allowed([decisions])[0]


@needs_nvrtc
def test_a_program_for_tensor_cores_compiles(tmp_path: Path) -> None:
    prepare_for_cuda()
    rng = np.random.default_rng(0)
    space = _space("conv2d 3x3")
    plain = [e for e in _for_tensor_cores(space) if "software_pipeline" not in e.sketch.text]
    realized = next(r for _ in range(20) if (r := space.realize(space.draw(rng, plain))) is not None)
    assert "tvm_mma_sync" in realized.module.script()
    path = tmp_path / "program.so"
    generate_library(lower(realized.module, space.target), space.target, str(path))
    assert path.stat().st_size > 0


def test_a_model_in_half_precision_is_near_its_reference(tmp_path: Path) -> None:
    """What the cast computes, run on the CPU: as exact as halves are, and no more."""
    model, target = load_model("zoo:tiny_cnn"), some_gpu("float16")
    built = build(apply_programs(prepare(model.module, target)[0], target.host), target.host)
    path = tmp_path / "model.so"
    built.executable.export_library(str(path))
    run = TvmExecutor(tvm.runtime.load_module(str(path)), built.weights, model.inputs, model.outputs)
    checked = verify(model, run, verification_inputs(model, None), "float16")
    assert 1e-5 < checked.outputs[0].max_relative < checked.outputs[0].tolerance == 1e-2
    with pytest.raises(VerificationError):
        verify(model, run, verification_inputs(model, None), "float32")
