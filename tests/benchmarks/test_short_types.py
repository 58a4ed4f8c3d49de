"""`benchmarks.latency --dtype`: tables and figures from raw results, beside those in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import latency, short_types
from slipstream.errors import InputError

BLOCKS = {"slipstream": 0.010, "slipstream float32": 0.025, "onnxruntime": 0.012, "openvino": 0.008}


def _sides(**failed: str) -> dict[str, object]:
    sides: dict[str, object] = {
        side: {"blocks": [[seconds, seconds * 1.1]], "variant": "", "error": 0.01} for side, seconds in BLOCKS.items()
    }
    return sides | {side: {"blocks": [], "failed": reason} for side, reason in failed.items()}


DATA = {
    "resnet50": {"threads": 2, "budget": "2m", "sides": _sides()},
    "resnet50 int8 aarch64": {
        "dtype": "int8",
        "model": "resnet50",
        "architecture": "aarch64",
        "threads": 2,
        "budget": "3m",
        "back to back": _sides(),
        "after 20 ms": _sides(openvino="cannot take it: reason"),
    },
}


def test_a_short_type_has_a_table_of_its_own() -> None:
    page = latency.markdown(DATA)
    in_float, _, short = page.partition("## int8")
    assert "| resnet50 | 10.50 |" in in_float
    assert "back to back" not in in_float
    row = "| 2.50 (2.50 - 2.50) | 1.20 (1.20 - 1.20) | 0.80 (0.80 - 0.80) |"
    assert f"| resnet50 | aarch64 | 2 | back to back | 10.50 {row}" in short
    assert "| 1.20 (1.20 - 1.20) | cannot take it |" in short
    assert short_types.markdown({}) == ""


def test_figures_of_short_types_are_beside_those_of_float32() -> None:
    numbers = latency.numbers(DATA)
    assert numbers["models"] == "1"
    assert numbers["int8 resnet50 aarch64 openvino, back to back"] == "0.80"
    assert numbers["int8 mean aarch64 slipstream float32, after 20 ms"] == "2.50"
    assert "int8 resnet50 aarch64 openvino, after 20 ms" not in numbers


def test_sides_without_code_for_8_bits_are_left_out_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["slipstream", "openvino", "torch.compile"]
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert short_types.sides_of("int8", asked) == ["slipstream", "slipstream float32"]
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert short_types.sides_of("int8", asked) == ["slipstream", "slipstream float32", "openvino"]
    assert short_types.sides_of("bfloat16", asked) == ["slipstream", "slipstream float32", "openvino", "torch.compile"]


def test_a_side_that_computes_in_another_type_is_marked() -> None:
    sides = _sides(**{"torch.compile": "no C++ compiler: install g++"})
    asked = {"openvino": {**sides["openvino"], "computed_in": {"hint": "f32", "products": {"f32": 53}}}}  # type: ignore[dict-item]
    result = {**DATA["resnet50 int8 aarch64"], "dtype": "bfloat16", "back to back": sides | asked, "cores": 4}
    page = latency.markdown({"resnet50 bfloat16 on 4 cores": result})
    assert "| 0.80 (0.80 - 0.80) in f32 | no C++ compiler |" in page
    assert "bfloat16 resnet50 aarch64 on 4 cores openvino, back to back" in latency.numbers({"a": result})


def test_frozen_weights_and_autocast_give_nearly_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch side as its process opens it, without compiling, and its settings."""
    torch = pytest.importorskip("torch")
    from torch._inductor import config

    # What the side sets for its process is undone in this one.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    from benchmarks.rivals import torch_side
    from benchmarks.rivals.models import model_files

    files = model_files("tiny_cnn", tmp_path / "files")
    options = {**files, "work": str(tmp_path), "dtype": "bfloat16"}
    assert all(setting.startswith("channels last, frozen") for setting in torch_side.settings("torch.compile", options))
    threads = torch.get_num_threads()
    with np.load(files["feeds"]) as feeds, np.load(files["expected"]) as expected, config.patch(freezing=False):
        job = {"name": "torch", "setting": "channels last", "threads": 1, "options": options}
        (result,) = torch_side.open_torch(job, dict(feeds))()
        torch.set_num_threads(threads)
        error = np.abs(result - expected["arr_0"]).max() / np.abs(expected["arr_0"]).max()
    assert result.dtype == np.float32
    assert 1e-6 < error < 0.05


def test_cores_that_there_are_not_are_refused() -> None:
    with pytest.raises(InputError, match="that may be used"):
        latency.bind(100_000)
