"""`benchmarks.latency --dtype`: tables and figures from raw results, beside those in float32."""

from __future__ import annotations

from benchmarks import latency, short_types

BLOCKS = {"slipstream": 0.010, "slipstream float32": 0.025, "onnxruntime": 0.012, "openvino": 0.008}


def _sides(**failed: str) -> dict[str, object]:
    sides: dict[str, object] = {
        side: {"blocks": [[seconds, seconds * 1.1]], "variant": "", "error": 0.01} for side, seconds in BLOCKS.items()
    }
    return sides | {side: {"blocks": [], "failed": reason} for side, reason in failed.items()}


DATA = {
    "resnet50": {"threads": 2, "budget": "2m", "sides": _sides()},
    "resnet50 int8": {
        "dtype": "int8",
        "model": "resnet50",
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
    assert "| resnet50 | back to back | 10.50 | 2.50 (2.50 - 2.50) | 1.20 (1.20 - 1.20) | 0.80 (0.80 - 0.80) |" in short
    assert "| 1.20 (1.20 - 1.20) | cannot take it |" in short
    assert short_types.markdown({}) == ""


def test_figures_of_short_types_are_beside_those_of_float32() -> None:
    numbers = latency.numbers(DATA)
    assert numbers["models"] == "1"
    assert numbers["int8 resnet50 openvino, back to back"] == "0.80"
    assert numbers["int8 mean slipstream float32, after 20 ms"] == "2.50"
    assert "int8 resnet50 openvino, after 20 ms" not in numbers
