"""Architectures nobody here wrote: the `light_*` files of the onnx package, with real numbers for weights.

As shipped their weights are made by ConstantOfShape and all alike, so a match would prove little.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import slipstream
from benchmarks.rivals.models import light_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def test_compiles_and_matches(tmp_path: Path) -> None:
    """ShuffleNet has what others lack: grouped convolutions and channels that change places."""
    result = slipstream.compile(light_model("light_shufflenet"), tmp_path / "out")
    assert result.verification is not None
    assert all(not report.skipped for report in result.passes), "NHWC has to work on it"
    (output,) = slipstream.load(tmp_path / "out")(
        np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("f")
    )
    assert output.std() > 0


def test_as_shipped() -> None:
    model = slipstream.load_model(LIGHT / "light_squeezenet.onnx")
    assert model.name == "light_squeezenet"
    assert len(model.inputs) == 1, "weights listed as inputs are not inputs"
