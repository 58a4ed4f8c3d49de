"""Models of compiled parts and parts that ONNX Runtime runs, from compiling to benchmarks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import slipstream
from slipstream.artifact import verify
from slipstream.artifact.bench import BACK_TO_BACK, bench
from slipstream.artifact.manifest import Manifest, Part
from slipstream.artifact.partitioned import PartitionedExecutor
from slipstream.errors import ArtifactError, ModelError, UnsupportedModelError, VerificationError
from slipstream.frontends.inputs import TensorSpec, random_inputs
from slipstream.frontends.model import Model
from slipstream.frontends.output_files import arrays_of
from slipstream.session.asked_models import AskedModel
from tests.frontends import cut_models
from tests.frontends.cut_models import T, node, weight
from tests.gpu import some_gpu

Feed = dict[str, np.ndarray[Any, Any]]


def in_onnxruntime(proto: onnx.ModelProto, feed: Feed) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feed))


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detector")
    onnx.save(cut_models.detector(), folder / "detector.onnx")
    slipstream.compile(folder / "detector.onnx", folder / "out")
    return folder / "out"


@pytest.mark.parametrize(
    "make", [cut_models.nonzero, cut_models.tree_between_matmuls, cut_models.labels], ids=lambda make: make.__name__
)
def test_computes_what_onnxruntime_computes(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    proto = make()
    slipstream.compile(proto, tmp_path / "out")
    with slipstream.load(tmp_path / "out") as model:
        for seed in range(5, 8):
            feed = random_inputs(model.inputs, np.random.default_rng(seed))
            results, expected = model(feed), in_onnxruntime(proto, feed)
            for mine, theirs in zip(map(arrays_of, results), map(arrays_of, expected), strict=True):
                assert len(mine) == len(theirs)
                for one, other in zip(mine, theirs, strict=True):
                    if other.dtype.kind == "f":
                        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
                    else:
                        np.testing.assert_array_equal(one, other)


def test_closing_while_others_call(detector: Path) -> None:
    said: list[str] = []
    for _ in range(20):
        model = slipstream.load(detector, threads=1)
        feed = random_inputs(model.inputs, np.random.default_rng(0))
        expected = model(feed)["found"]

        def call(
            model: slipstream.CompiledModel = model, feed: Feed = feed, expected: np.ndarray[Any, Any] = expected
        ) -> None:
            try:
                while True:
                    np.testing.assert_array_equal(model(feed)["found"], expected)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        model.close()
        for thread in threads:
            thread.join()
    assert said == ["ArtifactError: the model was closed: load it again"] * 60


def test_a_part_that_fails_without_a_word() -> None:
    """As ONNX Runtime's bindings do when memory runs out."""

    class Fails:
        def run(self, values: Feed) -> Feed:
            raise MemoryError

    (spec,) = inputs = (TensorSpec("x", (2,), "float32"),)
    part = Part("part0", "part0.onnx", inputs, inputs)
    model = PartitionedExecutor([(part, Fails())], inputs, inputs)
    with pytest.raises(ArtifactError, match="ONNX Runtime failed in part0 of the model: MemoryError"):
        model(np.zeros(spec.shape, np.float32))


def test_a_result_of_any_size(detector: Path) -> None:
    sizes = set()
    model = slipstream.load(detector)
    assert str(model.outputs[0]) == "found: float32[1x?x4]"
    for seed in range(6):
        feed = random_inputs(model.inputs, np.random.default_rng(seed))
        found, expected = model(feed)["found"], in_onnxruntime(cut_models.detector(), feed)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        sizes.add(found.shape[1])
    assert len(sizes) > 1
    model.close()
    with pytest.raises(ArtifactError, match="closed"):
        model(feed)


def test_the_manifest_names_the_parts(detector: Path) -> None:
    manifest = Manifest.read(detector)
    body, tail = manifest.parts
    assert (body.is_compiled, tail.is_compiled) == (True, False)
    assert {spec.name for spec in body.outputs} == {spec.name for spec in tail.inputs} == {"boxes", "scores"}
    assert tail.reasons == ("node 'nms': the size of a result of NonMaxSuppression depends on the data",)
    assert manifest.verification is not None
    assert [check.name for check in manifest.verification.outputs] == ["found", "scores"]


def test_onnxruntime_is_needed_to_run_and_tvm_is_not(detector: Path) -> None:
    script = (
        "import sys, numpy as np\n"
        "for name in ['onnx', 'tvm', *sys.argv[2:]]:\n"
        "    sys.modules[name] = None\n"
        "import slipstream\n"
        "print(slipstream.load(sys.argv[1])(np.zeros((1, 3, 32, 32), np.float32))[1].shape)\n"
    )

    def run(*missing: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, str(detector), *missing]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run().stdout.strip() == "(1, 2, 1024)"
    assert "4 nodes of this model run in ONNX Runtime, which is not installed" in run("onnxruntime").stderr


def test_a_damaged_part_is_refused(detector: Path, tmp_path: Path) -> None:
    shutil.copytree(detector, tmp_path / "out")
    (tmp_path / "out" / "part1.onnx").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"part1\.onnx has changed"):
        slipstream.load(tmp_path / "out")


