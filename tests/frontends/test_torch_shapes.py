"""PyTorch models for several shapes: a module with example inputs, and programs with dynamic dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slipstream
from slipstream.errors import ShapeError, UnsupportedModelError

torch = pytest.importorskip("torch")
SHAPES = {"x": "2,4x8"}


class Layer(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 6)

    def forward(self, x: Any, scale: Any) -> Any:
        return torch.relu(self.linear(x)) * scale


@pytest.fixture(scope="module")
def layer() -> Any:
    torch.manual_seed(0)
    return Layer().eval()


@pytest.fixture(scope="module")
def program(layer: Any) -> Any:
    example = torch.zeros(2, 8), torch.ones(6)
    return torch.export.export(
        layer, example, dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}, "scale": None}
    )


@pytest.mark.parametrize("kind", [pytest.param("module", marks=pytest.mark.slow), "file"])
def test_one_artifact_for_all_shapes(kind: str, layer: Any, program: Any, tmp_path: Path) -> None:
    if kind == "file":
        torch.export.save(program, str(tmp_path / "layer.pt2"))
    model = layer if kind == "module" else str(tmp_path / "layer.pt2")
    example = (torch.zeros(1, 8), torch.ones(6)) if kind == "module" else None
    slipstream.compile(model, tmp_path / "out", example_inputs=example, shapes=SHAPES, pad=True)
    compiled = slipstream.load(tmp_path / "out")
    for batch in (1, 2, 3, 4):
        x, scale = torch.randn(batch, 8), torch.randn(6)
        with torch.no_grad():
            expected = layer(x, scale).numpy()
        np.testing.assert_allclose(np.from_dlpack(compiled(x, scale)[0]), expected, rtol=1e-4, atol=1e-5)


def test_wrong_shapes_are_refused(layer: Any, program: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"--shape x=\?x8"):
        slipstream.load_model(program)
    with pytest.raises(ShapeError, match="it has x, scale"):
        slipstream.load_model(program, shapes={"z": [2, 8]})
    with pytest.raises(ShapeError, match="3 axes"):
        slipstream.load_model(layer, example_inputs=(torch.zeros(2, 8), torch.ones(6)), shapes={"x": [2, 8, 1]})
    with pytest.raises(ShapeError, match="x=100x8"):
        slipstream.load_model(program, shapes={"x": [100, 8]})
