"""The commands as a user types them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import slipstream
from slipstream.cli import main
from tests.cli.forked_commands import ForkedCommands
from tests.cli.test_bad_input import SLIPSTREAM, slipstream_command
from tests.conftest import small_model


@pytest.mark.parametrize("command", [[], ["tune"]], ids=["slipstream", "tune"])
def test_help_is_instant(command: list[str], tmp_path: Path) -> None:
    """In processor time of the command: how long it waits for a core is not its own doing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = slipstream_command(*command, "--help", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert "Usage: slipstream" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_help(command: str) -> None:
    done = CliRunner().invoke(main, [command, "--help"], prog_name="slipstream")
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: slipstream {command} ")


def test_runs_as_a_module(tmp_path: Path) -> None:
    command = [SLIPSTREAM[0], "-m", "slipstream", "tune", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("Usage: slipstream tune ")


def test_no_command_imports_numpy_or_tvm_before_it_runs() -> None:
    script = "import sys, slipstream.cli; print([m for m in ('tvm', 'numpy', 'onnx', 'rich') if m in sys.modules])"
    done = subprocess.run([SLIPSTREAM[0], "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compile_run_and_bench(tmp_path: Path, forked_command: ForkedCommands) -> None:
    done = slipstream_command("compile", "zoo:tiny_cnn", "-o", "tiny", "--explain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verified against onnxruntime" in done.stdout
    assert "fold constants" in done.stdout
    assert done.stderr == ""

    x = np.random.default_rng(3).standard_normal((1, 3, 32, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = forked_command("run", "tiny", "--input", "x.npy", "--output", "y.npz", cwd=tmp_path)
    assert "logits: float32[1, 10]" in done.stdout
    assert done.stderr == ""
    with np.load(tmp_path / "y.npz") as saved:
        np.testing.assert_array_equal(saved["logits"], slipstream.load(tmp_path / "tiny")(x)["logits"])

    done = forked_command("bench", "tiny", "--against", "onnxruntime", "--seconds", "0.4", "--json", cwd=tmp_path)
    parts = json.loads(done.stdout)["parts"]
    assert [part["pattern"]["pause"] for part in parts] == [0.0, 0.02]
    for part in parts:
        assert [timing["name"] for timing in part["timings"]] == ["slipstream", "onnxruntime"]
        for timing in part["timings"]:
            assert timing["low"] <= timing["median"] <= timing["high"]
            assert timing["median"] <= timing["p90"] <= timing["p99"]
            assert min(timing["requests_per_second"], timing["processor_seconds"]) > 0
        (ratio,) = part["ratios"]
        assert ratio["low"] <= ratio["median"] <= ratio["high"]


def test_random_inputs_are_seeded(tiny_artifact: Path, tmp_path: Path, forked_command: ForkedCommands) -> None:
    def outputs(seed: str) -> str:
        done = forked_command("run", str(tiny_artifact), "--random", "--seed", seed, cwd=tmp_path)
        return done.stdout.splitlines()[1]

    assert outputs("1") == outputs("1") != outputs("2")


def test_operators_as_table_and_json(tmp_path: Path, forked_command: ForkedCommands) -> None:
    (tmp_path / "m.onnx").write_bytes(small_model().SerializeToString())
    table = forked_command("operators", "m.onnx", cwd=tmp_path)
    assert "conv2d 1x1 3→4 8x8 + relu" in table.stdout
    rows = json.loads(forked_command("operators", "m.onnx", "--json", cwd=tmp_path).stdout)
    (convolution,) = [row for row in rows if row["name"].startswith("conv2d")]
    assert convolution["weight"] == 1
    assert convolution["key"] in table.stdout


def test_explain_without_a_model_prints_the_recipe(tmp_path: Path, forked_command: ForkedCommands) -> None:
    done = forked_command("compile", "--explain", cwd=tmp_path)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()][:3] == ["pass", "batch", "decompose"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str, tmp_path: Path) -> None:
    done = slipstream_command("completion", shell, cwd=tmp_path)
    assert "_SLIPSTREAM_COMPLETE" in done.stdout


def test_completion_offers_commands_and_zoo_names(tmp_path: Path) -> None:
    def complete(words: str, position: int) -> str:
        completing = {"_SLIPSTREAM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        environment = {**os.environ, **completing}
        return subprocess.run(
            SLIPSTREAM, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
        ).stdout

    assert "compile" in complete("slipstream comp", 1)
    assert "zoo:resnet18" in complete("slipstream compile zoo:res", 2)


def test_shape_and_constant_fix_what_is_dynamic(tmp_path: Path, forked_command: ForkedCommands) -> None:
    (tmp_path / "m.onnx").write_bytes(small_model(width="w").SerializeToString())
    done = forked_command("compile", "m.onnx", "-o", "out", "--shape", "x=2x3x8x5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert slipstream.load(tmp_path / "out").inputs[0].shape == (2, 3, 8, 5)
    asked = ["--against", "onnxruntime", "--pause", "5ms", "--callers", "2", "--seconds", "0.2"]
    done = forked_command("bench", "out", *asked, cwd=tmp_path)
    title, heading, ours, theirs = done.stdout.strip().splitlines()
    assert title.rstrip().endswith("after a pause of 5 ms, 2 callers")
    assert "p50 ms" in heading
    assert ours.startswith("slipstream ")
    assert theirs.startswith(("onnxruntime (spinning)", "onnxruntime (no spinning)"))
    assert "as fast" in theirs
