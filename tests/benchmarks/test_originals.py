"""Against the published tuners: their tables, and their processes with a stand-in for their TVM."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import originals, runner
from benchmarks.originals import table
from benchmarks.originals.artifact import BuiltArtifact
from benchmarks.originals.contender import start
from benchmarks.originals.operators import same_work
from benchmarks.originals.picture import picture
from benchmarks.originals.settings import KNOWN_TO_LLVM_14
from benchmarks.originals.tuned import drop_unfinished_line, read_curve, tune_original
from benchmarks.rivals.models import model_files
from benchmarks.rivals.rounds import compare
from slipstream.errors import SlipstreamError
from slipstream.machine.target import resolve_target

CORES = sorted(os.sched_getaffinity(0))[:1]
SETTINGS = {"trials": 2, "measures_per_round": 2, "population": None, "target": "llvm"}
# What our programs call of the artifact's TVM. Its tuner measures two of three tasks, starts a process, and goes on
# until it is ended; its model negates its input.
TVM = """
class Anything:
    def __init__(self, *arguments, **options): pass
    def __call__(self, *arguments, **options): return self
    def __getattr__(self, name): return Anything()
    def __getitem__(self, name): return self
    def __enter__(self): return self
    def __exit__(self, *error): pass
class relay:
    class frontend:
        from_onnx = staticmethod(lambda model, freeze_params: (Anything(), {}))
    transform = Anything()
    class build(Anything):
        def export_library(self, path): open(path, "w").write("built from " + open("records.json").read())
transform, target, runtime, cpu = Anything(), Anything(), Anything(), Anything()
"""
DENSE = """
from tvm import te
def matmul(tensor_b, auto_scheduler_rewritten_layout):
    assert len(tensor_b).shape == 2
    batch_dims_b = tensor_b.shape[:-2]
"""
AUTO_SCHEDULER = """
import os, subprocess, time
from tvm import Anything
from . import task_scheduler
class Task:
    desc, compute_dag = "conv", type("Dag", (), {"flop_ct": 1e9})
extract_tasks = lambda main, params, target: ([Task() for _ in range(3)], [1, 2, 1])
class LocalRPCMeasureContext:
    def __init__(self, repeat, min_repeat_ms, timeout): self.runner = None
LocalBuilder = lambda n_parallel: n_parallel
TuningOptions = lambda **options: options
RecordToFile = lambda path: path
ApplyHistoryBest = Anything
class TaskScheduler:
    def __init__(self, tasks, weights, callbacks, log_file_name, group_type="none"):
        self.callbacks, self.group_type = callbacks, group_type
    def tune(self, options, search_policy_params):
        self.best_costs, self.cur_score, self.ct = [1e10] * 3, 0.0, 0
        for number in range(2):
            self.best_costs[number] = 0.5
            self.ct += options["num_measures_per_round"]
            for callback in self.callbacks: callback.post_tune(self, number)
        with open(options["measure_callbacks"][0], "w") as file: file.write(self.group_type + "\\nunfinis")
        child = subprocess.Popen(["sleep", "600"])
        open("child", "w").write(str(child.pid))
        time.sleep(600)
"""
TASK_SCHEDULER = """
class TaskSchedulerCallback:
    def __init__(self, *arguments): pass
    def post_tune(self, scheduler, task): pass
