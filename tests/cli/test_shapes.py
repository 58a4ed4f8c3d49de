"""Commands on a model for several shapes, and the example of docs/shapes.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.cli.forked_commands import ForkedCommands
from tests.conftest import small_model

PAGE = (Path(__file__).parents[2] / "docs" / "shapes.md").read_text()
SHAPES = ("1x3x8x8", "4x3x8x8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    onnx.save(small_model(), folder / "small.onnx")
    return folder


def test_compile_run_bench_and_operators(folder: Path, forked_command: ForkedCommands) -> None:
    done = forked_command("compile", "small.onnx", "-o", "out", "--shape", "x=1,4x3x8x8", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(f"x: float32[{shape}]: verified" in done.stdout for shape in SHAPES)
    ran = forked_command("run", "out", "--random", cwd=folder).stdout
    assert all(f"ran small {shape} in" in ran for shape in SHAPES)
    assert "y: float32[4, 4, 8, 8]" in ran
    np.save(folder / "three.npy", np.zeros((3, 3, 8, 8), np.float32))
    done = forked_command("run", "out", "--input", "three.npy", cwd=folder)
    assert done.returncode == 2
    assert "not compiled for x 3x3x8x8; it has 1x3x8x8; 4x3x8x8" in done.stderr
    timed = forked_command("bench", "out", "--pause", "0", "--seconds", "0.2", "--json", cwd=folder)
    assert [result["shape"] for result in json.loads(timed.stdout)["shapes"]] == list(SHAPES)
    listed = forked_command("operators", "small.onnx", "--shape", "x=1,4x3x8x8", "--json", cwd=folder)
    assert len({json.dumps(operator["shapes"]) for operator in json.loads(listed.stdout)}) > 1


@pytest.mark.slow
def test_bench_against_onnxruntime(folder: Path, forked_command: ForkedCommands) -> None:
    done = forked_command("compile", "small.onnx", "-o", "raced", "--shape", "x=1,4x3x8x8", cwd=folder)
    assert done.returncode == 0, done.stderr
    timed = forked_command("bench", "raced", "--against", "onnxruntime", "--seconds", "1", "--json", cwd=folder)
    results = json.loads(timed.stdout)["shapes"]
    assert all(len(part["ratios"]) == 1 for result in results for part in result["parts"])


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(example, found)
    assert found["model"].shapes == [{"input": (1, 3, 32, 32)}, {"input": (4, 3, 32, 32)}]
    assert (found["four"][0].shape, found["three"][0].shape) == ((4, 10), (3, 10))
    np.testing.assert_allclose(found["three"][0], found["four"][0][:3], rtol=1e-5)
