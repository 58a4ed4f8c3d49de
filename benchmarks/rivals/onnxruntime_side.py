"""ONNX Runtime with all graph optimisations; its variants differ in spinning, executor and block size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.rivals.contender import Run, feeds, wanted

_VARIANTS = ("as it comes", "no spinning", "parallel executor", "dynamic blocks")


def environment(threads: int) -> dict[str, str]:
    return {}


def variants(side: str, job: Mapping[str, Any]) -> dict[str, Run]:
    import onnxruntime

    values = feeds(job)

    def prepared(variant: str) -> Run:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = job["threads"]
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        if variant == "no spinning":
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if variant == "parallel executor":
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = job["threads"]
        if variant == "dynamic blocks":
            options.add_session_config_entry("session.dynamic_block_base", "4")
        # It merges a padding by zeros into a MaxPool, which pads by minus infinity: a wrong result.
        session = onnxruntime.InferenceSession(
            job["model"], options, providers=["CPUExecutionProvider"], disabled_optimizers=["Pad_Fusion"]
        )
        names = [value.name for value in session.get_inputs()]
        return lambda: session.run(None, {name: values[name] for name in names})

    return {variant: prepared(variant) for variant in wanted(job, _VARIANTS)}
