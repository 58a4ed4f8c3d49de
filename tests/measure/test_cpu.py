"""The local measurer: streaming, duplicates, racing, prepacked weights, finalists, memory."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psutil
import pytest
import tvm
from tvm import s_tir, te

from slipstream.errors import BuildError, SlipstreamError
from slipstream.machine.target import resolve_target
from slipstream.measure import (
    Candidate,
    Engine,
    FailureKind,
    MeasureConfig,
    Settling,
    cpu_measurer,
    engine,
    reference_text,
)
from slipstream.measure.arena import Layout, map_arena
from slipstream.measure.choose import starting_early
from slipstream.measure.roles import PREPARE, options_for
from slipstream.processes.fork_server import ForkServer
from tests.measure import misbehaving

MATMUL = "matmul"


def unscheduled_matmul(size: int = 128) -> tvm.tirx.PrimFunc:
    a, b = (te.placeholder((size, size), name=name) for name in "ab")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c]).with_attrs({"global_symbol": "main", "layout_free_buffers": [1]})


def scheduled_matmul(tile: int, *, prepack: bool, label: str = "") -> Candidate:
    from tvm.s_tir.meta_schedule.postproc import RewriteLayout

    sch = s_tir.Schedule(tvm.IRModule({"main": unscheduled_matmul()}))
    block = sch.get_sblock("c")
    i, j, k = sch.get_loops(block)
    jo, ji = sch.split(j, [None, tile])
    ko, ki = sch.split(k, [None, tile])
    sch.reorder(i, jo, ko, ki, ji)
    sch.parallel(i)
    if prepack:
        assert RewriteLayout().apply(sch)
        assert "layout_rewrite_preproc" in sch.mod.script()
    return Candidate(MATMUL, str(tvm.ir.save_json(sch.mod)), label or f"tile {tile}")


@pytest.fixture(scope="module")
def measurer() -> Iterator[Engine]:
    references = {MATMUL: reference_text(unscheduled_matmul()), misbehaving.KEY: reference_text(misbehaving.good(1))}
    config = MeasureConfig(run_seconds=5.0, least_build_seconds=30.0)  # whatever else this machine has to do
    with cpu_measurer(resolve_target(), references, config) as measurer:
        yield measurer


def test_prepacked_weights_are_timed_packed_and_compared_with_the_reference(measurer: Engine) -> None:
    results = list(measurer.measure([scheduled_matmul(tile, prepack=True) for tile in (4, 16, 32)]))
    assert [m.failure for m in results] == [None] * 3
    assert all(m.verified and m.samples for m in results)


def test_a_program_that_packs_its_weights_wrongly_is_wrong(measurer: Engine) -> None:
    good = scheduled_matmul(8, prepack=True)
    mod = tvm.ir.load_json(good.module)
    # The rewrite block stores to b_global[v1 // 8, v0 // 8, v0 % 8, v1 % 8]: swap two tile axes of equal extent.
    text = mod.script()
    swapped = text.replace("v0 // 8, v0 % 8, v1 % 8] = ", "v0 // 8, v1 % 8, v0 % 8] = ")
    assert swapped != text
    broken = Candidate(MATMUL, str(tvm.ir.save_json(tvm.script.from_source(swapped))), "wrongly packed")
    (result,) = measurer.measure([broken])
    assert result.failure is not None
    assert result.failure.kind is FailureKind.WRONG_RESULT


@pytest.mark.parametrize(("size", "plain"), [(128, True), (320, False)])
def test_a_large_operator_is_compared_with_its_default_program(measurer: Engine, size: int, plain: bool) -> None:
    arena = os.memfd_create("arena")
    worker = measurer.server.fork("reference", arena)
    module = reference_text(unscheduled_matmul(size))
    worker.channel.send({"reference": {"module": module, "seed": 0, "plain": False}})
    answer = worker.channel.receive(60.0)
    assert answer["plain"] == plain
    a, b, c = map_arena(arena, Layout.from_json(answer["layout"]))
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    measurer.server.discard(worker)
    os.close(arena)


def test_a_program_that_takes_far_longer_to_build_than_the_fastest_is_given_up() -> None:
    sch = s_tir.Schedule(tvm.IRModule({"main": unscheduled_matmul()}))
    for loop in sch.get_loops(sch.get_sblock("c"))[1:]:
        sch.unroll(loop)
    large = Candidate(MATMUL, str(tvm.ir.save_json(sch.mod)), "128 x 128 statements")
    config = MeasureConfig(least_build_seconds=0.3, hopeless_build=1.5)
    with cpu_measurer(resolve_target(), {MATMUL: reference_text(unscheduled_matmul())}, config) as measurer:
        (good,) = measurer.measure([scheduled_matmul(16, prepack=False)])
        (result,) = measurer.measure([large])
    assert good.failure is None
    assert result.failure is not None
    assert result.failure.kind is FailureKind.BUILD_TIMEOUT
    assert result.failure.message == f"took longer than {max(0.3, 1.5 * good.build_seconds):g} s of a core"


def test_processes_that_cannot_start_are_an_error_and_are_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "PREPARE", "slipstream.measure.roles:is_not_there")
    with (
        cpu_measurer(resolve_target(), {MATMUL: reference_text(unscheduled_matmul())}) as measurer,
        pytest.raises(BuildError, match=r"ended with status 1 before it could build.*slipstream doctor"),
    ):
        list(measurer.measure([scheduled_matmul(16, prepack=False)]))
    assert capfd.readouterr().err.count("is_not_there") >= 2


def test_processes_that_started_early_are_used_once_or_end() -> None:
    target, before = resolve_target(), {child.pid for child in psutil.Process().children()}

    def servers() -> set[int]:
        return {child.pid for child in psutil.Process().children()} - before

    with starting_early(target, "local"):
        (early,) = servers()
        with cpu_measurer(target, {}) as first, cpu_measurer(target, {}) as second:
            assert first.server.pid == early
            assert second.server.pid != early
    assert not servers()
    with pytest.raises(KeyError), starting_early(target, "local"):
        raise KeyError("a model that cannot be read")
    assert not servers()
    with starting_early(target, "rpc"):
        assert not servers()


def test_a_server_whose_owner_ends_while_it_starts_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    server = ForkServer(PREPARE, options_for(resolve_target()), 0)
    server._control.close()
    assert server._process.wait(60.0) == 0
    server.close()
    assert capfd.readouterr() == ("", "")


def test_a_doubtful_reference_is_computed_again_before_a_program_is_called_wrong(measurer: Engine) -> None:
    list(measurer.measure([misbehaving.program(misbehaving.good(2), "2")]))
    spoil_reference(measurer, misbehaving.KEY)
    (result,) = measurer.measure([misbehaving.program(misbehaving.good(4), "4")])
    assert result.failure is None
    assert result.verified
    assert measurer._references[misbehaving.KEY].plain


def spoil_reference(measurer: Engine, operator: str) -> None:
    """Overwrite the first expected result of an operator, as a default program that is wrong would have.

    Of one so small, the unscheduled function has computed it: say that it has not.
    """
    reference = measurer._references[operator]
    assert reference.plain
    reference.plain = False
    (output,) = [slot for slot in reference.layout if slot["written"]]
    os.pwrite(reference.arena, np.float32(12345).tobytes(), output["offset"])


def test_results_stream_and_programs_are_taken_only_as_needed(measurer: Engine) -> None:
    taken: list[int] = []

    def propose() -> Iterator[Candidate]:
        for tile in (2, 4, 8, 16, 32, 64):
            taken.append(tile)
            yield scheduled_matmul(tile, prepack=False)

    stream = measurer.measure(propose())
    next(stream)
    assert len(taken) <= 2 * measurer.target.threads
    assert len(list(stream)) == 5


def test_equal_code_is_run_once(measurer: Engine) -> None:
    one, same_text = (scheduled_matmul(1, prepack=False, label=label) for label in ("one", "same text"))
    mod = tvm.ir.load_json(one.module)
    annotated = tvm.IRModule({"main": mod["main"].with_attr("comment", "changes nothing in the code")})
    sch = s_tir.Schedule(annotated)
    sch.annotate(sch.get_sblock("c"), "meta_schedule.note", 1)
    same_code = Candidate(MATMUL, str(tvm.ir.save_json(sch.mod.with_attr("note", "other text"))), "same code")
    assert same_code.module != one.module
    results = {m.program.label: m for m in measurer.measure([one, same_text, same_code])}
    assert results["same text"].samples == results["one"].samples
    assert sum(m.duplicate for m in results.values()) >= 1
    again = list(measurer.measure([one]))
    assert again[0].duplicate
    assert again[0].program == one


@pytest.mark.timing
def test_a_slow_program_is_given_up_early(measurer: Engine) -> None:
    list(measurer.measure([scheduled_matmul(tile, prepack=True) for tile in (16, 32)]))
    sch = s_tir.Schedule(tvm.IRModule({"main": unscheduled_matmul()}))
    i, j, k = sch.get_loops(sch.get_sblock("c"))
    sch.reorder(k, j, i)  # the worst order there is
    slow = Candidate(MATMUL, str(tvm.ir.save_json(sch.mod)), "slow")
    (result,) = measurer.measure([slow])
    assert result.failure is None
    assert result.stopped_early
    assert len(result.samples) <= 3
    assert result.median > measurer.best[MATMUL].median


def test_finalists_are_sampled_in_turn_until_one_wins(measurer: Engine) -> None:
    results = list(measurer.measure([scheduled_matmul(tile, prepack=True, label=f"f{tile}") for tile in (2, 8, 64)]))
    assert [m.failure for m in results] == [None] * 3
    settling = Settling(near=1000.0, least_rounds=6, most_rounds=12)
    settled = measurer.settle(results, np.random.default_rng(0), settling)
    assert settled is not None
    assert len(settled.finalists) == 3
    assert settled.winner.median == min(m.median for m in settled.finalists)
    assert measurer.best[MATMUL] == settled.winner
    assert all(len(m.samples) >= 6 for m in settled.finalists)


def test_finalists_with_the_code_of_another_do_not_run_for_themselves(measurer: Engine) -> None:
    """Also those that turn out to be the same when the other one has been run, and have no worker any more."""
    results = list(measurer.measure([scheduled_matmul(tile, prepack=True, label=f"g{tile}") for tile in (16, 64)]))
    copies = [replace(m, program=replace(m.program, label=f"{m.program.label} {n}")) for n in range(8) for m in results]
    settling = Settling(near=10.0, least_rounds=3, most_rounds=4)
    settled = measurer.settle([replace(m, duplicate=False) for m in copies], np.random.default_rng(0), settling)
    assert settled is not None
    raced = [m.program.digest for m in settled.finalists]
    assert len(set(raced)) == len(raced)
    assert settled.winner.program.digest in raced


def test_a_module_that_is_none_is_a_build_error_and_a_failed_round_is_said_loudly(
    measurer: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        results = list(measurer.measure([Candidate(MATMUL, "{}", "nonsense"), Candidate(MATMUL, "[", "worse")]))
    assert {m.failure.kind for m in results if m.failure} == {FailureKind.BUILD_ERROR}
    assert "not one of 2 programs could be measured" in caplog.text
    assert "build error" in caplog.text


def test_an_operator_without_reference_is_a_mistake_of_the_caller(measurer: Engine) -> None:
    with pytest.raises(SlipstreamError, match="its reference was not given"):
        list(measurer.measure([Candidate("unheard of", "{}")]))


def test_idle_workers_share_their_memory(measurer: Engine) -> None:
    server = measurer.server
    before = used_by_family(server.pid)
    workers = [server.fork("build") for _ in range(4)]
    for worker in workers:
        worker.channel.send({"unheard of": {}})  # answered once the worker is up
        worker.channel.receive(10.0)
    added = used_by_family(server.pid) - before
    for worker in workers:
        server.discard(worker)
    assert added < 400e6


def used_by_family(pid: int) -> int:
    """Memory of a process and its children; what they share counts once."""
    process, total = psutil.Process(pid), 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += member.memory_full_info().pss
    return total
