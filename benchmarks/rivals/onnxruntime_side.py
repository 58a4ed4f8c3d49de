"""ONNX Runtime with all graph optimisations; its settings differ in spinning, executor and block size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rivals.sides import Run


def settings(side: str, options: Mapping[str, Any]) -> Sequence[str]:
    return ("as it comes", "no spinning", "parallel executor", "dynamic blocks")


def open_side(job: Mapping[str, Any], feeds: dict[str, Any]) -> Run:
    import onnxruntime

    options, setting = onnxruntime.SessionOptions(), job["setting"]
    options.log_severity_level = 4
    options.intra_op_num_threads = job["threads"]
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    if setting == "no spinning":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if setting == "parallel executor":
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = job["threads"]
    if setting == "dynamic blocks":
        options.add_session_config_entry("session.dynamic_block_base", "4")
    # It merges a padding by zeros into a MaxPool, which pads by minus infinity: a wrong result.
    session = onnxruntime.InferenceSession(
        job["options"]["model"], options, providers=["CPUExecutionProvider"], disabled_optimizers=["Pad_Fusion"]
    )
    names = [value.name for value in session.get_inputs()]
    return lambda: session.run(None, {name: feeds[name] for name in names})
