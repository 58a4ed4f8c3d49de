"""Commands on models that cannot be compiled as a whole, and on models whose inputs depend on each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.forked_commands import ForkedCommands
from tests.frontends import cut_models


def test_the_command_explains_the_cut_or_refuses_it(tmp_path: Path, forked_command: ForkedCommands) -> None:
    onnx.save(cut_models.top_k(), tmp_path / "m.onnx")
    done = forked_command("compile", "m.onnx", "-o", "out", "--explain", cwd=tmp_path)
    assert "part1  ONNX Runtime  node 'top': TVM cannot import TopK" in done.stdout, done.stderr
    assert "1 of 8 nodes run in ONNX Runtime" in done.stdout
    refused = forked_command("compile", "m.onnx", "-o", "other", "--no-partition", cwd=tmp_path)
    assert refused.returncode == 2
    assert "(node 'top')" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_cut_model_is_tuned_and_resumed_on_the_inputs_given(tmp_path: Path, forked_command: ForkedCommands) -> None:
    """The graph network with its last addition by a tree, so that it is cut as well."""
    proto = cut_models.graph_network()
    proto.graph.node[-1].output[0] = "sums_above_zero"
    proto.graph.node.append(cut_models.tree("forest", "sums_above_zero", "y", 3))
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "inputs.npz", **cut_models.graph_inputs())
    options = ["--trials", "2", "--effort", "quick", "--plain", "--input-data", "inputs.npz"]
    tuned = forked_command("tune", "m.onnx", "-o", "out", *options, cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert "part1, 1 nodes: ONNX Runtime (node 'forest'" in tuned.stdout
    (tmp_path / "inputs.npz").unlink()
    resumed = forked_command(*["resume", "out", "--trials", "1", "--plain"], cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    ran = forked_command(*["run", "out", "--random"], cwd=tmp_path)
    assert "y: float32[4, 3]" in ran.stdout, ran.stderr
    assert "finished" in forked_command("status", "out", cwd=tmp_path).stdout
