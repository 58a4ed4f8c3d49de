"""An exported model: built by the system's compiler, run without Python, the same results."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import slipstream
from slipstream.artifact import write
from slipstream.cli import main
from slipstream.errors import ArtifactError
from slipstream.frontends.inputs import TensorSpec
from slipstream.machine.target import cpuinfo_words
from slipstream.runtime.source import header, symbol_prefix


@pytest.fixture
def bundle(artifact: Path, tmp_path: Path) -> Path:
    done = CliRunner().invoke(main, ["export", str(artifact), "-o", str(tmp_path / "bundle")])
    assert done.exit_code == 0, done.output
    return tmp_path / "bundle"


def _run(program: Path, bundle: Path, artifact: Path) -> None:
    image = np.random.default_rng(3).standard_normal((1, 3, 32, 32)).astype(np.float32)
    (bundle / "image.bin").write_bytes(image.tobytes())
    done = subprocess.run([str(program), "image.bin"], cwd=bundle, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    with slipstream.load(artifact) as model:
        np.testing.assert_array_equal(np.fromfile(bundle / "output-0.bin", np.float32), model(image)[0].ravel())


def test_built_with_the_systems_compiler(bundle: Path, artifact: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-std=c11", "main.c", "-L.", "-ltiny_cnn", "-Wl,-rpath,$ORIGIN"]
    done = subprocess.run([*command, "-o", "main"], cwd=bundle, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _run(bundle / "main", bundle, artifact)


def test_built_with_cmake(bundle: Path, artifact: Path) -> None:
    if not shutil.which("cmake") or not shutil.which("cc"):
        pytest.skip("needs cmake and a C compiler")
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        assert subprocess.run(command, cwd=bundle, capture_output=True).returncode == 0
    assert str(bundle / "libtiny_cnn.so").encode() not in (bundle / "build" / "main").read_bytes()
    _run(bundle / "build" / "main", bundle, artifact)


@pytest.mark.parametrize("name", ["timer", "features", "main"])
def test_models_whose_names_the_system_has_too(name: str, tmp_path: Path) -> None:
    if not shutil.which("cmake") or not shutil.which("cc"):
        pytest.skip("needs cmake and a C compiler")
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 64]) for name in "xy")
    graph = helper.make_graph(nodes, name, [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / f"{name}.onnx"
    )
    slipstream.compile(tmp_path / f"{name}.onnx", tmp_path / "out")
    slipstream.export(tmp_path / "out", tmp_path / "bundle")
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"], ["build/main"]):
        done = subprocess.run(command, cwd=tmp_path / "bundle", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_processor_that_lacks_a_feature_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the library itself, which needs no Python: this one asks for a feature that no processor has."""
    monkeypatch.setattr(write, "cpuinfo_words", lambda features: [*cpuinfo_words(features), "sse99"])
    with pytest.raises(ArtifactError, match="this processor lacks sse99, which the model was compiled for"):
        slipstream.compile("zoo:tiny_cnn", tmp_path / "out")


def test_a_directory_in_use_is_left_alone(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ArtifactError, match="not an empty directory"):
        slipstream.export(artifact, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_header_with_odd_names_and_with_ranges() -> None:
    ids = TensorSpec('a */ b\n"c"', (1, 4), "int64", 30)
    text = header("m", (ids,), (TensorSpec("out", (1,), "float32"),))
    assert '   input 0: a * / b "c": int64[1x4], from -30 to 29\n' in text
    assert text.count("*/") == text.count("/*")


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("ResNet-18", "resnet_18"),
        ("3d", "model_3d"),
        ("m", "model_m"),
        ("linux", "model_linux"),
        ("timer", "model_timer"),  # timer_create
        ("features", "model_features"),  # features.h
        ("main", "model_main"),
        ("domain", "domain"),
    ],
)
def test_prefixes_are_identifiers_and_no_names_of_the_system(name: str, prefix: str) -> None:
    assert symbol_prefix(name) == prefix
