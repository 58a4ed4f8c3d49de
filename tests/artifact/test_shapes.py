"""One artifact for several shapes: each is right, weights are there once, other shapes are filled up or refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.errors import ArtifactError, InputError, ShapeError, VerificationError
from slipstream.frontends.shape_variants import combine
from tests.frontends import cut_models

BATCHES, LENGTHS = (1, 4), (3, 5)


def attention_like(*, masked: bool) -> onnx.ModelProto:
    """A projection, and a mean over positions that is added to each: `mask` says which positions count."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((16, 64)).astype(np.float32), "weight")
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["h"])]
    if masked:
        nodes += [
            helper.make_node("Mul", ["h", "mask"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "axis"], ["sum"], keepdims=1),
        ]
    else:
        nodes += [helper.make_node("ReduceMean", ["h", "axis"], ["sum"], keepdims=1)]
    nodes += [helper.make_node("Add", ["h", "sum"], ["y"]), helper.make_node("Squeeze", ["sum", "axis"], ["pooled"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 16])]
    if masked:
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", "length", 1]))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "pooled")]
    axis = numpy_helper.from_array(np.array([1]), "axis")
    graph = helper.make_graph(nodes, "attention_like", inputs, outputs, [weight, axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: Any) -> tuple[onnx.ModelProto, Path]:
    model, out = attention_like(masked=True), tmp_path_factory.mktemp("shapes") / "out"
    # The mask's dimensions have the names of those of x: they need not be given.
    slipstream.compile(model, out, shapes={"x": "1,4x3,5x16"}, pad=True)
    return model, out


def feed(batch: int, length: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((batch, length, 16)).astype(np.float32),
        "mask": rng.integers(0, 2, (batch, length, 1)).astype(np.float32),
    }


def test_tensors_that_are_filled_up(padded: tuple[onnx.ModelProto, Path]) -> None:
    torch = pytest.importorskip("torch")
    model = slipstream.load(padded[1])
    arrays = feed(3, 5)
    tensors = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in arrays.items()}
    np.testing.assert_array_equal(model(arrays)["y"], np.from_dlpack(model(tensors)["y"]))
    with pytest.raises(InputError, match="memory of input 'x' cannot be read here"):
        model({name: tensor.to("meta") for name, tensor in tensors.items()})


def test_every_shape_up_to_the_largest_computes_what_onnxruntime_computes(padded: tuple[Any, Path]) -> None:
    model, out = padded
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with slipstream.load(out) as compiled:
        assert [shapes["x"][:2] for shapes in compiled.shapes] == [(b, s) for b in BATCHES for s in LENGTHS]
        for batch in range(1, 5):
            for length in range(1, 6):
                given = feed(batch, length)
                for ours, theirs in zip(compiled(given), session.run(None, given), strict=True):
                    assert ours.shape == theirs.shape
                    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_other_shapes_are_refused_with_those_that_are_there(padded: tuple[Any, Path]) -> None:
    _, out = padded
    with slipstream.load(out) as compiled:
        with pytest.raises(InputError, match=r"x 5x3x16, mask 5x3x1; .*x 4x5x16, mask 4x5x1"):
            compiled(feed(5, 3))
        with pytest.raises(InputError, match="x 4x3x15, mask 4x3x1; "):  # an axis that is no list is not filled up
            compiled({**feed(4, 3), "x": np.zeros((4, 3, 15), np.float32)})
        with pytest.raises(InputError, match="2 and 3"):  # x and the mask disagree in what they would be cut back to
            compiled({**feed(2, 3), "x": feed(2, 2)["x"]})
        with pytest.raises(InputError, match="is a list"):
            compiled(x=[1.0], mask=feed(1, 3)["mask"])
        with pytest.raises(InputError, match="float64"):
            compiled(x=np.zeros((4, 3, 16)), mask=feed(4, 3)["mask"])
    with slipstream.load(out, pad=False) as exact:
        assert exact(feed(4, 3))["y"].shape == (4, 3, 64)
        with pytest.raises(InputError, match=r"x 3x3x16, mask 3x3x1;.*--pad"):
            exact(feed(3, 3))


