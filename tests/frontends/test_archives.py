"""Arrays in files: names that NumPy's own functions cannot take, and types that they do not know."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import slipstream
from slipstream.artifact.loaded import example_inputs
from slipstream.cli import main
from slipstream.cli.options import read_arrays
from slipstream.frontends.archives import read_archive, write_archive
from slipstream.session.directory import SessionDirectory

NAMES = ("file", "allow_pickle", "args")


def _sum() -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in NAMES]
    output = helper.make_tensor_value_info("kwds", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("Sum", list(NAMES), ["kwds"])], "sum", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_model_whose_inputs_are_named_as_numpys_arguments(tmp_path: Path) -> None:
    given = {name: np.full((2, 3), n, np.float32) for n, name in enumerate(NAMES)}
    result = slipstream.compile(_sum(), tmp_path / "out", input_data=given)
    for name, array in example_inputs(tmp_path / "out", result.manifest).items():
        np.testing.assert_array_equal(array, given[name])
    write_archive(tmp_path / "given.npz", given)
    save = ["--input", str(tmp_path / "given.npz"), "--output", str(tmp_path / "result")]
    done = CliRunner().invoke(main, ["run", str(tmp_path / "out"), *save], catch_exceptions=False)
    assert f"saved {tmp_path / 'result.npz'}" in done.output
    np.testing.assert_array_equal(read_archive(tmp_path / "result.npz")["kwds"], np.full((2, 3), 3))
    folder = SessionDirectory(tmp_path, tmp_path / "store.db", "1")
    folder.keep_inputs(given)
    assert (folder.read_inputs() or {}).keys() == given.keys()


@pytest.mark.parametrize(
    "write", [write_archive, lambda path, arrays: np.savez(path, **arrays)], ids=["ours", "numpys"]
)
def test_types_come_back(write: object, tmp_path: Path) -> None:
    arrays = {
        "short": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
        "scalar": np.array(1.5, ml_dtypes.bfloat16),
        "half": np.ones(3, np.float16),
        "text": np.array(["a", "bc"]),
        "empty": np.empty((0, 2), np.int64),
    }
    write(tmp_path / "a.npz", arrays)  # type: ignore[operator]
    for read in (read_archive, read_arrays):
        found = read(tmp_path / "a.npz")
        assert {name: array.dtype for name, array in found.items()} == {n: a.dtype for n, a in arrays.items()}
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
    np.save(tmp_path / "short.npy", arrays["short"])
    assert read_arrays(tmp_path / "short.npy").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("spoil", [lambda b: b[: len(b) // 2], lambda b: b"PK\3\4" + b[:4]])
def test_a_damaged_archive(spoil: object, tmp_path: Path) -> None:
    write_archive(tmp_path / "a.npz", {"x": np.zeros(100)})
    (tmp_path / "a.npz").write_bytes(spoil((tmp_path / "a.npz").read_bytes()))  # type: ignore[operator]
    with pytest.raises(ValueError, match="zip"):
        read_archive(tmp_path / "a.npz")
    with pytest.raises(slipstream.errors.InputError, match="is not a NumPy file"):
        read_arrays(tmp_path / "a.npz")