PrintTableInfo = LogEstimatedLatency = TaskSchedulerCallback
"""
GRAPH_EXECUTOR = """
class GraphModule:
    def __init__(self, module): pass
    def set_input(self, **feeds): self.feeds = feeds
    def run(self): (self.result,) = (-value for value in self.feeds.values())
    def get_num_outputs(self): return 1
    def get_output(self, place): return type("Tensor", (), {"numpy": lambda _: self.result})()
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> BuiltArtifact:
    folder = tmp_path_factory.mktemp("artifact")
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for tree in ("ansor", "code-diffusion"):
        package = folder / tree / "python" / "tvm"
        sources = {"auto_scheduler/__init__": AUTO_SCHEDULER, "auto_scheduler/task_scheduler": TASK_SCHEDULER}
        sources |= {"__init__": TVM, "contrib/__init__": "", "contrib/graph_executor": GRAPH_EXECUTOR}
        sources |= {"te": "", "topi/__init__": "", "topi/nn/__init__": "", "topi/nn/dense": DENSE}
        for name, text in sources.items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / f"{name}.py").write_text(text)
        (folder / tree / "libtvm.so").touch()
    return BuiltArtifact(folder)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_tuning_is_ended_at_the_limit_with_all_it_started_and_leads_to_a_model(artifact, tmp_path):
    onnx = Path(model_files("tiny_cnn", tmp_path / "files")["model"])
    how: dict[str, Any] = {"seed": 0, "limit": 4.0, "cores": CORES, "settings": SETTINGS}
    folder = tmp_path / "run"
    found = tune_original(artifact, "code-diffusion-sketch", "tiny_cnn", onnx, folder, **how)
    assert found["censored"]
    assert 4.0 <= found["preparing"] + found["tuning_seconds"] < 10.0
    assert 0 < found["preparing"] < 4.0
    assert [(latency, trials) for _, latency, trials in found["curve"]] == [(None, 2), (None, 4)]
    assert [(task["weight"], task["seconds"], task["rounds"]) for task in found["tasks"]] == [
        (1, 0.5, 1),
        (2, 0.5, 1),
        (1, None, 0),
    ]
    assert (folder / "model.so").read_text() == "built from sketch\n"
    child, deadline = int((folder / "child").read_text()), time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)
    # What is there is not done again.
    began = time.monotonic()
    assert tune_original(artifact, "code-diffusion-sketch", "tiny_cnn", onnx, folder, **how) == found
    assert time.monotonic() - began < 1
    # Nor is a tuning whose model could not be built.
    (folder / "result.json").unlink()
    (folder / "model.so").unlink()
    again = tune_original(artifact, "code-diffusion-sketch", "tiny_cnn", onnx, folder, **{**how, "limit": 60.0})
    assert (again["curve"], again["censored"]) == (found["curve"], True)
    assert (folder / "model.so").exists()


def test_a_tuning_at_the_settings_of_the_authors_for_this_cpu(artifact, tmp_path):
    asked = ["--build", str(artifact.folder), "--models", "tiny_cnn", "--sides", "ansor", "--limit", "4s"]
    options = runner.parse(originals, "originals", [*asked, "--tune-only", "--work", str(tmp_path)])
    assert list(originals.measure(options)) == []
    found = json.loads((tmp_path / "tiny_cnn" / "ansor-0" / "result.json").read_text())
    assert (found["trials"], found["measures_per_round"], found["population"]) == (128, 64, 0)
    cpu = resolve_target().cpu
    assert found["target"].split(" -mattr=-")[0] == f"llvm -mcpu={KNOWN_TO_LLVM_14.get(cpu, cpu)}"


def test_only_what_has_been_tuned_is_compared(artifact, tmp_path):
    asked = ["--build", str(artifact.folder), "--models", "tiny_cnn", "--compare-only", "--work", str(tmp_path)]
    with pytest.raises(SlipstreamError, match=r"nothing has been tuned in .*tiny_cnn: leave --compare-only out"):
        next(originals.measure(runner.parse(originals, "originals", asked)))


