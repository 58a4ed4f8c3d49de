"""Flipped bytes in an ONNX file: whatever happens, it is an error of ours or a verified artifact."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import small_model

# One process for all files: a crash of the interpreter, an exception that is not ours or a leftover fails it.
_DRIVER = """
import json, random, shutil, sys
from pathlib import Path
import slipstream
from slipstream.errors import SlipstreamError
from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()
original, flips = Path(sys.argv[1]).read_bytes(), int(sys.argv[2])
work = Path(sys.argv[3])
rng = random.Random(2026)
outcomes = {}
for number in range(flips):
    content = bytearray(original)
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    (work / "m.onnx").write_bytes(content)
    try:
        slipstream.compile(work / "m.onnx", work / "out")
        outcome = "compiled"
        shutil.rmtree(work / "out")
    except SlipstreamError as error:
        outcome = type(error).__name__
        assert "Traceback" not in str(error), str(error)
    assert [path.name for path in work.iterdir()] == ["m.onnx"], (number, outcome)
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
print(json.dumps(outcomes))
"""


@pytest.mark.parametrize("flips", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_flipped_bytes_never_crash_and_never_leave_half_an_artifact(flips: int, tmp_path: Path) -> None:
    (tmp_path / "original.onnx").write_bytes(small_model(batch=1).SerializeToString())
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(tmp_path / "original.onnx"), str(flips), str(work)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout.strip().splitlines()[-1])
    assert sum(outcomes.values()) == flips
    assert outcomes["ModelError"] > flips / 10
    assert outcomes["compiled"] > 0, "the fuzzer never got as far as compiling: it tests too little"
