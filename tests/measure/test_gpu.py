"""Measuring on a real GPU: right, wrong, poisonous and endless programs. `pytest -m gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T  # noqa: N812

import slipstream
from slipstream.artifact.bench import bench
from slipstream.frontends.inputs import random_inputs
from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.machine.cuda import equal_gpus, find_devices
from slipstream.machine.target import resolve_target
from slipstream.measure import Candidate, Engine, FailureKind, MeasureConfig, Measurement, gpu_measurer, reference_text
from slipstream.program.space import Space
from slipstream.tvm_bridge.intrinsics import WMMA
from tests.gpu import needs_gpu, operators
from tests.measure.misbehaving import KEY, good, program

pytestmark = needs_gpu


@T.prim_func(s_tir=True)
def illegal_address(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
    for i in T.thread_binding(16, "blockIdx.x"):
        for j in T.thread_binding(256, "threadIdx.x"):
            c[(T.Cast("int64", i) * T.int64(256) + T.Cast("int64", j)) * T.int64(1 << 36)] = a[i * 256 + j]


@T.prim_func(s_tir=True)
def endless(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
    for i in T.thread_binding(16, "blockIdx.x"):
        for j in T.thread_binding(256, "threadIdx.x"):
            while c[i * 256 + j] != T.float32(12345):
                c[i * 256 + j] = a[i * 256 + j]


@T.prim_func(s_tir=True)
def wrong(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
    for i in T.thread_binding(16, "blockIdx.x"):
        for j in T.thread_binding(256, "threadIdx.x"):
            c[i * 256 + j] = a[i * 256 + j] * T.float32(2) + T.float32(2)


def right(threads: int) -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((4096,), "float32"), c: T.Buffer((4096,), "float32")):
        for i in T.thread_binding(4096 // threads, "blockIdx.x"):
            for j in T.thread_binding(threads, "threadIdx.x"):
                c[i * threads + j] = a[i * threads + j] * T.float32(2) + T.float32(1)

    return main


@pytest.fixture
def measurer() -> Iterator[Engine]:
    references = {KEY: program(good(1), "").module} | {o.key: reference_text(o.func) for o in operators()}
    with gpu_measurer(resolve_target("cuda"), references, MeasureConfig(run_seconds=2.0)) as measurer:
        yield measurer


def _by_label(measurer: Engine, programs: list[Candidate]) -> dict[str, Measurement]:
    return {m.program.label: m for m in measurer.measure(programs)}


def test_bad_programs_are_told_apart_and_hurt_no_other(measurer: Engine) -> None:
    programs = [
        program(right(32), "a"),
        program(illegal_address, "illegal"),
        program(right(64), "b"),
        program(endless, "endless"),
        program(wrong, "wrong"),
        program(right(128), "c"),
    ]
    results = _by_label(measurer, programs)
    assert set(results) == {p.label for p in programs}
    for name in "abc":
        assert results[name].failure is None, results[name].failure
        assert results[name].verified
        assert 0 < results[name].median < 1e-3
    kinds = {name: m.failure.kind for name, m in results.items() if m.failure is not None}
    assert kinds.pop("illegal") in (FailureKind.RUN_ERROR, FailureKind.CRASH)
    assert kinds == {"endless": FailureKind.RUN_TIMEOUT, "wrong": FailureKind.WRONG_RESULT}


def test_two_processes_share_the_work() -> None:
    """On one GPU, for want of a second: what is seen is that each runs its part, and right."""
    operator = operators()[0]
    space = Space(operator.key, operator.func, resolve_target("cuda"))
    rng = np.random.default_rng(1)
    drawn = [space.realize(space.draw(rng)) for _ in range(12)]
    programs = [Candidate(operator.key, r.text, str(n)) for n, r in enumerate(drawn) if r is not None]
    references = {operator.key: reference_text(operator.func)}
    first = equal_gpus(find_devices())[0]
    with gpu_measurer(resolve_target("cuda"), references, MeasureConfig(gpus=(first, first))) as measurer:
        results = list(measurer.measure(programs))
        assert not any(gpu.process.is_new for gpu in measurer.devices.gpus)
    assert [m.failure for m in results] == [None] * len(programs)


def test_every_default_program_is_right(measurer: Engine) -> None:
    target = resolve_target("cuda")
    programs = [Candidate(o.key, reference_text(schedule_default(o.func, target)), o.name) for o in operators()]
    for name, measurement in _by_label(measurer, programs).items():
        assert measurement.failure is None, (name, measurement.failure)


def test_drawn_programs_are_right_and_the_fastest_can_be_settled(measurer: Engine) -> None:
    operator = operators()[0]
    space = Space(operator.key, operator.func, resolve_target("cuda"))
    rng = np.random.default_rng(0)
    drawn = [space.realize(space.draw(rng)) for _ in range(12)]
    programs = [Candidate(operator.key, r.text, str(n)) for n, r in enumerate(drawn) if r is not None]
    results = list(measurer.measure(programs))
    assert len(results) == len(programs)
    assert all(m.failure is None for m in results), [m.failure for m in results]
    settled = measurer.settle(results, rng)
    assert settled is not None
    assert settled.winner.median <= 1.2 * min(m.median for m in results)


def test_a_model_is_tuned_compiled_and_right(tmp_path: Path) -> None:
    result = slipstream.tune("zoo:tiny_cnn", tmp_path / "out", target="cuda", trials=60)
    assert result.trials <= 60
    assert result.latency <= result.start_latency
    model = slipstream.load(tmp_path / "out")
    assert model.manifest.gpu.startswith("sm_")
    assert model.manifest.verification is not None
    feed = random_inputs(model.inputs, np.random.default_rng(0))
    on_device = model.on_device(feed)()
    np.testing.assert_allclose(on_device[0].numpy(), model(feed)[0], rtol=1e-5)
    timed = bench(tmp_path / "out", seconds=0.5)
    assert all(part.timings[0].median > 0 for part in timed.parts)


def test_half_precision_is_tuned_for_tensor_cores_and_right(tmp_path: Path) -> None:
    result = slipstream.tune("zoo:tiny_cnn", tmp_path / "out", target="cuda", dtype="float16", trials=80)
    assert result.latency <= result.start_latency
    model = slipstream.load(tmp_path / "out")
    assert model.manifest.dtype == "float16"
    assert model.manifest.verification is not None
    assert {spec.dtype for spec in (*model.inputs, *model.outputs)} == {"float32"}
    assert 1e-6 < model.manifest.verification.outputs[0].max_relative < 1e-2


def test_programs_for_tensor_cores_are_right() -> None:
    target = resolve_target("cuda", dtype="float16")
    operator = next(o for o in operators(dtype="float16") if o.name.startswith("conv2d 3x3"))
    space = Space(operator.key, operator.func, target)
    stock = [e for e in space.sketches if WMMA["compute"] in e.sketch.text and "software_pipeline" not in e.sketch.text]
    tensor = [space.default] if space.default_may_be_wrong else stock  # a Triton template takes the place of sketches
    rng = np.random.default_rng(0)
    drawn = [space.realize(space.draw(rng, tensor)) for _ in range(20)]
    programs = [Candidate(operator.key, r.text, str(n)) for n, r in enumerate(drawn) if r is not None]
    assert programs
    with gpu_measurer(target, {operator.key: reference_text(operator.func)}) as measurer:
        results = list(measurer.measure(programs))
    assert all(m.failure is None for m in results), [m.failure for m in results]


def test_an_interrupted_session_goes_on(tmp_path: Path) -> None:
    slipstream.tune("zoo:tiny_cnn", tmp_path / "out", target="cuda", trials=20)
    again = slipstream.resume(tmp_path / "out", trials=20)
    assert again.trials == 40


def test_torch_tensors_on_the_device_go_in_and_come_out(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    slipstream.compile("zoo:tiny_cnn", tmp_path / "out", target="cuda")
    model = slipstream.load(tmp_path / "out")
    feed = random_inputs(model.inputs, np.random.default_rng(0))
    tensors = [torch.from_numpy(value).to("cuda") for value in feed.values()]
    returned = torch.from_dlpack(model(*tensors)[0])
    assert returned.is_cuda
    np.testing.assert_allclose(returned.cpu().numpy(), model(feed)[0], rtol=1e-5)
    assert tvm.cuda().exist
