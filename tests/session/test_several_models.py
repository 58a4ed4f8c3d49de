"""Several models in one session: one set of operators, one loop, an artifact each, figures for each."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.artifact.bench import BACK_TO_BACK, BenchResult
from slipstream.artifact.comparison import Part
from slipstream.artifact.latency_statistics import Ratio
from slipstream.cli import main
from slipstream.errors import ArtifactError, ModelError, SlipstreamError
from slipstream.frontends.inputs import random_inputs
from slipstream.report.page import report_page
from slipstream.report.view import session_structure
from slipstream.session.benchmark import keep_benchmark
from slipstream.session.directory import SessionDirectory, SessionDirectoryError
from slipstream.session.events import Event, Snapshot
from slipstream.session.model_names import ModelNameError
from slipstream.session.state_names import FAMILIES
from slipstream.session.status import state_of
from slipstream.session.stored_history import StoredHistory
from slipstream.store import Store
from tests.session.synthetic import SyntheticMeasurer

NAMES = ("first", "second")


def convolutions(*widths: int, batch: int | str = 1, seed: int = 0) -> onnx.ModelProto:
    """A 1x1 convolution with ReLU of an input of each width, each with an output of its own."""
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal((4, 3, 1, 1)).astype(np.float32) for _ in widths]
    nodes = [
        node
        for n in range(len(widths))
        for node in (
            helper.make_node("Conv", [f"x{n}", f"w{n}"], [f"c{n}"], kernel_shape=[1, 1]),
            helper.make_node("Relu", [f"c{n}"], [f"y{n}"]),
        )
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [
            helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [batch, 3, 8, width])
            for n, width in enumerate(widths)
        ],
        [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, None) for n in range(len(widths))],
        [numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tune(models: Any, output: Path, **options: Any) -> slipstream.TuningResult:
    """Compiled and verified for real; only times are made up."""
    given = {"trials": 12, "effort": "quick", "search": "random", "measurer": lambda context: SyntheticMeasurer()}
    return slipstream.tune(models, output, **given | options)


def resume(output: Path, **options: Any) -> slipstream.TuningResult:
    return slipstream.resume(output, measurer=lambda context: SyntheticMeasurer(), **options)


def state(folder: Path) -> str:
    directory = SessionDirectory.read(folder)
    with Store.open(directory.store, read_only=True) as store:
        return state_of(store, store.session(directory.session))


def assert_as_onnxruntime(folder: Path, files: Iterable[Path]) -> None:
    """Each artifact in the folder computes what ONNX Runtime does from the file of that name."""
    for file in files:
        with slipstream.load(folder / file.stem) as compiled:
            feed = random_inputs(compiled.inputs, np.random.default_rng(5))
            expected = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, feed)
            for output, want in zip(compiled.outputs, expected, strict=True):
                np.testing.assert_allclose(compiled(feed)[output.name], want, rtol=1e-4, atol=1e-5)
            assert compiled.manifest.verification is not None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The second model has the first one's operator, and a larger one of the same kind."""
    folder = tmp_path_factory.mktemp("models")
    paths = [folder / f"{name}.onnx" for name in NAMES]
    onnx.save(convolutions(8), paths[0])
    onnx.save(convolutions(8, 32, seed=1), paths[1])
    return paths


@pytest.fixture(scope="module")
def models(files: list[Path]) -> dict[str, slipstream.Model]:
    """The same, read once."""
    return {file.stem: slipstream.load_model(file) for file in files}


