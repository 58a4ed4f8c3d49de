"""Architectures nobody here wrote: the `light_*` files of the onnx package, with real numbers for weights.

As shipped their weights are made by ConstantOfShape and all alike, so a match would prove little.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import slipstream
from slipstream.frontends.onnx_import import clean_onnx

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def with_random_weights(path: Path) -> onnx.ModelProto:
    """The model with its constants folded and every weight drawn afresh, at a scale that keeps signals alive."""
    reference, _ = clean_onnx(path, {}, {})
    model = onnx.load(str(reference.clean_path))
    rng = np.random.default_rng(5)
    for tensor in model.graph.initializer:
        old = onnx.numpy_helper.to_array(tensor)
        if old.dtype != np.float32:
            continue
        if old.ndim > 1:
            new = rng.standard_normal(old.shape) * np.sqrt(2.0 / np.prod(old.shape[1:]))
        else:
            new = rng.uniform(0.5, 1.5, old.shape)
        tensor.CopyFrom(onnx.numpy_helper.from_array(new.astype(np.float32), tensor.name))
    return model


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_compiles_and_matches(name: str, tmp_path: Path) -> None:
    model = with_random_weights(LIGHT / f"light_{name}.onnx")
    result = slipstream.compile(model, tmp_path / name)
    assert result.verification is not None
    assert all(not report.skipped for report in result.passes), "NHWC has to work on all of these"
    (output,) = slipstream.load(tmp_path / name)(np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("f"))
    assert output.std() > 0


def test_as_shipped(tmp_path: Path) -> None:
    result = slipstream.compile(LIGHT / "light_squeezenet.onnx", tmp_path / "out")
    assert result.manifest.model == "light_squeezenet"
    assert len(result.manifest.inputs) == 1, "weights listed as inputs are not inputs"
