"""ONNX Runtime with exact sums of integers, whatever this CPU's instructions are."""

from __future__ import annotations

from typing import Any

# Weights of signed bytes are made unsigned where the CPU's instruction would cut off sums of two products at 16 bits:
# x86-64 without VNNI. Without effect elsewhere.
_EXACT = "session.x64quantprecision"


def plain_session(model: str | bytes, options: Any, **arguments: Any) -> Any:
    """An `onnxruntime.InferenceSession` on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], **arguments)


def exact_session(model: str | bytes, options: Any, **arguments: Any) -> Any:
    """The same with exact sums.

    ONNX Runtime fails to make weights unsigned that two operators share; then its sums are as they are by default.
    """
    options.add_session_config_entry(_EXACT, "1")
    try:
        return plain_session(model, options, **arguments)
    except Exception:
        options.add_session_config_entry(_EXACT, "0")
        return plain_session(model, options, **arguments)