def test_their_model_takes_turns_and_is_checked(artifact, tmp_path):
    values = np.arange(4, dtype=np.float32)
    np.savez(tmp_path / "feeds.npz", x=values)
    job = {"feeds": str(tmp_path / "feeds.npz"), "threads": 1, "artifacts": {"ansor 0": "model.so", "ansor 1": "m.so"}}
    job |= {"tree": "ansor", "build": str(artifact.folder)}
    for name, expected in (("right", -values), ("wrong", values)):
        np.savez(tmp_path / f"{name}.npz", expected)
    jobs = {
        "ansor 0": {**job, "expected": str(tmp_path / "right.npz")},
        "ansor 1": {**job, "expected": str(tmp_path / "wrong.npz")},
    }
    found = compare(list(jobs), jobs, processes=2, rounds=3, seed=0, start=start)
    assert [len(blocks) for blocks in found["ansor 0"]["blocks"]] == [3, 3]
    assert all(0 < seconds < 0.1 for blocks in found["ansor 0"]["blocks"] for seconds in blocks)
    assert found["ansor 1"]["failed"].startswith("wrong: off by")


def test_a_missing_build_and_a_tuning_that_fails_are_said_in_a_line(artifact, tmp_path):
    how: dict[str, Any] = {"seed": 0, "limit": 60.0, "cores": CORES, "settings": SETTINGS}
    with pytest.raises(SlipstreamError, match=r"build the artifact with benchmarks/originals/build\.sh"):
        tune_original(BuiltArtifact(tmp_path), "ansor", "tiny_cnn", tmp_path / "m.onnx", tmp_path / "run", **how)
    with pytest.raises(SlipstreamError, match=r"ansor failed with status 1 after \d+ s: see .*tune\.log"):
        tune_original(artifact, "ansor", "tiny_cnn", tmp_path / "none.onnx", tmp_path / "run", **how)
    options = runner.parse(originals, "originals", [])
    with pytest.raises(SlipstreamError, match="--build is missing"):
        next(originals.measure(options))


def test_lines_that_were_not_written_whole_are_left_out(tmp_path):
    (tmp_path / "records").write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_curve(tmp_path / "records") == [{"a": 1}, {"a": 2}]
    drop_unfinished_line(tmp_path / "records")
    assert (tmp_path / "records").read_text() == '{"a": 1}\n{"a": 2}\n'
    assert read_curve(tmp_path / "nothing") == []
    with pytest.raises(SlipstreamError, match="nothing was measured within the limit"):
        drop_unfinished_line(tmp_path / "nothing")


def run(side: str, curve: list[tuple[float, float | None, int]]) -> dict[str, Any]:
    return {"side": side, "curve": curve, "finishing": 5.0, "tuning_seconds": curve[-1][0], "trials": curve[-1][2]}


UNNAMED = {"name": "", "flops": 0.0, "weight": 1, "seconds": None}


def result() -> dict[str, Any]:
    runs = {
        "ansor 0": run("ansor", [(10.0, None, 64), (100.0, 8.0, 128), (400.0, 4.0, 256), (500.0, 3.98, 300)]),
        "code-diffusion 0": run("code-diffusion", [(50.0, 6.0, 64), (200.0, 4.0, 128), (300.0, 3.5, 192)]),
        "ours 0": run("ours", [(10.0, 2.0, 8), (20.0, 1.5, 16)]),
        "metaschedule 0": run("metaschedule", [(10.0, None, 8)]),
    }
    runs["ansor 0"] |= {"censored": True, "tasks": [dict(UNNAMED, seconds=1.0), UNNAMED]}
    blocks = {"ansor 0": 8.0, "code-diffusion 0": 7.0, "ours 0": 3.0, "onnxruntime": 4.0}
    compared = {name: {"blocks": [[seconds] * 2], "error": 1e-6} for name, seconds in blocks.items()}
    return {"runs": runs, "compared": {**compared, "metaschedule 0": {"failed": "why", "blocks": []}}}


