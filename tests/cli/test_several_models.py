"""`slipstream tune` with several models, as it is typed, and the example of docs/several-models.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.cli.forked_commands import ForkedCommands
from tests.conftest import small_model

PAGE = (Path(__file__).parents[2] / "docs" / "several-models.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    onnx.save(small_model(batch=1), folder / "narrow.onnx")
    onnx.save(small_model(width=32), folder / "wide.onnx")
    return folder


def test_tune_status_run_and_bench(folder: Path, forked_command: ForkedCommands) -> None:
    asked = ("narrow.onnx", "w=wide.onnx", "--shape", "w:x=1x3x8x32", "--weight", "narrow.onnx=2", "--trials", "6")
    done = forked_command("tune", *asked, "-o", "out", "--effort", "quick", "--plain", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"narrow [\d.]+ .s \([\d.]+x\), w [\d.]+ .s", done.stdout)
    assert re.search(r"^model +weight +operators, start +best +gain +whole model", done.stdout, re.MULTILINE)
    assert "the compiled models are in out/narrow, out/w\n" in done.stdout
    assert "slipstream bench out/narrow --against onnxruntime" in done.stdout
    assert "ran wide in" in forked_command("run", "out/w", "--random", cwd=folder).stdout
    timed = forked_command("bench", "out/w", "--pause", "0", "--seconds", "0.2", "--json", cwd=folder)
    assert json.loads(timed.stdout)["model"] == "wide"
    assert (folder / "out" / "bench-w.json").is_file()
    for command in ("run", "bench"):
        done = forked_command(command, "out", *(["--random"] if command == "run" else []), cwd=folder)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "give out/narrow or out/w" in done.stderr
    assert "finished; the compiled models: " in forked_command("status", "out", cwd=folder).stdout


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("narrow.onnx", "./narrow.onnx"), "two models are called 'narrow'"),
        (("narrow.onnx", "nowhere.onnx"), "nowhere: there is no file nowhere.onnx"),
        (("narrow.onnx", "wide.onnx", "--shape", "x=1x3x8x8"), "write narrow:x=1x3x8x8"),
        (("narrow.onnx", "wide.onnx", "--weight", "wider=2"), "--weight 'wider=2' is for none of the models"),
        (("narrow.onnx", "wide.onnx", "--weight", "wide=x"), "a whole number from 1, as in wide=3"),
        (("narrow.onnx", "--weight", "narrow=2"), "--weight is for several models"),
        (("narrow.onnx", "wide.onnx", "--dtype", "int8"), "slipstream quantize MODEL"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    folder: Path, forked_command: ForkedCommands, asked: tuple[str, ...], said: str
) -> None:
    done = forked_command("tune", *asked, "-o", "refused", "--trials", "4", cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert not (folder / "refused").exists()


@pytest.mark.slow
def test_resume(folder: Path, forked_command: ForkedCommands) -> None:
    done = forked_command("tune", "narrow.onnx", "zoo:tiny_cnn", "--trials", "6", "-o", "again", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = forked_command("resume", "again", "--trials", "12", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert [(model["name"], model["weight"]) for model in last["models"]] == [("narrow", 1), ("tiny_cnn", 1)]
    assert [row["shape"] for row in last["snapshot"]["shapes"]] == ["narrow", "tiny_cnn"]


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(example.replace('budget="1h"', "trials=20"), found)
    assert [model.name for model in found["result"].models] == ["small", "large"]
    assert found["logits"].shape == (4, 10)
