"""Comparing with other runtimes: sides in processes of their own, and operators under the same words."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pytest

import slipstream
from benchmarks import latency, profile_against, short_types, tune_relax, tvm_users
from benchmarks.rivals.computation import (
    CONV,
    CONV_3X3,
    DEPTHWISE,
    GROUPED,
    MATMUL,
    slipstream_computation,
)
from benchmarks.rivals.models import model_files
from benchmarks.rivals.rounds import compare
from benchmarks.rivals.sides import start

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
    near = {**wrong, "rms_tolerance": 0.11}
    (found,) = compare([SIDE], {SIDE: near}, processes=1, rounds=1, seed=0).values()
    assert found["error"] == pytest.approx(1 - 1 / 1.1, rel=1e-3)


def test_a_setting_that_cannot_run_is_left_out(files, tmp_path):
    def with_a_broken_one(side, options, setting=None):
        return start(side, options, setting) | (
            start("openvino", {**options, "model": "none.onnx"}, "as it comes") if setting is None else {}
        )

    jobs = {SIDE: job(files, tmp_path)}
    (found,) = compare([SIDE], jobs, processes=1, rounds=1, seed=0, start=with_a_broken_one).values()
    assert list(found["settings_left_out"]) == ["as it comes"]
    assert found["variant"] in ("no spinning", "parallel executor", "dynamic blocks")
    assert len(found["blocks"]) == 1


@pytest.mark.parametrize(
    "side", ["slipstream", "onnxruntime", "openvino", pytest.param("torch", marks=pytest.mark.slow)]
)
def test_all_threads_of_a_side_stay_on_the_cores_it_is_given(files, tmp_path, side):
    if side in ("openvino", "torch"):
        pytest.importorskip(side)
    if side == "slipstream":
        slipstream.compile(files["source"], tmp_path / "artifact")
    usable = os.sched_getaffinity(0)
    core = max(usable)
    options = {**job(files, tmp_path), "artifacts": {"slipstream": str(tmp_path / "artifact")}}
    os.sched_setaffinity(0, {core})
    try:
        ((_, contender), *others) = start(side, options).items()
    finally:
        os.sched_setaffinity(0, usable)
    try:
        contender.ready()
        tasks = Path(f"/proc/{contender._process.pid}/task")
        assert {core} == set().union(*(os.sched_getaffinity(int(task.name)) for task in tasks.iterdir()))
    finally:
        for each in (contender, *(other for _, other in others)):
            each.close()


def test_openvino_says_what_it_computes_in(files, tmp_path):
    pytest.importorskip("openvino")
    from benchmarks.rivals import openvino_side

    options = {**job(files, tmp_path), "dtype": "float32"}
    assert openvino_side.said_by(options) == {}
    (found,) = compare(["openvino"], {"openvino": options}, processes=1, rounds=1, seed=0).values()
    assert found["computed_in"]["hint"] == "f32"
    assert sum(found["computed_in"]["products"].values()) > 0


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_same_work_has_the_same_words(files, tmp_path, dtype):
    """The profiles of a real model: every convolution and product of one side is found on the others."""
    pytest.importorskip("openvino")
    given = files
    if dtype == "int8":
        given = model_files(str(short_types.quantised(files, tmp_path / "int8.onnx")), tmp_path / "files")
    slipstream.compile(given["source"], tmp_path / "untuned")
    options = argparse.Namespace(against=list(profile_against.THEIRS), dtype=dtype, work=tmp_path)
    sides = profile_against.opened(given, tmp_path / "untuned", options, "float32")
    found = profile_against.profile(sides, 0.1)
    works = {side: sorted((kind, what) for _, kind, what, _ in found[side] if what) for side in sides}
    assert works["ours"] == works["onnxruntime"] == works["openvino"] != []
    assert all(seconds > 0 for _, _, _, seconds in found["ours"])
    assert sum(row[3] for row in found["onnxruntime"]) > 0
    assert not list(tmp_path.glob("profile*"))
    rows = profile_against.by_kind(found)
    assert {side: sum(row[1][side] for row in rows) for side in sides} == {side: len(found[side]) for side in sides}


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
        ("conv2d 7x24/2x6 1→64 112x112 + quantize", ("conv2d", "quantize"), (CONV, "7x7 3→64 to 112x112")),
        ("quantize 1x3x224x224 + transpose", ("quantize", "transpose"), ("quantise", "")),
        ("conv1d 3 8→16 100 + add", ("conv1d", "add"), ("conv other", "")),
        ("matmul 1x512x1000 + add", ("matmul", "add"), (MATMUL, "1x512x1008")),
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


def test_a_function_says_what_its_operator_hides():
    name, kinds = "grouped conv2d 3x3 32→32 (8 groups) 112x112 + quantize", ("grouped_conv2d", "quantize")
    assert slipstream_computation(name, kinds, "fused_integer_depthwise_in_groups_requantised1").kind == DEPTHWISE
    assert slipstream_computation(name, kinds, "fused_integer_convolution1").kind == GROUPED
    assert slipstream_computation("sum 12x128x64", ("sum",), "sums_of_rows2").kind == "batch matmul"
    assert slipstream_computation("take 1x9", ("take",), "fused_looked_up").kind == "element-wise"


def test_profiles_are_grouped_by_where_most_is_lost():
    result = {
        "tuned": False,
        "latency": {"ours": 3e-3, "onnxruntime": 2e-3, "openvino": 1e-3},
        "ours": [["a", "conv 1x1", "x", 2e-3], ["b", "conv 1x1", "y", 1e-3], ["p", "pool", "", 1e-4]],
        "onnxruntime": [["A", "conv 1x1", "x", 5e-4], ["P", "pool", "", 3e-4]],
        "openvino": [["A", "conv 1x1", "x", 4e-4], ["B", "conv 1x1", "y", 2e-3], ["B", "conv 1x1", "y", 2e-3]],
    }
    calls = {"ours": 2, "onnxruntime": 1, "openvino": 3}
    assert profile_against.by_kind(result)[0] == (
        "conv 1x1",
        calls,
        {"ours": 3e-3, "onnxruntime": 5e-4, "openvino": 4.4e-3},
    )
    (row,) = profile_against.by_work(result)
    assert row[0] == "conv 1x1: x"
    assert row[2] == {"ours": 2e-3, "onnxruntime": 5e-4, "openvino": 4e-4}
    page = profile_against.markdown({"m": result})
    assert "| m | untuned | 3.00 | 2.00 | 1.00 | conv 1x1 +2500 | pool -200 | pool +100 | conv 1x1 -1400 |" in page
    assert "| conv 1x1: x | 1 | 1 | 1 | 2000 | 500 | 400 | +1600 |" in page


def test_attention_that_one_side_has_as_one_operator_is_compared_whole():
    parts = [["a", "batch matmul", "x", 1.0], ["s", "softmax", "", 1.0], ["b", "batch matmul", "y", 1.0]]
    result = {"ours": parts, "openvino": [["A", "attention", "", 2.0]]}
    assert profile_against.by_kind(result) == [
        ("attention", {"ours": 3, "openvino": 1}, {"ours": 3.0, "openvino": 2.0})
    ]
    assert [row[0] for row in profile_against.by_kind({"ours": parts, "onnxruntime": parts})] == [
        "batch matmul",
        "softmax",
    ]


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
