"""MetaSchedule's databases: TVM's own read by us, ours read by TVM, and nothing lost in between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.cli import main
from slipstream.cli.store import describe_module
from slipstream.store import OperatorRecord, Store, StoreError
from slipstream.store.metaschedule import RECORDS, WORKLOADS, Transferred, export_metaschedule, import_metaschedule
from tests.store.samples import filled, operator, trial


def to_trace(module: str, sketch: str, decisions: str) -> list[Any]:
    return [json.loads(sketch), json.loads(decisions)]


def from_trace(module: str, trace: list[Any]) -> tuple[str, str]:
    return json.dumps(trace[0]), json.dumps(trace[1])


def _describe(module: str) -> OperatorRecord:
    return operator("0ff0", module=module, shapes=(((16, 16), "float32"),) * 3)


@pytest.fixture(scope="module")
def written_by_tvm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of one matmul: three programs, one of which has no time."""
    import tvm
    from tvm import s_tir, te
    from tvm.s_tir import meta_schedule as ms

    directory = tmp_path_factory.mktemp("tvm")
    a, b = te.placeholder((16, 16), name="a"), te.placeholder((16, 16), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    module = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    database = ms.database.JSONDatabase(work_dir=str(directory))
    workload = database.commit_workload(module)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    for seed, seconds in enumerate(([1.5e-5, 1 / 3], [2.0], [1e10])):
        schedule = s_tir.Schedule(module, seed=seed + 1)
        block = schedule.get_sblock("c")
        schedule.annotate(block, "note", '"quoted"\n')
        loop = schedule.get_loops(block)[0]
        schedule.split(loop, schedule.sample_perfect_tile(loop, 2))
        arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
        record = ms.database.TuningRecord(schedule.trace, workload, seconds, target, arguments)
        database.commit_tuning_record(record)
    return directory


def _json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_database_of_tvm_goes_through_a_store_and_back_to_tvm(written_by_tvm: Path, tmp_path: Path) -> None:
    import tvm
    import tvm_ffi
    from tvm.s_tir import meta_schedule as ms

    with Store.open(tmp_path / "store.db") as store:
        assert import_metaschedule(store, written_by_tvm, from_trace, _describe) == Transferred(1, 3)
        assert import_metaschedule(store, written_by_tvm, from_trace, _describe) == Transferred(1, 0, known=3)
        first, second, failed = store.trials()
        assert first.samples == (1.5e-5, 1 / 3)
        assert first.program.origin == "metaschedule"
        assert (second.median, failed.failure) == (2.0, "no time")
        target = store.hardware(first.hardware)["target"]
        assert target["kind"] == "llvm"
        done = export_metaschedule(store, tmp_path / "out", first.hardware, to_trace, target)
    assert done == Transferred(1, 3)

    assert _json_lines(tmp_path / "out" / RECORDS) == _json_lines(written_by_tvm / RECORDS)
    theirs, ours = (
        ms.database.JSONDatabase(work_dir=str(directory)) for directory in (written_by_tvm, tmp_path / "out")
    )
    assert len(ours) == 3
    for mine, original in zip(ours.get_all_tuning_records(), theirs.get_all_tuning_records(), strict=True):
        assert tvm_ffi.structural_equal(mine.workload.mod, original.workload.mod)
        assert str(mine.trace) == str(original.trace)
        assert [*map(float, mine.run_secs)] == [*map(float, original.run_secs)]
        assert str(mine.target) == str(original.target)
        assert str(mine.args_info) == str(original.args_info)
    best = ours.query_tuning_record(original.workload.mod, tvm.target.Target("llvm"), "main")
    assert [*map(float, best.run_secs)] == [1.5e-5, 1 / 3]


def test_a_workload_is_described_as_the_operator_it_is(written_by_tvm: Path, tmp_path: Path) -> None:
    import tvm

    from slipstream.graph.describe.key import operator_key

    with Store.open(tmp_path / "store.db") as store:
        import_metaschedule(store, written_by_tvm, from_trace, describe_module)
        (record,) = store.operators()
    assert record.key == operator_key(tvm.ir.load_json(record.module)["main"])
    assert record.kinds == ("matmul",)
    assert (record.flops, record.bytes) == (2 * 16**3, 3 * 16 * 16 * 4)
    assert record.shapes == (((16, 16), "float32"),) * 3
    with pytest.raises(StoreError, match="not a TIR module"):
        describe_module("{}")


def test_records_may_be_claimed_for_known_hardware(written_by_tvm: Path, tmp_path: Path) -> None:
    store, hardware = filled(tmp_path / "store.db")
    import_metaschedule(store, written_by_tvm, from_trace, _describe, hardware, lambda text: f"s{len(text)}")
    best = store.best("0ff0", hardware)
    assert best is not None
    assert best.program.sketch.startswith("s")
    assert store.sketch(best.program.sketch) is not None


def test_what_the_other_side_cannot_say_is_counted(written_by_tvm: Path, tmp_path: Path) -> None:
    store, hardware = filled(tmp_path / "store.db", "aa00")
    store.append_trial(trial(hardware, number=1))

    def refuse(*_: Any) -> Any:
        raise RuntimeError("no such instruction\nin this trace")

    done = export_metaschedule(store, tmp_path / "out", hardware, refuse)
    assert done == Transferred(1, 0, skipped=1, reason="no such instruction")
    done = import_metaschedule(store, written_by_tvm, refuse, _describe)
    assert (done.trials, done.skipped) == (0, 3)
    assert done.reason.startswith("line 1 of ")


def test_failures_and_unknown_shapes_in_an_export(tmp_path: Path) -> None:
    store, hardware = filled(tmp_path / "store.db", "aa00")
    store.add_operators([operator("cc22", shapes=(((-1, 4), "float32"),))])
    store.add_sketch("new", "[]")
    for key in ("aa00", "cc22"):
        store.append_trial(trial(hardware, None, 1, operator=key))
    export_metaschedule(store, tmp_path / "out", hardware, lambda *_: [[], []], {"kind": "llvm"})
    arguments = [["TENSOR", "float32", [16, 16]], ["TENSOR", "int64", []]]
    assert _json_lines(tmp_path / "out" / RECORDS) == [
        [0, [[[], []], [1e10], {"kind": "llvm"}, arguments]],
        [1, [[[], []], [1e10], {"kind": "llvm"}, None]],
    ]
    with pytest.raises(StoreError, match="exists: choose an empty directory"):
        export_metaschedule(store, tmp_path / "out", hardware, to_trace)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [RECORDS, WORKLOADS]


def test_the_commands_take_a_database_in_and_out(written_by_tvm: Path, tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule as ms

    path, out = str(tmp_path / "store.db"), str(tmp_path / "out")
    done = CliRunner().invoke(main, ["store", "import", path, str(written_by_tvm)], catch_exceptions=False)
    assert "3 trials of 1 operators added, 0 known" in done.output
    done = CliRunner().invoke(main, ["store", "export", path, out], catch_exceptions=False)
    assert "3 records of 1 operators written" in done.output
    theirs, ours = (ms.database.JSONDatabase(work_dir=str(directory)) for directory in (written_by_tvm, out))
    for mine, original in zip(ours.get_all_tuning_records(), theirs.get_all_tuning_records(), strict=True):
        simple = original.trace.simplified(remove_postproc=True)
        assert str(mine.trace.simplified(remove_postproc=True)) == str(simple)
        assert [*map(float, mine.run_secs)] == [*map(float, original.run_secs)]
        assert str(mine.target) == str(original.target)


BROKEN = {
    (RECORDS, "{}\n"): "line 1 of .* is not a tuning record",
    (RECORDS, "[7, [[[],[]], [1.0], null, null]]\n"): "is about workload 7, but there are 1",
    (RECORDS, "[0, [[[],[]], [1.0], nu"): "is not JSON",
    (WORKLOADS, '["1", "***"]\n'): "is not text in base64",
    (WORKLOADS, '["1", "AAAA"]\n'): "is not text in base64",
    (WORKLOADS, "[]\n"): "is not a workload",
    (WORKLOADS, None): "give the directory of a MetaSchedule database",
}


@pytest.mark.parametrize(("name", "text"), BROKEN)
def test_a_broken_database_adds_nothing(name: str, text: str | None, written_by_tvm: Path, tmp_path: Path) -> None:
    directory = tmp_path / "broken"
    shutil.copytree(written_by_tvm, directory)
    if text is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(text)
    with Store.open(tmp_path / "store.db") as store:
        with pytest.raises(StoreError, match=BROKEN[name, text]) as raised:
            import_metaschedule(store, directory, from_trace, _describe)
        assert "\n" not in str(raised.value)
        assert list(store.trials()) == list(store.operators()) == []
