"""Comparing with other runtimes: sides in processes of their own, and operators under the same words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import latency, profile_against, tune_relax, tvm_users
from benchmarks.rivals.computation import (
    CONV_3X3,
    DEPTHWISE,
    GROUPED,
    MATMUL,
    onnxruntime_computation,
    slipstream_computation,
)
from benchmarks.rivals.models import model_files
from benchmarks.rivals.profiles import OnnxRuntimeProfile, OurProfile
from benchmarks.rivals.rounds import compare

SIDE = "onnxruntime"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return model_files("tiny_cnn", tmp_path_factory.mktemp("tiny"))


def job(files: dict[str, str], folder: Path) -> dict[str, object]:
    return {**files, "threads": 1, "work": str(folder)}


def test_a_side_runs_in_its_own_process_in_every_round(files, tmp_path):
    (found,) = compare([SIDE], {SIDE: job(files, tmp_path)}, processes=2, rounds=3, seed=0).values()
    assert [len(blocks) for blocks in found["blocks"]] == [3, 3]
    assert all(0 < seconds < 1 for blocks in found["blocks"] for seconds in blocks)
    assert min(found["tried"], key=found["tried"].get) == found["variant"]
    assert found["error"] < 1e-6


def test_a_side_that_is_not_installed_says_so_in_a_few_words(files, tmp_path, monkeypatch, capfd):
    (tmp_path / "openvino.py").write_text("raise ImportError('there is none')")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = compare(["openvino"], {"openvino": job(files, tmp_path)}, processes=1, rounds=1, seed=0).values()
    assert found["failed"].startswith("OpenVINO is not installed")
    assert "Traceback" not in capfd.readouterr().err


def test_a_side_that_computes_something_else_does_not_run(files, tmp_path):
    with np.load(files["expected"]) as archive:
        np.savez(tmp_path / "other.npz", *(1.1 * archive[name] for name in archive.files))
    wrong = {**job(files, tmp_path), "expected": str(tmp_path / "other.npz")}
    (found,) = compare([SIDE], {SIDE: wrong}, processes=2, rounds=3, seed=0).values()
    assert found["failed"].startswith("wrong: off by")
    assert found["blocks"] == []


def test_the_same_work_has_the_same_words(files, tmp_path):
    """The two profiles of a real model: every convolution and product of one side is found on the other."""
    from slipstream.frontends import load_model
    from slipstream.graph.build import apply_programs
    from slipstream.graph.describe.names import describe
    from slipstream.graph.prepare import prepare
    from slipstream.graph.relax_walk import prim_funcs
    from slipstream.machine.target import resolve_target

    with np.load(files["feeds"]) as archive:
        feeds = dict(archive)
    model, target = load_model("zoo:tiny_cnn"), resolve_target("cpu", threads=1)
    prepared, _ = prepare(model.module, target)
    names = {str(variable.name_hint): describe(func) for variable, func in prim_funcs(prepared).items()}
    calls = OurProfile(apply_programs(prepared, target), target, model.inputs, feeds).run()
    ours = [slipstream_computation(*names[name.removesuffix("_prepacked")]) for name, _ in calls]
    profile = OnnxRuntimeProfile(Path(files["model"]), feeds, 1, tmp_path)
    profile.run()
    (kernels,) = profile.end()
    theirs = [onnxruntime_computation(kernel) for kernel in kernels]
    assert all(seconds > 0 for _, seconds in calls)
    assert sorted(work for work in ours if work.what) == sorted(work for work in theirs if work.what) != []


@pytest.mark.parametrize(
    ("name", "kinds", "work"),
    [
        ("conv2d 3x3/2 64→100 28x28 + add + relu", ("conv2d", "add", "relu"), (CONV_3X3, "3x3 64→112 to 28x28")),
        ("depthwise conv2d 3x3 96 56x56 + clip", ("depthwise_conv2d", "clip"), (DEPTHWISE, "3x3 96→96 to 56x56")),
        (
            "grouped conv2d 1x1 240→64 (4 groups) 28x28 + add",
            ("grouped_conv2d", "add"),
            (GROUPED, "1x1 240→64 to 28x28"),
        ),
        ("conv1d 3 8→16 100 + add", ("conv1d", "add"), ("conv other", "")),
        ("matmul 1x512x1000 + add", ("matmul", "add"), (MATMUL, "1x512x1000")),
        ("softmax 8x128x128", ("softmax",), ("softmax", "")),
        ("transpose 1x1x1x1000 + reshape", ("transpose", "reshape"), ("layout and copies", "")),
        ("add 1x10 + relu", ("add", "relu"), ("element-wise", "")),
    ],
)
def test_work_is_told_from_the_name(name, kinds, work):
    assert slipstream_computation(name, kinds) == work


def test_ratios_are_of_the_same_round_and_failures_say_why():
    blocks = [[2.0, 4.0], [2.0, 2.0]]
    sides = {
        "slipstream": {"blocks": blocks, "variant": "", "error": 1e-7},
        "slipstream untuned": {"blocks": [[4.0, 8.0], [4.0, 4.0]], "variant": "", "error": 1e-7},
        "onnxruntime": {"blocks": [[1.0, 2.0], [1.0, None]], "variant": "no spinning", "error": 1e-7},
        "iree": {"blocks": [], "failed": "not installed"},
    }
    data = {"a": {"sides": sides}, "b": {"sides": {**sides, "onnxruntime": sides["slipstream untuned"]}}}
    assert latency.ratios(sides, "onnxruntime") == [0.5, 0.5, 0.5]
    row = next(line for line in latency.markdown(data).splitlines() if line.startswith("| a |"))
    assert "| 0.50 (0.50 - 0.50) | not installed |" in row
    found = latency.numbers(data)
    assert (found["a onnxruntime"], found["mean onnxruntime"]) == ("0.50", "1.00")
    assert "mean iree" not in found


def test_profiles_are_grouped_by_where_most_is_lost():
    result = {
        "tuned": False,
        "latency": {"ours": 3e-3, "onnxruntime": 2e-3},
        "ours": [["a", "conv 1x1", "x", 2e-3], ["b", "conv 1x1", "y", 1e-3], ["p", "pool", "", 1e-4]],
        "onnxruntime": [["A", "conv 1x1", "x", 5e-4], ["P", "pool", "", 3e-4]],
    }
    assert profile_against.by_kind(result)[0] == ("conv 1x1", 2, 1, 3e-3, 5e-4)
    assert profile_against.by_work(result) == [("conv 1x1: x", 1, 1, 2e-3, 5e-4)]


def test_typical_leaves_out_outliers():
    runs = [[1.0]] * 8 + [[0.0], [100.0]]
    assert profile_against.typical(runs) == [1.0]


def test_the_stock_side_is_compared_with_all():
    blocks = {"slipstream": 1.0, "tvm tune_relax": 3.0, "tvm untuned": 30.0, "onnxruntime": 0.9}
    sides = {side: {"blocks": [[seconds, seconds]]} for side, seconds in blocks.items()}
    stock = {"tasks": 19, "tasks_tuned": 18, "trials": 300, "seconds": 600.0}
    data = {"m": {"stock": stock, "ours": {"seconds": 180.0, "trials": 700}, "sides": sides}}
    assert "| 18 of 19 | 300 | 600 | 700 | 180 | 3.00 (3.00 - 3.00) times |" in tune_relax.markdown(data)
    assert "| 10.00 (10.00 - 10.00) |" in tune_relax.markdown(data)


def test_one_changed_line_is_compared_with_tvms():
    blocks = {"tvm tune_relax": 4.0, "slipstream.tvm.tune_relax": 2.0, "slipstream.tvm.Tuned": 1.0, "onnxruntime": 3.0}
    sides = {side: {"blocks": [[seconds, seconds]]} for side, seconds in blocks.items()}
    data = {"m": {"tuned": {side: {"trials": 9, "seconds": 60.0} for side in blocks}, "sides": sides}}
    text = tvm_users.markdown(data)
    assert "| 9 | 60 | 1 | 0.75 (0.75 - 0.75) |" in text
    assert "| 4.00 (4.00 - 4.00) | 3.00 (3.00 - 3.00) |" in text
    assert tvm_users.numbers(data)["m slipstream.tvm.tune_relax"] == "2.00"
