"""`slipstream quantize` and `--dtype int8`: ONNX Runtime's quantiser, the error it makes, and layers left in float."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from slipstream.cli import main
from slipstream.errors import InputError, ModelError
from slipstream.frontends.quantize import quantize
from tests.cli.forked_commands import ForkedCommands

Array = np.ndarray[Any, Any]
MODEL = "zoo:tiny_cnn"


@pytest.fixture(scope="module")
def calibration() -> Array:
    return np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def in_float(path: Path) -> set[str]:
    """Layers none of whose inputs comes out of 8 bits."""
    graph = onnx.load(str(path)).graph
    levels = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    weighted = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    return {node.name for node in weighted if node.input[1] not in levels}


def test_errors_of_outputs_and_layers(tmp_path: Path, calibration: Array) -> None:
    np.savez(tmp_path / "data.npz", input=calibration)
    output = tmp_path / "model.onnx"
    arguments = ["quantize", MODEL, "-o", str(output), "--calibration", str(tmp_path / "data.npz"), "--layers"]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert "layers in 8 bits" in result.output
    assert "relative error" in result.output
    assert "Conv_0" in result.output
    assert not in_float(output)


def test_a_layer_is_left_in_float_by_name(tmp_path: Path, calibration: Array) -> None:
    result = quantize(MODEL, tmp_path / "model.onnx", {"input": calibration}, keep_float=["Conv_1"])
    assert in_float(result.path) == {"Conv_1"}
    assert "Conv_1" not in [layer.name for layer in result.layers]


def test_layers_are_left_in_float_until_the_error_is_small(tmp_path: Path, calibration: Array) -> None:
    plain = quantize(MODEL, tmp_path / "all.onnx", {"input": calibration})
    better = quantize(MODEL, tmp_path / "some.onnx", {"input": calibration}, most_error=plain.error * 0.8)
    assert better.error <= plain.error * 0.8
    assert better.kept
    assert in_float(better.path) == set(better.kept)


def test_samples_along_an_axis_of_their_own(tmp_path: Path, calibration: Array) -> None:
    result = quantize(MODEL, tmp_path / "model.onnx", {"input": calibration[:, None]})
    assert result.samples == len(calibration)


def test_batch_norms_are_folded_before_ranges_are_taken(tmp_path: Path, calibration: Array) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> net (float[1,3,32,32] input) => (float[1,4,32,32] output)
        <float[4,3,1,1] w, float[4] scale, float[4] shift, float[4] mean, float[4] variance>
        { y = Conv (input, w)  output = BatchNormalization (y, scale, shift, mean, variance) }"""
    proto, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    del proto.graph.initializer[:]
    for name, shape in {"w": (4, 3, 1, 1), "scale": 4, "shift": 4, "mean": 4, "variance": 4}.items():
        array = rng.uniform(0.5, 2, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, tmp_path / "model.onnx")
    result = quantize(tmp_path / "model.onnx", tmp_path / "int8.onnx", {"input": calibration})
    assert {node.op_type for node in onnx.load(str(result.path)).graph.node} == {
        "Conv",
        "QuantizeLinear",
        "DequantizeLinear",
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "no calibration data"),
        ({"other": np.zeros((1, 3, 32, 32), np.float32)}, "lack the input 'input'"),
        ({"input": np.zeros((1, 3, 8, 8), np.float32)}, "do not fit the input"),
    ],
)
def test_calibration_data_that_do_not_do(tmp_path: Path, data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        quantize(MODEL, tmp_path / "model.onnx", data)


def test_models_that_do_not_do(tmp_path: Path, calibration: Array) -> None:
    with pytest.raises(ModelError, match="no file"):
        quantize(tmp_path / "missing.onnx", tmp_path / "model.onnx", {"input": calibration})
    first = quantize(MODEL, tmp_path / "model.onnx", {"input": calibration})
    with pytest.raises(ModelError, match="quantised already"):
        quantize(first.path, tmp_path / "again.onnx", {"input": calibration})
    with pytest.raises(ModelError, match="no layer 'Conv_9'"):
        quantize(MODEL, tmp_path / "model.onnx", {"input": calibration}, keep_float=["Conv_9"])


def test_quantised_and_compiled_in_one_go(tmp_path: Path, calibration: Array, forked_command: ForkedCommands) -> None:
    np.savez(tmp_path / "data.npz", input=calibration)
    data = ("--calibration", "data.npz")
    done = forked_command("compile", MODEL, "-o", "compiled", "--dtype", "int8", *data, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "layers in 8 bits" in done.stdout
    assert "verified against onnxruntime" in done.stdout
    plain = {"x86_64": "cpu:x86-64", "aarch64": "cpu:generic"}[platform.machine()]
    without = forked_command("compile", "compiled.int8.onnx", "-o", "plain", "--target", plain, cwd=tmp_path)
    assert without.returncode == 0, without.stderr
    assert "no instruction for 8-bit dot products" in without.stdout + without.stderr
    refused = forked_command("compile", MODEL, "-o", "compiled", *data, cwd=tmp_path)
    assert refused.returncode != 0
    assert "add --dtype int8" in refused.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("tune", "-o", "q"), "already holds a session"),
        (("tune", "-o", "new", "--budget", "soon"), "write 5m"),
        (("tune", "-o", "new", "--effort", "heroic"), "there is no effort 'heroic'"),
        (("tune", "-o", "new", "--lock", "q.int8.onnx"), "is no lock file"),
        (("tune", "-o", "."), "is not empty"),
        (("compile", "-o", "q"), "is not empty and not a compiled model"),
        (("compile", "-o", "."), "is not empty and not a compiled model"),
    ],
)
def test_what_is_refused_is_not_quantised_first(
    tmp_path: Path, calibration: Array, forked_command: ForkedCommands, asked: tuple[str, ...], said: str
) -> None:
    """The quantised file may be the model of the session that is there."""
    np.savez(tmp_path / "data.npz", input=calibration)
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "session.json").write_text("{}")
    for name in ("q.int8.onnx", "new.int8.onnx"):
        (tmp_path / name).write_bytes(b"the model of the session")
    command, *options = asked
    done = forked_command(command, MODEL, *options, "--dtype", "int8", "--calibration", "data.npz", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    for name in ("q.int8.onnx", "new.int8.onnx"):
        assert (tmp_path / name).read_bytes() == b"the model of the session"
    assert {path.name for path in tmp_path.iterdir()} == {"data.npz", "q", "q.int8.onnx", "new.int8.onnx"}


def test_the_folder_in_which_one_is(tmp_path: Path, calibration: Array, forked_command: ForkedCommands) -> None:
    np.savez(tmp_path / "data.npz", input=calibration)
    (tmp_path / "here").mkdir()
    data = ("--dtype", "int8", "--calibration", str(tmp_path / "data.npz"))
    done = forked_command("compile", MODEL, "-o", ".", *data, cwd=tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here.int8.onnx").is_file()


def test_a_file_stays_until_the_next_is_finished(
    tmp_path: Path, calibration: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quantize(MODEL, tmp_path / "model.onnx", {"input": calibration}, compare=False)
    content = first.path.read_bytes()

    def fails(*_: object) -> None:
        raise ModelError("it cannot be compared")

    monkeypatch.setattr("slipstream.frontends.quantize._compare", fails)
    with pytest.raises(ModelError, match="cannot be compared"):
        quantize(MODEL, first.path, {"input": 2 * calibration})
    assert first.path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [first.path]
    with pytest.raises(InputError, match=r"no/model\.onnx cannot be written \(No such file or directory\)"):
        quantize(MODEL, tmp_path / "no" / "model.onnx", {"input": calibration}, compare=False)
    with pytest.raises(InputError, match="is a directory"):
        quantize(MODEL, Path("."), {"input": calibration}, compare=False)


def test_lines_of_json_come_alone(tmp_path: Path, calibration: Array, forked_command: ForkedCommands) -> None:
    np.savez(tmp_path / "data.npz", input=calibration)
    asked = ("tune", MODEL, "--dtype", "int8", "--calibration", "data.npz", "--trials", "1", "--effort", "quick")
    done = forked_command(*asked, "-o", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(json.loads(line) for line in done.stdout.splitlines())
    assert "layers in 8 bits" in done.stderr


def test_activations_are_the_bytes_that_the_machine_multiplies(tmp_path: Path, calibration: Array) -> None:
    types = {"signed": onnx.TensorProto.INT8, "unsigned": onnx.TensorProto.UINT8}
    usual = "unsigned" if platform.machine() == "x86_64" else "signed"
    for asked, expected in {"signed": "signed", "unsigned": "unsigned", None: usual}.items():
        result = quantize(MODEL, tmp_path / "model.onnx", {"input": calibration}, activations=asked, compare=False)
        graph = onnx.load(str(result.path)).graph
        zeros = {node.input[2] for node in graph.node if node.op_type == "QuantizeLinear"}
        assert {t.data_type for t in graph.initializer if t.name in zeros} == {types[expected]}
    with pytest.raises(InputError, match="choose from signed, unsigned"):
        quantize(MODEL, tmp_path / "model.onnx", {"input": calibration}, activations="wide")