def test_weights_are_stored_once(padded: tuple[Any, Path], tmp_path: Path) -> None:
    model, out = padded
    slipstream.compile(model, tmp_path / "one", shapes={"x": [4, 5, 16]})
    sizes = [(path / "weights.bin").stat().st_size for path in (out, tmp_path / "one")]
    assert 16 * 64 * 4 <= sizes[1] <= sizes[0] < 3 * sizes[1]


def test_padding_that_changes_results_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    model = attention_like(masked=False)
    with pytest.raises(VerificationError, match=r"1x3x16 filled up to 1x5x16 .*another"):
        slipstream.compile(model, tmp_path / "out", shapes={"x": "1x3,5x16"}, pad=True)
    assert not (tmp_path / "out").exists()
    # Rows of a batch do not depend on each other.
    slipstream.compile(model, tmp_path / "out", shapes={"x": "1,2x3x16"}, pad=True)
    with pytest.raises(ShapeError, match="several shapes"):
        slipstream.compile(model, tmp_path / "one", shapes={"x": "1x3x16"}, pad=True)


def test_c_libraries_of_all_shapes(padded: tuple[Any, Path], tmp_path: Path) -> None:
    files = {path.name for path in slipstream.export(padded[1], tmp_path / "c")}
    libraries = sorted(name for name in files if name.startswith("libattention"))
    assert len(libraries) == len(BATCHES) * len(LENGTHS)
    assert {f"{name.removeprefix('lib').removesuffix('.so')}.h" for name in libraries} < files
    subprocess.run(
        ["cc", "main.c", "-o", "main", "-L.", f"-l{libraries[0][3:-3]}", "-lm"], cwd=tmp_path / "c", check=True
    )


def test_models_that_do_not_fit_together_are_refused() -> None:
    one = slipstream.load_model(attention_like(masked=True), shapes={"x": "1x3x16"})
    with pytest.raises(ShapeError, match="same shapes"):
        combine([one, one])
    other = slipstream.load_model(attention_like(masked=False), shapes={"x": "2x3x16"})
    with pytest.raises(ShapeError, match="other inputs"):
        combine([one, other])


@pytest.mark.slow
def test_a_model_that_is_cut_at_each_shape(tmp_path: Path) -> None:
    model = cut_models.nonzero()
    (image,) = model.graph.input
    batch, *extents = image.type.tensor_type.shape.dim
    batch.Clear()
    batch.dim_param = "batch"
    sizes = [dim.dim_value for dim in extents]
    slipstream.compile(model, tmp_path / "out", shapes={image.name: [[1, 2], *sizes]})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with slipstream.load(tmp_path / "out") as compiled:
        assert all(len(own.parts) > 1 for own in compiled.manifest.single_shapes)
        for count in (1, 2):
            given = {image.name: np.random.default_rng(count).standard_normal((count, *sizes)).astype(np.float32)}
            np.testing.assert_allclose(compiled(given)[0], session.run(None, given)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError, match="depends on the data"):
        slipstream.compile(model, tmp_path / "padded", shapes={image.name: [[1, 2], *sizes]}, pad=True)
    with pytest.raises(ArtifactError, match="ONNX Runtime"):
        slipstream.export(tmp_path / "out", tmp_path / "c")


def test_a_damaged_manifest_is_refused(padded: tuple[Any, Path], tmp_path: Path) -> None:
    shutil.copytree(padded[1], tmp_path / "copy")
    file = tmp_path / "copy" / "manifest.json"
    content = json.loads(file.read_text())
    content["variants"][0]["inputs"].pop()
    file.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="compile the model again"):
        slipstream.load(tmp_path / "copy")
