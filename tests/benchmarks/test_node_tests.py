"""`benchmarks.node_tests` compiles ONNX's own cases, and the page about operators names all that are rewritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import runner
from slipstream.frontends.onnx_rewrites import REWRITES

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # to make ONNX's cases alone takes a quarter of a minute
def test_cases_are_compiled_and_compared(tmp_path: Path) -> None:
    cases = "^test_(gru_batchwise|loop11|celu|nonzero_example|swiglu)$"
    command = [sys.executable, "-m", "benchmarks.node_tests", "--only", cases, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    raw = runner.read("node_tests", tmp_path)
    assert raw is not None
    outcomes = {name: case["outcome"] for name, case in raw["parts"]["cases"]["data"].items()}
    refused = outcomes.pop("test_nonzero_example")
    assert set(outcomes.values()) == {"right"}, outcomes
    assert refused.startswith("refused: the size of a result of NonZero depends on the data")


def test_the_committed_results_are_those_aimed_at() -> None:
    from benchmarks import node_tests

    raw = runner.read("node_tests")
    assert raw is not None
    found = node_tests.numbers(runner.data_of(raw))
    assert float(found["share"].removesuffix(" %")) >= 90
    assert float(found["share that runs"].removesuffix(" %")) >= 99
    crashes = [name for name, case in runner.data_of(raw)["cases"].items() if case["outcome"].startswith("crash")]
    assert not crashes


def test_the_page_about_models_names_what_is_rewritten() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    missing = [name for domain, name in REWRITES if domain == "com.microsoft" and f"`{name}`" not in page]
    assert not missing
