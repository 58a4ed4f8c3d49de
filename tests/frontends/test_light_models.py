"""Architectures nobody here wrote: the `light_*` files of the onnx package, with real numbers for weights.

As shipped their weights are made by ConstantOfShape and all alike, so a match would prove little.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import slipstream
from benchmarks.rivals.models import light_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_compiles_and_matches(name: str, tmp_path: Path) -> None:
    result = slipstream.compile(light_model(f"light_{name}"), tmp_path / name)
    assert result.verification is not None
    assert all(not report.skipped for report in result.passes), "NHWC has to work on all of these"
    (output,) = slipstream.load(tmp_path / name)(np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("f"))
    assert output.std() > 0


def test_as_shipped(tmp_path: Path) -> None:
    result = slipstream.compile(LIGHT / "light_squeezenet.onnx", tmp_path / "out")
    assert result.manifest.model == "light_squeezenet"
    assert len(result.manifest.inputs) == 1, "weights listed as inputs are not inputs"
