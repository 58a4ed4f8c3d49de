"""`slipstream.tvm`: sessions on a user's Relax module, and what TVM makes of their databases and programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import transform
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.relax_integration import compile_relax

import slipstream.tvm
from slipstream.errors import InputError, ModelError, ShapeError, SlipstreamError, TargetError
from slipstream.graph.operators import extract_operators
from slipstream.machine.target import resolve_target
from slipstream.program.space import Space
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.tvm.check import Built, check_programs
from slipstream.tvm.database import fill_database
from slipstream.tvm.module import inputs_of, operators_of
from slipstream.tvm.programs import BestPrograms, is_trace, read_best, with_programs

TARGET = slipstream.tvm.this_cpu()
IMAGE = np.random.default_rng(1).standard_normal((1, 16, 20, 20)).astype("float32")


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"filters": (32, 16, 3, 3), "matrix": (32, 10)}
    return {name: tvm.runtime.tensor(rng.standard_normal(s).astype("float32") / 8) for name, s in shapes.items()}


def network(extent: Any = 20) -> tvm.IRModule:
    """relu(conv2d) averaged over its image, times a matrix; weights are parameters."""
    x = relax.Var("x", relax.TensorType([1, 16, extent, 20], "float32"))
    filters = relax.Var("filters", relax.TensorType([32, 16, 3, 3], "float32"))
    matrix = relax.Var("matrix", relax.TensorType([32, 10], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, filters, matrix]):
        with builder.dataflow():
            image = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(x, filters, padding=1)))
            logits = builder.emit(relax.op.matmul(relax.op.mean(image, [2, 3]), matrix))
            found = builder.emit_output(relax.Tuple([logits, image]))
        builder.emit_func_output(found)
    return builder.get()


def bound() -> tvm.IRModule:
    return transform.BindParams("main", weights())(network())


def fused() -> tvm.IRModule:
    with TARGET:
        return relax.get_pipeline("zero")(bound())


def run(executable: Any) -> list[np.ndarray[Any, Any]]:
    results = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(IMAGE))
    return [result.numpy() for result in results]


def expected() -> list[np.ndarray[Any, Any]]:
    filters, matrix = (value.numpy() for value in weights().values())
    padded = np.pad(IMAGE[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    image = np.maximum(np.einsum("chwij,ocij->ohw", windows, filters), 0)[None]
    return [image.mean((2, 3)) @ matrix, image]


def assert_right(executable: Any) -> None:
    for found, wanted in zip(run(executable), expected(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def scheduled(mod: tvm.IRModule) -> dict[str, bool]:
    """Which TIR functions of a module are scheduled."""
    functions = ((v, f) for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc))
    return {v.name_hint: bool(f.attrs and f.attrs.get("tirx.is_scheduled", False)) for v, f in functions}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A session on the module as a frontend makes it, begun after TVM's threads have run in this process."""
    assert_right(tvm.compile(slipstream.tvm.Prepare(TARGET)(bound()), target=TARGET))
    folder = tmp_path_factory.mktemp("tuned") / "session"
    database = slipstream.tvm.tune_relax(network(), weights(), TARGET, folder, max_trials_global=12, seed=3)
    return folder, database


def trials(folder: Path) -> int:
    directory = SessionDirectory.read(folder)
    with open_store(directory, read_only=True) as store:
        return sum(1 for _ in store.trials(session=directory.session))


def test_the_module_is_tuned_within_its_trials(session):
    folder, database = session
    assert 12 <= trials(folder) < 20
    assert len(database) >= 3
    result = open_store(SessionDirectory.read(folder), read_only=True).sessions()[0].result
    assert result["fallback"] == ""
    assert 0 < result["end_to_end"] < 1


