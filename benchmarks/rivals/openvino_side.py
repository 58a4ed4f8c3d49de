"""OpenVINO as `slipstream bench` runs it, and the types it computes in, which need not be the one it was asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.rivals.computation import text_of
from slipstream.artifact.baselines import compile_openvino, run_openvino

# Whether pinned threads are faster depends on the model.
SETTINGS: dict[str, dict[str, Any]] = {"as it comes": {}, "threads not pinned": {"ENABLE_CPU_PINNING": False}}
# OpenVINO's names of short types; in 8 bits, what is in none of them is in float32.
HINTS = {"float16": "f16", "bfloat16": "bf16"}
_PRODUCTS = ("Convolution", "GroupConvolution", "MatMul", "FullyConnected")
_FACTS = "computed_in.json"


def open_openvino(job: Mapping[str, Any], feeds: dict[str, Any]) -> Callable[[], list[Any]]:
    options = job["options"]
    compiled = compile_model(options, job["threads"], **SETTINGS[job["setting"]])
    # Not of another setting, whose process may be writing the same.
    unfinished = Path(options["work"], f"{job['setting'].replace(' ', '-')}.unfinished")
    unfinished.write_text(json.dumps(computed_in(compiled)))
    unfinished.rename(Path(options["work"], _FACTS))
    return run_openvino(compiled, feeds)


def compile_model(options: Mapping[str, Any], threads: int, **settings: Any) -> Any:
    """The model of a job in the type of the job."""
    hint = {"INFERENCE_PRECISION_HINT": HINTS.get(options.get("dtype", ""), "f32")}
    return compile_openvino(Path(options["model"]), threads, **hint, **settings)


def computed_in(compiled: Any) -> dict[str, Any]:
    """`hint`: the type that the compiled model says is its own. `products`: how many convolutions and matmuls compute
    in each type."""
    nodes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    kinds = Counter(text_of(node["runtimePrecision"]) for node in nodes if text_of(node["layerType"]) in _PRODUCTS)
    return {"hint": compiled.get_property("INFERENCE_PRECISION_HINT").to_string(), "products": dict(kinds)}


def said_by(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the process of a job found about the types it computes in; nothing from runtimes that do not say."""
    path = Path(options.get("work", ""), _FACTS)
    return {"computed_in": json.loads(path.read_text())} if path.exists() else {}
