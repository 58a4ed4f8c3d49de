"""What decisions tell about a GPU's limits, against TVM's own verifier, which lowers the program and counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from slipstream.diffusion.posterior import Centre, Posterior
from slipstream.program.decisions import IllegalDecisionError, Tile
from slipstream.program.gpu_limits import GpuLimits
from slipstream.program.space import Program, Space
from tests.gpu import operators, some_gpu


@pytest.fixture(params=["conv2d 3x3", "conv2d 1x1", "depthwise", "matmul"])
def space(request: pytest.FixtureRequest) -> Space:
    operator = next(o for o in operators() if o.name.startswith(request.param))
    return Space(operator.key, operator.func, some_gpu())


def _tiled(space: Space) -> list[tuple[Program, GpuLimits]]:
    pairs = [(example, space.limits(example.sketch)) for example in space.sketches]
    return [(example, limits) for example, limits in pairs if limits is not None and limits.says_all]


def _verified_by_tvm(space: Space, program: Program) -> bool:
    """Whether all of TVM's postprocessors accept it, the verifier among them."""
    unaware = Space(space.key, space.func, space.target)
    unaware.limits = lambda sketch: None  # type: ignore[method-assign]
    return unaware.realize(program) is not None


def test_what_is_drawn_is_accepted_by_tvm(space: Space) -> None:
    rng = np.random.default_rng(0)
    examples = _tiled(space)
    assert examples
    for example, limits in examples:
        for _ in range(3):
            program = space.draw(rng, [example])
            limits.check(program.decisions)
            assert _verified_by_tvm(space, program), limits.usage(program.decisions)


def test_what_cannot_be_launched_is_refused_by_both(space: Space, request: pytest.FixtureRequest) -> None:
    """Threads and shared memory only: TVM does not count registers."""
    rng = np.random.default_rng(1)
    refused = 0
    for example, limits in _tiled(space):
        start = space.draw(rng, [example]).decisions
        for decisions, _ in Posterior(limits.points, [Centre(start, 1.0, "")], spread=0.9).sample(200, rng):
            usage = limits.usage(decisions)
            if usage.threads > limits.most_threads or usage.shared_bytes > limits.shared_bytes:
                refused += 1
                with pytest.raises(IllegalDecisionError):
                    limits.check(decisions)
                assert not _verified_by_tvm(space, Program(space.key, example.sketch, decisions))
                break
    assert refused or "matmul" in request.node.name  # too small to ask for too much


def test_many_at_once_are_judged_as_one_by_one() -> None:
    space = Space(operators()[0].key, operators()[0].func, some_gpu())
    rng = np.random.default_rng(2)
    for example, limits in _tiled(space):
        start = space.draw(rng, [example]).decisions
        many = [moved for moved, _ in Posterior(limits.points, [Centre(start, 1.0, "")]).sample(200, rng)]
        allowed = limits.allowed(many)
        assert 0 < allowed.sum() < len(many)
        for decisions, fits in zip(many, allowed, strict=True):
            if fits:
                limits.check(decisions)
            else:
                with pytest.raises(IllegalDecisionError):
                    limits.check(decisions)


def test_the_default_program_has_no_trace_and_can_be_realized() -> None:
    space = Space(operators()[0].key, operators()[0].func, some_gpu())
    realized = space.realize(space.default)
    assert realized is not None
    assert "blockIdx.x" in realized.module.script()
    assert space.default.decisions == ()


def test_occupancy_counts_what_is_launched_and_what_the_device_holds_of_it() -> None:
    gpu = some_gpu().gpu
    assert gpu is not None
    target = replace(some_gpu(), gpu=replace(gpu, multiprocessors=10))
    space, rng = Space(operators()[0].key, operators()[0].func, target), np.random.default_rng(3)
    for example, limits in _tiled(space):
        drawn = [space.draw_decisions(example, rng) for _ in range(20)]
        for row, decisions in zip(limits.occupancy(drawn), drawn, strict=True):
            blocks, threads, virtual, sums, together, held, fills = 2.0 ** row[:7]
            usage = limits.usage(decisions)
            assert (threads, virtual) == pytest.approx((usage.threads, usage.virtual_threads))
            outputs = math.prod(p.extent for p in limits.points if isinstance(p, Tile) and p.parts == 5)
            assert blocks * threads * sums == pytest.approx(outputs)
            assert together == pytest.approx(blocks * threads)
            assert held * threads <= 2048.1
            assert fills == pytest.approx(blocks / 10 / max(1, math.floor(held + 1e-9)))
            assert 0 < row[7] <= 1