def test_times_are_on_the_curve_that_ends_at_the_models_latency():
    one = result()
    # Ansor's sum of operators is 3.98 where its model takes 8: 4.0 stands for 8.04.
    assert table.time_to(one, "ansor 0", 8.0) == 505.0
    assert table.time_to(one, "ansor 0", 8.1) == 405.0
    assert table.time_to(one, "ansor 0", 7.9) == math.inf
    assert table.best_known(one) == 3.0
    # Without a sum of all operators there is still the model at the end.
    one["runs"]["ours 0"]["curve"] = [(10.0, None, 8), (20.0, None, 16)]
    assert (table.time_to(one, "ours 0", 3.0), table.time_to(one, "ours 0", 2.9)) == (25.0, math.inf)
    one = result()
    assert table.times_sooner(one, "ours") == 405.0 / 15.0
    assert table.times_sooner(one, "code-diffusion") == 405.0 / 205.0
    assert table.times_sooner(one, "ansor", "ours") == 0.0
    assert table.sooner_by_the_authors(one, "code-diffusion") == 500.0 / 300.0


def test_tables_name_what_is_censored_failed_or_never_reached():
    lines = table.markdown({"net": result()}).splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("|")]
    assert ["net", "Ansor", "1", *["not by 505"] * 4] in rows
    assert ["net", "ours", "1", "25", "25", "25", "25"] in rows
    assert ["net", "code diffusion (by operator)", "1.98", "1.67"] in rows
    details = {row[0]: row[1:] for row in rows}
    assert details["ansor 0"][:6] == ["300", "1 of 2", "500", "5", "yes", "3980.00"]
    assert "why" in details["metaschedule 0"]
    assert details["ours 0"][7] == "0.75 (0.75 - 0.75)"


def test_the_picture_has_a_line_for_every_side_that_has_a_model(tmp_path):
    picture({"net": result()}, tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert all(name in text for name in ("Ansor", "code diffusion (by operator)", "ours", "net"))
    assert "MetaSchedule" not in text


def test_figures_are_means_over_the_models_both_sides_ran():
    other = result()
    del other["runs"]["ansor 0"], other["compared"]["ansor 0"]
    found = table.numbers({"net": result(), "other": other})
    assert found["ours sooner than ansor"] == found["net: ours sooner than ansor"] == "27.0"
    assert "other: ours sooner than ansor" not in found
    assert found["models"] == "2"
    assert json.dumps(found)


def test_operators_are_compared_where_both_sides_do_the_same_work():
    def task(name: str, flops: float, weight: int, seconds: float | None) -> dict[str, Any]:
        return {"name": name, "flops": flops, "weight": weight, "seconds": seconds}

    one = result()
    one["runs"]["ours 0"]["tasks"] = [
        task("conv", 1e9, 2, 3e-3),
        task("dense a", 2e8, 1, 2e-3),
        task("dense b", 2e8, 1, 1e-3),
        task("only ours", 5e8, 1, 1e-3),
        task("small", 10.0, 9, 1e-6),
        task("called once", 7e8, 1, 1e-3),
    ]
    theirs = [task("c", 1.01e9, 2, 2e-3), task("d", 2e8, 2, 4e-3), task("s", 10.0, 9, 1e-7), task("e", 7e8, 2, 1e-3)]
    one["runs"]["ansor 0"]["tasks"] = [*theirs, task("f", 5e8, 1, None)]
    one["runs"]["code-diffusion 0"]["tasks"] = [task("c", 1.01e9, 2, 4e-3), task("d", 2e8, 2, 3e-3)]
    conv, dense = same_work(one, "ours")
    assert (conv.names, conv.calls) == (("conv",), 2)
    assert (conv.ours, conv.theirs, conv.loss) == pytest.approx((6e-3, 4e-3, 2e-3)), "their best of all runs"
    assert (dense.names, dense.calls, dense.loss) == (("dense a", "dense b"), 2, pytest.approx(-3e-3))
    assert "| conv | 1000.0 | 2 | 6.000 | 4.000 | 1.50 |" in table.markdown({"net": one})


def test_programs_inside_compile_for_their_python():
    """Their Python is 3.9 at the oldest: no syntax that came later."""
    import ast

    inside = Path(originals.__file__).parent / "inside"
    for path in inside.glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))
    assert os.access(inside.parent / "build.sh", os.X_OK)
