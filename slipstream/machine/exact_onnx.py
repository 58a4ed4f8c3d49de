"""ONNX Runtime with exact sums of integers, whatever this CPU's instructions are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

# Weights of signed bytes are made unsigned where the CPU's instruction would cut off sums of two products at 16 bits:
# x86-64 without VNNI. Without effect elsewhere.
_EXACT = "session.x64quantprecision"


def cpu_session(model: str | bytes, options: Any, *, exact: bool = True, **arguments: Any) -> Any:
    """An `onnxruntime.InferenceSession` on the CPU.

    ONNX Runtime fails to make weights unsigned that two operators share; then its sums are as they are by default.
    """
    import onnxruntime

    def opened(setting: str) -> Any:
        options.add_session_config_entry(_EXACT, setting)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"], **arguments)

    if exact:
        with suppress(Exception):
            return opened("1")
    return opened("0")
