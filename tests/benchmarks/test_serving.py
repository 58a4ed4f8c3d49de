"""`benchmarks.serving` measures a given artifact without a compiler, and its tables say what the raw results say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serving, serving_table
from slipstream.errors import InputError
from slipstream.processes.child import child_environment

ROOT = Path(__file__).parents[2]
FIRST_CORE = min(os.sched_getaffinity(0))


def test_an_artifact_is_measured_where_compilers_and_a_side_are_missing(tiny_artifact: Path, tmp_path: Path) -> None:
    for missing in ("tvm", "tvm_ffi", "torch", "openvino"):
        (tmp_path / f"{missing}.py").write_text(f"raise ImportError('there is no {missing}')\n")
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT), environment["PYTHONPATH"]])
    command = [sys.executable, "-m", "benchmarks.serving", "--artifacts", str(tiny_artifact)]
    command += ["--cores", str(FIRST_CORE), "--pauses", "0", "5ms", "--callers", "1", "2", "--seconds", "0.1"]
    command += ["--starts", "2", "--soak", "300ms", "--loads", "3", "--out", "out", "--work", "work"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / "out" / "serving.json").read_text())["parts"]
    compared, soaked = (part["data"] for part in parts.values())
    assert list(parts) == [f"tiny_cnn untuned, cores {FIRST_CORE}", "tiny_cnn untuned, soak"]
    assert compared["skipped"] == {"openvino": "OpenVINO is not installed: pip install openvino"}
    patterns = [(row["pattern"]["pause"], row["pattern"]["callers"]) for row in compared["rows"]]
    assert patterns == [(0.0, 1), (0.0, 2), (0.005, 1), (0.005, 2)]
    for row in compared["rows"]:
        assert [timing["name"] for timing in row["timings"]] == ["slipstream", "onnxruntime"]
    facts = compared["facts"]
    assert facts["slipstream"]["model_bytes"] > 10_000
    assert facts["onnxruntime"]["runtime_bytes"] > 1_000_000
    assert len(compared["starts"]) == 2
    soak = soaked["soak"]
    assert soak["requests"] > 0
    assert (soak["wrong"], soak["failures"], soak["threads_left"], soak["loads"]["threads_left"]) == (0, [], 0, 0)
    page = (tmp_path / "out" / "serving.md").read_text()
    for heading in ("Several callers", "Processor time", "Process starts", "Loading", "Soak", "Left out"):
        assert f"### {heading}" in page


def timing(name: str, milliseconds: float, setting: str = "") -> dict[str, Any]:
    seconds = milliseconds / 1e3
    return {
        "name": name,
        "median": seconds,
        "p90": 2 * seconds,
        "p99": 3 * seconds,
        "runs": 500,
        "requests_per_second": 1 / seconds,
        "processor_seconds": 2 * seconds,
        "setting": setting,
    }


def row(pause: float, callers: int, ours: float, theirs: float) -> dict[str, Any]:
    ratio = theirs / ours
    return {
        "pattern": {"pause": pause, "rate": None, "callers": callers},
        "timings": [timing("slipstream", ours), timing("onnxruntime", theirs, "no spinning")],
        "ratios": [{"against": "onnxruntime", "median": ratio, "low": ratio - 0.1, "high": ratio + 0.1}],
    }


def part(model: str, cores: list[int], theirs: float) -> dict[str, Any]:
    rows = [row(0.0, 1, 2.0, theirs), row(0.02, 1, 4.0, theirs), row(0.02, 4, 8.0, theirs)]
    return {"model": model, "cores": cores, "rows": rows}


def test_tables_of_known_results() -> None:
    starts = [{"median": {"slipstream": value / 1e3}, "paused": {"slipstream": 0.004}} for value in (2.0, 3.0, 2.2)]
    data = {"a": {**part("a", [0, 1], 4.0), "starts": starts}, "b": part("b", [0, 1], 1.0)}
    lines = serving_table.markdown(data).splitlines()
    assert "| a | 2 | 2.00 | 4.00 | 2.00 (1.90 - 2.10) | 1.00 (0.90 - 1.10) |" in lines
    assert "| a | 2 | 20 ms | 4 | 0.50 | 2.00 | 125.0 | 8.00 | 24.00 | 250.0 | 4.00 | 12.00 |" in lines
    assert "| a | 2 | back to back | 4.00 | 6.00 of 500 | 8.00 (no spinning) | 12.00 of 500 |" in lines
    assert "| a | 2 | Slipstream | 3 | 2.200 (2.000 - 3.000) | 1.50 | 4.000 (4.000 - 4.000) | 1.00 |" in lines
    found = serving_table.numbers(data)
    assert found["mean onnxruntime, 2 cores, back to back, 1 caller"] == "1.00"  # of 2 and 1/2
    assert found["least onnxruntime, 2 cores, 20 ms, 4 callers"] == "0.12"
    assert found["fewer requests, 2 cores, 20 ms"] == found["rows of callers, 2 cores, 20 ms"] == "2"
    assert (found["least requests, 2 cores, 20 ms"], found["most requests, 2 cores, 20 ms"]) == ("0.12", "0.50")
    assert (found["longer p99, 2 cores, 20 ms"], found["longest p99, 2 cores, 20 ms"]) == ("2", "8.00")


def test_differences_count_as_sure_if_their_interval_excludes_none() -> None:
    several = row(0.0, 4, 2.0, 1.0)
    several["ratios"][0] |= {
        "requests": {"value": 0.5, "low": 0.4, "high": 1.1},
        "p99": {"value": 2.0, "low": 1.5, "high": 2.5},
    }
    found = serving_table.numbers({"a": {"model": "a", "cores": [0], "rows": [several]}})
    where = "1 cores, back to back"
    assert (found[f"fewer requests, {where}"], found[f"surely fewer requests, {where}"]) == ("1", "0")
    assert (found[f"longer p99, {where}"], found[f"surely longer p99, {where}"]) == ("1", "1")
    assert found[f"surely shorter p99, {where}"] == "0"
    later = serving_table.numbers({"a": {"model": "a", "version": "abc", "cores": [0], "rows": [several]}})
    assert later["fewer requests, 1 cores at abc, back to back"] == "1"


def test_a_table_of_nothing_is_a_table() -> None:
    assert serving_table.markdown({"a": {"model": "a", "cores": [0]}}) == "Nothing was measured with one caller.\n"


def test_growth_is_between_the_second_and_the_last_quarter() -> None:
    samples = [{"memory_bytes": float(value)} for value in (1, 1, 5, 5, 5, 5, 9, 9)]
    assert serving_table.memory_growth(samples) == (5.0, 9.0)
    assert serving_table.memory_growth(samples[:1]) == (1.0, 1.0)


def test_cores_are_lists_as_taskset_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 6, 7})
    assert serving.parse_cores("0,2-3,6") == [0, 2, 3, 6]
    assert serving.parse_cores("all") == [0, 1, 2, 3, 6, 7]
    assert serving.cores_text([0, 2, 3, 6]) == "0,2-3,6"
    assert [len(cores) for cores in serving.doubling_cores()] == [1, 2, 4, 6]
    for wrong in ("", "x", "4", "3-2", "0-7"):
        with pytest.raises(InputError, match=r"write a list such as 0-3 or 0,2 of 0-3,6-7"):
            serving.parse_cores(wrong)