@pytest.fixture(scope="module")
def tuned(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> slipstream.TuningResult:
    return tune(files, tmp_path_factory.mktemp("several") / "out", weights={"first": 3})


def test_an_operator_that_models_have_in_common_is_tuned_once_and_counts_for_each(tuned: Any) -> None:
    directory = SessionDirectory.read(tuned.directory)
    with Store.open(directory.store, read_only=True) as store:
        stored = StoredHistory.of(store, directory.session)
    operators, calls = stored.history.operators, tuned.snapshot.calls
    assert list(calls) == list(NAMES)
    first, second = map(set, calls.values())
    assert first < second == set(operators)
    for key, operator in operators.items():
        assert operator.weight == 3 * calls["first"].get(key, 0) + calls["second"][key]
    convolutions = {key for key, operator in operators.items() if "conv2d" in operator.name}
    assert (len(convolutions & first), len(convolutions)) == (1, 2)
    assert any(convolutions <= set(family["similarity"]) for family in stored.saved[FAMILIES])


def test_each_model_has_an_artifact_that_computes_what_onnxruntime_does(tuned: Any, files: list[Path]) -> None:
    assert_as_onnxruntime(tuned.directory, files)
    assert [model.directory for model in tuned.models] == [tuned.directory / name for name in NAMES]
    found = {path.name for path in tuned.directory.iterdir()} - {"store.db-wal", "store.db-shm"}
    assert found == {"first", "second", "session.json", "store.db"}


def test_the_sums_are_those_of_the_models_as_often_as_they_count(tuned: Any) -> None:
    assert [(model.name, model.weight) for model in tuned.models] == [("first", 3), ("second", 1)]
    for whole in ("start_latency", "latency", "end_to_end"):
        parts = sum(model.weight * getattr(model, whole) for model in tuned.models)
        assert parts == pytest.approx(getattr(tuned, whole))
    assert [row.end_to_end for row in tuned.shapes] == [model.end_to_end for model in tuned.models]
    assert str(tuned).startswith("first + second: ")


def test_status_and_report_show_each_model(tuned: Any) -> None:
    said = CliRunner().invoke(main, ["status", str(tuned.directory)]).output
    assert all(str(tuned.directory / name) in said.replace("\n", "") for name in NAMES)
    status = json.loads(CliRunner().invoke(main, ["status", "--json", str(tuned.directory)]).output)
    structure = session_structure(tuned.directory)
    for rows in (status["shapes"], structure["shapes"]):
        assert [(row["shape"], row["weight"]) for row in rows] == [("first", 3), ("second", 1)]
        assert [row["latency"] for row in rows] == pytest.approx([model.latency for model in tuned.models])
    assert structure["session"]["models"] == list(NAMES)
    assert {len(operator["callers"]) for operator in structure["operators"]} == {1, 2}
    assert {spec["name"] for spec in structure["environment"]["inputs"]} == {"first x0", "second x0", "second x1"}
    assert len(structure["environment"]["verification"]["outputs"]) == 3
    assert "first + second" in report_page(structure)


def test_a_benchmark_of_one_is_in_the_report(tuned: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(tuned.directory, tmp_path / "out")
    part = Part(BACK_TO_BACK, (), (Ratio("onnxruntime", 1.5, 1.4, 1.6),))
    keep_benchmark(folder / "second", [BenchResult("second", 2, (part,))])
    first, second = session_structure(folder)["shapes"]
    assert (first["ratios"], [ratio["median"] for ratio in second["ratios"]]) == ([], [1.5])


def test_the_folder_itself_is_no_model(tuned: Any) -> None:
    with pytest.raises(ArtifactError, match=r"give .*first or .*second"):
        slipstream.load(tuned.directory)


def test_it_goes_on_with_all_models(tuned: Any, models: Any, files: list[Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tuned.directory, tmp_path / "out")
    again = resume(folder, trials=4, model=models)
    assert again.trials == tuned.trials + 4
    assert [model.weight for model in again.models] == [3, 1]
    assert_as_onnxruntime(folder, files)
    assert all(slipstream.load(folder / name).manifest.tuned["trials"] == again.trials for name in NAMES)


def test_a_model_that_has_changed_is_named_and_nothing_is_lost(tuned: Any, models: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(tuned.directory, tmp_path / "out")
    with pytest.raises(SlipstreamError, match=r"second: .*is not the model this session was started with"):
        resume(folder, trials=2, model={"first": models["first"], "second": models["first"]})
    assert state(folder) == "finished"
    with pytest.raises(
        SlipstreamError, match=r"model is a mapping from their names \(first, second\), not for 'third'"
    ):
        resume(folder, trials=2, model={"third": models["first"]})


@pytest.mark.usefixtures("ordinary_signals")
def test_all_that_can_be_is_compiled_when_interrupted_and_one_cannot_be(
    models: Any, files: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"

    def interrupt(event: Event, snapshot: Snapshot) -> None:
        if event.kind == "slot":
            (folder / "first").write_text("a file where the artifact should go")
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(ArtifactError, match=r"^first: .* is a file"):
        tune(models, folder, callbacks=[interrupt])
    assert_as_onnxruntime(folder, files[1:])
    assert state(folder) == "interrupted"
    (folder / "first").unlink()
    again = resume(folder, model=models)
    assert (again.reason, again.trials) == ("all trials are used", 12)
    assert_as_onnxruntime(folder, files)


def test_each_model_has_its_own_shapes_and_inputs(tmp_path: Path) -> None:
    onnx.save(convolutions(8, batch="batch"), tmp_path / "net.onnx")
    models = dict.fromkeys(("grows", "fixed"), tmp_path / "net.onnx")
    data = {"x0": np.full((1, 3, 8, 8), 0.5, np.float32)}
    options: dict[str, Any] = {"shapes": {"grows": {"x0": "1,2x3x8x8"}}, "pad": True, "input_data": {"fixed": data}}
    result = tune(models, tmp_path / "out", trials=6, **options)
    assert [row.shape for row in result.shapes] == ["grows 1x3x8x8", "grows 2x3x8x8", "fixed"]
    assert result.models[0].latency == pytest.approx(sum(row.latency for row in result.shapes[:2]))
    again = resume(tmp_path / "out", trials=2)
    loaded = [slipstream.load(model.directory) for model in again.models]
    assert [len(model.shapes) for model in loaded] == [2, 1]
    assert [model.manifest.pad for model in loaded] == [True, False]
    assert [bool(model.manifest.input_data) for model in loaded] == [False, True]


@pytest.mark.slow
def test_each_model_is_rebuilt_from_its_own_lock_file(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    result = tune(files, tmp_path / "out", lock=tmp_path / "locks", weights={"first": 5})
    for file, model in zip(files, result.models, strict=True):
        lock = tmp_path / "locks" / f"{file.stem}.lock"
        rebuilt = slipstream.compile(file, tmp_path / file.stem, lock=lock)
        assert rebuilt.manifest.tuned["programs"] == slipstream.load(model.directory).manifest.tuned["programs"]
        locked = json.loads(lock.read_text())["operators"]
        calls = result.snapshot.calls[file.stem]
        assert {key: operator["calls"] for key, operator in locked.items()} == calls


def test_what_is_wrong_with_the_models_is_said_before_anything_is_written(files: list[Path], tmp_path: Path) -> None:
    out, broken = tmp_path / "out", tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    (tmp_path / "first.onnx").write_bytes(files[0].read_bytes())
    refused: list[tuple[Any, dict[str, Any], type[SlipstreamError], str]] = [
        ([files[0], tmp_path / "first.onnx"], {}, ModelNameError, "two models are called 'first'.*NAME=.*first.onnx"),
        ({"model": files[0]}, {}, ModelNameError, "cannot be called 'model'"),
        ({"a/b": files[0]}, {}, ModelNameError, "cannot be called 'a/b'"),
        ([], {}, SlipstreamError, "give at least one"),
        ([files[0], object()], {}, SlipstreamError, r"one of the models \(object\) .* a mapping"),
        ([files[0], broken], {}, ModelError, "^broken: "),
        ([files[0], tmp_path / "nowhere.onnx"], {}, ModelError, r"nowhere\.onnx"),
        (files, {"weights": {"third": 2}}, SlipstreamError, r"weights is a mapping.*\(first, second\).*'third'"),
        (files, {"weights": {"first": 0}}, SlipstreamError, "a weight of 0 for first.*a whole number from 1"),
        (files, {"weights": {"first": 0.5}}, SlipstreamError, "a weight of 0.5 for first"),
        (files[0], {"weights": {"first": 2}}, SlipstreamError, "weights are for several models"),
        (files, {"shapes": {"x0": [1, 3, 8, 8]}}, SlipstreamError, "shapes is a mapping from their names"),
        (files, {"shapes": {"first": {"x0": "1,axb"}}}, SlipstreamError, "^first: "),
        (files, {"pad": True}, SlipstreamError, "--pad needs several shapes"),
        (files, {"lock": tmp_path / "nothing"}, SlipstreamError, "--lock is a folder"),
    ]
    for models, options, error, said in refused:
        with pytest.raises(error, match=said):
            tune(models, out, **options)
    assert not out.exists()
    out.mkdir()
    (out / "first").mkdir()
    with pytest.raises(SessionDirectoryError, match="is not empty"):
        tune(files, out)