def test_it_is_timed_against_onnxruntime_and_not_exported(detector: Path, tmp_path: Path) -> None:
    result = bench(detector, against=["onnxruntime"], seconds=0.1, patterns=[BACK_TO_BACK])
    assert [timing.name for timing in result.parts[0].timings] == ["slipstream", "onnxruntime"]
    with pytest.raises(ArtifactError, match=r"cannot run without ONNX Runtime .*'nms'"):
        slipstream.export(detector, tmp_path / "c")


def test_a_gpu_has_to_have_the_whole_model() -> None:
    with pytest.raises(UnsupportedModelError, match=r"on a GPU a model has to be compiled as a whole: .*'nms'"):
        AskedModel(slipstream.load_model(cut_models.detector()), {}).read(some_gpu())


def test_given_inputs_are_the_only_ones(tmp_path: Path) -> None:
    """Random ones make this model fail, in ONNX Runtime too."""
    proto, feed = cut_models.graph_network(), cut_models.graph_inputs()
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="--input-data"):
        slipstream.compile(tmp_path / "m.onnx", tmp_path / "out")
    result = slipstream.compile(tmp_path / "m.onnx", tmp_path / "out", input_data=feed)
    assert result.verification is not None
    assert result.verification.seeds == 1
    np.testing.assert_allclose(slipstream.load(tmp_path / "out")(feed)[0], in_onnxruntime(proto, feed)[0], atol=1e-5)
    assert bench(tmp_path / "out", against=["onnxruntime"], seconds=0.1, patterns=[BACK_TO_BACK]).parts


def changed_reference(model: Model, optimised: float, plain: float) -> Model:
    """The model with a reference that is off by one factor with its optimisations and by another one without."""

    class Reference:
        name = "onnxruntime"

        def outputs(self, feeds: list[Feed], factor: float = optimised) -> list[list[Any]]:
            return [[value * np.float32(factor) for value in values] for values in model.reference.outputs(feeds)]

        def outputs_without_optimisation(self, feeds: list[Feed]) -> list[list[Any]]:
            return self.outputs(feeds, plain)

    return Model(model.name, model.source, model.module, model.inputs, model.outputs, model.fingerprint, Reference())


def test_as_much_is_allowed_as_the_reference_differs_from_itself(tmp_path: Path) -> None:
    matmul = [node("MatMul", "x w", "y")]
    model = slipstream.load_model(
        cut_models.model(matmul, {"x": (T.FLOAT, [4, 8])}, {"y": T.FLOAT}, {"w": weight(8, 8)})
    )
    result = slipstream.compile(changed_reference(model, 1.0004, 0.9999), tmp_path / "out")
    (check,) = result.verification.outputs if result.verification else ()
    assert 4e-4 < check.tolerance < 6e-4
    (note,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["verification"]["notes"]
    assert note.startswith("output 'y' may differ by 5")
    with pytest.raises(VerificationError):
        slipstream.compile(changed_reference(model, 1.0004, 1.0003), tmp_path / "out")
    with pytest.raises(VerificationError):  # by as much as no rounding makes
        slipstream.compile(changed_reference(model, 1.1, 1.0), tmp_path / "out")


def test_an_inexact_form_is_given_up_for_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd's method rounds to some 5e-6, a direct convolution to 4e-7."""
    convolution = [node("Conv", "x w", "y", pads=[1, 1, 1, 1])]
    image, weights = {"x": (T.FLOAT, [1, 32, 24, 24])}, {"w": weight(32, 32, 3, 3)}
    model = slipstream.load_model(cut_models.model(convolution, image, {"y": T.FLOAT}, weights))
    monkeypatch.setattr(type(model.reference), "outputs_without_optimisation", type(model.reference).outputs)
    monkeypatch.setitem(verify.TOLERANCES, "float32", 1.2e-6)
    result = slipstream.compile(model, tmp_path / "exact")
    assert result.verification is not None
    (note,) = result.verification.notes
    assert note == (
        "computed exactly so that the model passes its check: by Winograd's method no more: conv2d 3x3 32→32 24x24"
    )


def test_places_of_nearly_equal_values_may_differ(tmp_path: Path) -> None:
    """Thousands of sorted values: where two that differ by a rounding change places, the parts are compared instead."""
    model = slipstream.load_model(cut_models.top_k())
    verification = slipstream.compile(model, tmp_path / "out").verification
    assert verification is not None
    checked = {check.name: check for check in verification.outputs}
    assert checked["largest"].max_relative < 1e-5
    if "places" not in checked:
        assert checked["row"].max_relative < 1e-5
        assert "'places'" in verification.notes[0]
    other = cut_models.top_k()
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight(8, 3, 3, 3, seed=9), "w0"))
    wrong = replace(model, parts=(slipstream.load_model(other).parts[0], model.parts[1]))
    with pytest.raises(VerificationError):
        slipstream.compile(wrong, tmp_path / "wrong")
