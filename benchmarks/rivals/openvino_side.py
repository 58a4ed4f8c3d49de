"""OpenVINO's CPU plugin, one request at a time, in float32: left alone it takes bfloat16 where the CPU has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.rivals.contender import ContenderError, Run, feeds, wanted

_VARIANTS = ("as it comes", "threads not pinned")


def environment(threads: int) -> dict[str, str]:
    return {}


def variants(side: str, job: Mapping[str, Any]) -> dict[str, Run]:
    try:
        import openvino
    except ImportError as error:
        raise ContenderError("not installed") from error
    values = feeds(job)
    core = openvino.Core()

    def prepared(variant: str) -> Run:
        settings: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": job["threads"],
        }
        if variant == "threads not pinned":
            settings["ENABLE_CPU_PINNING"] = False
        request = core.compile_model(core.read_model(job["model"]), "CPU", settings).create_infer_request()
        outputs = range(len(request.model_outputs))

        def run() -> list[Any]:
            request.infer(values, share_inputs=True, share_outputs=True)
            return [request.get_output_tensor(n).data for n in outputs]

        return run

    return {variant: prepared(variant) for variant in wanted(job, _VARIANTS)}