@pytest.mark.parametrize("make", [bound, fused], ids=["as imported", "after the zero pipeline"])
def test_compile_relax_finds_a_record_for_every_operator(session, make: Callable[[], tvm.IRModule], monkeypatch):
    applied: list[tvm.IRModule] = []
    stock = transform.MetaScheduleApplyDatabase

    def watched(*arguments: Any, **options: Any) -> Any:
        @tvm.transform.module_pass(opt_level=0)
        def apply(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
            applied.append(stock(*arguments, **options)(mod))
            return applied[-1]

        return apply

    monkeypatch.setattr(transform, "MetaScheduleApplyDatabase", watched)
    assert_right(compile_relax(session[1], make(), TARGET, None))
    assert applied
    assert all(scheduled(applied[0]).values()), scheduled(applied[0])


def test_the_database_in_the_folder_is_read_by_tvm(session):
    with TARGET:
        mod = transform.MetaScheduleApplyDatabase(str(session[0]))(fused())
    assert all(scheduled(mod).values())
    assert_right(tvm.compile(mod, target=TARGET))


@pytest.mark.parametrize("make", [bound, fused], ids=["as imported", "after the zero pipeline"])
def test_the_pass_in_a_pipeline(session, make: Callable[[], tvm.IRModule]):
    passes = tvm.transform.Sequential([slipstream.tvm.Tuned(session[0]), transform.DeadCodeElimination()])
    mod = passes(make())
    assert all(scheduled(mod).values())
    assert_right(tvm.compile(mod, target=TARGET, tir_pipeline=slipstream.tvm.TIR_PIPELINE))


def test_operators_without_a_program_stay_as_they_are(session):
    x = relax.Var("x", relax.TensorType([7, 5], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.sum(x, 1)))
    with TARGET:
        before = relax.get_pipeline("zero")(builder.get())
    after = slipstream.tvm.Tuned(session[0])(before)
    tvm.ir.assert_structural_equal(after, before)


def test_the_same_call_again_tunes_no_more(session):
    folder, _ = session
    before = trials(folder)
    again = slipstream.tvm.tune_relax(fused(), {}, TARGET, folder, 12, database="memory")
    assert trials(folder) == before
    assert len(again) >= 3
    with pytest.raises(SlipstreamError, match="holds the session of another module"):
        slipstream.tvm.tune_relax(bound(), None, TARGET, folder, 12, op_names=["matmul"])


def prepared_convolution() -> tuple[tvm.IRModule, Any]:
    """A module with a convolution that Winograd's method computes, prepared, and that operator."""
    mod = slipstream.tvm.Prepare(TARGET)(bound())
    operators = extract_operators(operators_of(mod)[0])
    return mod, next(operator for operator in operators if "conv2d" in operator.kinds)


def test_programs_that_are_no_trace_are_applied_by_the_pass_alone():
    mod, operator = prepared_convolution()
    target = resolve_target("cpu")
    space = Space(operator.key, operator.func, target)
    winograd = next(program for program in space.own if program.sketch.form)
    programs = {operator.key: winograd}
    assert not is_trace(winograd)
    with_winograd = with_programs(mod, programs, target)
    assert_right(tvm.compile(with_winograd, target=TARGET))
    assert sum(scheduled(with_winograd).values()) == 1
    seconds, note = check_programs(mod, inputs_of(mod), target, [operator.key], programs)
    assert (note, list(programs)) == ("", [operator.key])
    assert 0 < seconds < 1
    database = ms.database.MemoryDatabase()
    found = BestPrograms(target, {operator.key: winograd}, {operator.key: (space.direct, 1e-3)})
    assert fill_database(database, mod, found) == 1
    with TARGET, database:
        applied = transform.MetaScheduleApplyDatabase()(mod)
    assert sum(scheduled(applied).values()) == 1
    assert_right(tvm.compile(applied, target=TARGET))


def test_programs_that_compute_something_else_are_not_used(monkeypatch):
    mod = fused()
    outputs = Built.__call__
    untuned: list[Built] = []

    def wrong(self: Built, feed: Any) -> Any:
        untuned.append(self)
        return [array * (1 if self is untuned[0] else 1.1) for array in outputs(self, feed)]

    monkeypatch.setattr(Built, "__call__", wrong)
    _, note = check_programs(mod, inputs_of(mod), resolve_target("cpu"), operators_of(mod)[1], {})
    assert note.startswith("the tuned module was wrong")


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"mod": 3}, InputError, "an? int is no Relax module"),
        ({"params": TARGET, "target": {}}, InputError, "order is mod, params, target, work_dir"),
        ({"params": {"bias": 1}}, InputError, "main has no parameter 'bias'"),
        ({"mod": network(tirx.Var("n", "int64"))}, ShapeError, "symbolic dimension n.*BindSymbolicVars"),
        ({"mod": tvm.IRModule({})}, ModelError, "no Relax function main"),
        ({"mod": relax.get_default_pipeline(TARGET)(bound()), "params": None}, ModelError, "no operators to tune"),
        ({"op_names": ["lstm"]}, InputError, "choose from"),
        ({"runner": ms.runner.PyRunner}, InputError, "cannot use a .* as runner"),
        ({"cost_model": "mlp"}, InputError, "cannot use 'mlp' as cost_model.*'xgb' or 'random'"),
        ({"module_equality": "equal"}, InputError, "choose from structural"),
        ({"max_trials_global": 0}, SlipstreamError, "allows nothing"),
        ({"target": "no such target"}, TargetError, "TVM has no target"),
        ({"target": {"kind": "vulkan"}}, TargetError, "vulkan targets cannot be tuned"),
        ({"target": {"kind": "llvm", "mattr": ["+mine"]}}, TargetError, "mattr of the target has '.mine'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_arguments_get_one_line(change, error, text, tmp_path):
    given: dict[str, Any] = {"mod": network(), "params": weights(), "target": TARGET, "max_trials_global": 4}
    with pytest.raises(error, match=text) as caught:
        slipstream.tvm.tune_relax(work_dir=tmp_path / "session", **{**given, **change})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "session").exists()


def test_preparing_comes_before_legalising():
    with pytest.raises(ModelError, match="before LegalizeOps"):
        slipstream.tvm.Prepare(TARGET)(fused())


def test_a_pass_needs_a_session(tmp_path):
    with pytest.raises(SlipstreamError, match="no tuning session"):
        slipstream.tvm.Tuned(tmp_path)


def test_a_target_without_a_cpu_is_the_oldest_of_its_architecture():
    from slipstream.tvm.target import target_spec

    spec, threads = target_spec({"kind": "llvm", "num-cores": 2})
    assert spec in ("cpu:generic", "cpu:x86-64")
    assert threads == 2
    assert target_spec(TARGET)[0] == "cpu"


INTERRUPTED = """
import json, sys
from tests.tvm.test_tune_relax import TARGET, assert_right, bound, compile_relax, slipstream
def say(event, snapshot):
    print(event.kind, flush=True)
database = slipstream.tvm.tune_relax(bound(), None, TARGET, sys.argv[1], budget="10m", callbacks=[say])
assert_right(compile_relax(database, bound(), TARGET, None))
print("records", len(database), flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_saves_and_a_larger_budget_goes_on(tmp_path):
    folder = tmp_path / "session"
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("slot"):
            os.kill(process.pid, signal.SIGINT)
            break
    said = process.stdout.read()
    assert process.wait(60) == 0
    assert "records" in said
    assert json.loads((folder / "session.json").read_text())["session"]
    before = trials(folder)
    slipstream.tvm.tune_relax(bound(), None, TARGET, folder, before + 4)
    assert before < trials(folder)
    assert all(program is not None for program in read_best(folder).best.values())
