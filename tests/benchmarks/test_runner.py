"""The runner keeps what a benchmark measured with where it comes from, and makes tables of that alone."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from benchmarks import __main__ as every
from benchmarks import runner


@pytest.fixture
def benchmark(monkeypatch):
    """A benchmark of two parts that squares numbers."""
    module = ModuleType("squares", "Squares of numbers (no time at all).")
    module.__spec__ = ModuleSpec("benchmarks.squares", None)
    module.QUICK = {"numbers": [2]}
    module.arguments = lambda parser: parser.add_argument("--numbers", type=int, nargs="+", default=[2, 3])
    module.measure = lambda options: ((str(n), {"square": n * n + options.seed}) for n in options.numbers)
    module.markdown = lambda data: "".join(f"| {n} | {one['square']} |\n" for n, one in data.items())
    monkeypatch.setitem(sys.modules, "squares", module)
    return module


def test_parts_are_kept_until_measured_again(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runner.run("squares", ["--out", "out"])
    runner.run("squares", ["--out", "out", "--numbers", "3", "--seed", "1"])
    raw = json.loads((tmp_path / "out/squares.json").read_text())
    assert runner.data_of(raw) == {"2": {"square": 4}, "3": {"square": 10}}
    about = raw["parts"]["3"]["about"]
    assert about["command"] == "python -m benchmarks.squares --out out --numbers 3 --seed 1"
    assert about["seed"] == 1
    assert {"date", "machine", "versions", "seconds", "load"} < set(about)
    page = (tmp_path / "out/squares.md").read_text()
    assert page.startswith("# Squares of numbers\n\n| 2 | 4 |\n| 3 | 10 |\n\nMeasured\n\n- 2 on ")
    assert capsys.readouterr().out.endswith(page)


def test_parts_that_take_turns_count_their_own_seconds(benchmark, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock[0])

    def measure(options):
        for part, takes in (("2", 10.0), ("3", 1.0), ("2", 20.0), ("3", 2.0)):
            clock[0] += takes
            yield part, {"square": 0}

    benchmark.measure = measure
    runner.run("squares", ["--out", str(tmp_path)])
    parts = json.loads((tmp_path / "squares.json").read_text())["parts"]
    assert {part: one["about"]["seconds"] for part, one in parts.items()} == {"2": 30.0, "3": 3.0}
    assert "in 33 s" in (tmp_path / "squares.md").read_text()


def test_a_table_needs_the_raw_results_and_nothing_else(benchmark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="out has no raw results of squares: run it without --table first"):
        runner.run("squares", ["--table", "--out", "out"])
    runner.run("squares", ["--quick"])
    del benchmark.measure
    (runner.QUICK / "squares.md").unlink()
    runner.run("squares", ["--quick", "--table"])
    assert "| 2 | 4 |" in (runner.QUICK / "squares.md").read_text()


def test_one_that_is_asked_to_prepare_only_has_no_table(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    benchmark.measure = lambda options: iter(())
    runner.run("squares", ["--out", "out"])
    assert capsys.readouterr().out == ""
    assert not list((tmp_path / "out").iterdir())


def test_large_results_are_compressed(tmp_path):
    raw = {"about": {}, "data": list(range(100_000))}
    runner.write("numbers", {"about": {}, "data": []}, tmp_path)
    runner.write("numbers", raw, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json.gz"]
    assert runner.read("numbers", tmp_path) == raw
    runner.write("numbers", {"about": {}, "data": []}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]


def test_benchmarks_of_gpus_are_left_out_where_there_is_none(monkeypatch, capsys):
    assert set(every.ON_A_GPU) <= set(runner.titles())
    monkeypatch.setattr(every, "find_device", lambda: None)
    assert every.runnable_here(["ablation", "gpu", "store"]) == ["ablation", "store"]
    assert capsys.readouterr().out == "left out, for want of an NVIDIA GPU: gpu\n"
    monkeypatch.setattr(every, "find_device", lambda: "a GPU")
    assert every.runnable_here(["gpu", "store"]) == ["gpu", "store"]
