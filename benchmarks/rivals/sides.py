"""The runtimes that are compared, each in a process of its own at the fastest of its settings.

A side is opened by a function that is given the job and inputs and gives one that runs the model once.
`job["options"]` has the model's files (`models.py`), a `work` folder, `artifacts` by side and, of a model in a short
type, its `dtype`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals import iree_side, openvino_side, torch_side
from slipstream.artifact.contender import Contender, Job

# Models that `benchmarks.rivals.tvm_stock` tunes, by TVM's `tune_relax` and by ours.
TUNED_BY_TVM = ("tvm tune_relax", "slipstream.tvm.tune_relax", "slipstream.tvm.Tuned")

Run = Callable[[], Sequence[Any]]


def start(side: str, options: Mapping[str, Any], setting: str | None = None) -> dict[str, Contender]:
    """A process for each of a side's settings, or for one of them."""
    directory = options.get("artifacts", {}).get(side, "")
    how: dict[str, Any] = {"loader": f"{__name__}:load", "options": options}
    return {
        each: Contender(Job(side, each, directory, None, options["feeds"], options["threads"], **how))
        for each in (_settings(side, options) if setting is None else [setting])
    }


def load(job: Mapping[str, Any], feeds: dict[str, Any]) -> Callable[[], tuple[Run, Run]]:
    """In its process: what opens the model."""
    Path(job["options"]["work"]).mkdir(parents=True, exist_ok=True)

    def open_model() -> tuple[Run, Run]:
        if job["name"] not in SIDES:
            return _open_ours(job, feeds)
        run = SIDES[job["name"]](job, feeds)
        return run, run

    return open_model


def _settings(side: str, options: Mapping[str, Any]) -> Sequence[str]:
    if side.startswith("torch"):
        return torch_side.settings(side, options)
    settings = {
        "onnxruntime": ("as it comes", "no spinning", "parallel executor", "dynamic blocks"),
        "openvino": tuple(openvino_side.SETTINGS),
        "iree": tuple(iree_side.SETTINGS),
    }
    return settings.get(side, ("",))


def _open_ours(job: Mapping[str, Any], feeds: dict[str, Any]) -> tuple[Run, Run]:
    """What is timed, on a GPU with inputs and outputs there, and what gives the outputs."""
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    from slipstream.artifact.loaded import load

    compiled = load(job["directory"], threads=job["threads"])

    def run() -> Sequence[Any]:
        return compiled(feeds)

    return (compiled.on_device(feeds) if compiled.manifest.gpu else run), run


def _open_onnxruntime(job: Mapping[str, Any], feeds: dict[str, Any]) -> Run:
    """With all graph optimisations; its settings differ in spinning, executor and block size."""
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


def _open_tvm(job: Mapping[str, Any], feeds: dict[str, Any]) -> Run:
    """Unmodified TVM: its ONNX importer and its own pipeline, without any of Slipstream's preparation.

    The untuned model is built here; the one tuned by `tune_relax` is built by `benchmarks.rivals.tvm_stock`.
    """
    # By default it uses half the cores of an x86-64 machine.
    os.environ["TVM_NUM_THREADS"] = str(job["threads"])
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    import tvm
    from tvm import relax

    from benchmarks.rivals.tvm_stock import build_untuned

    library = Path(job["directory"] or Path(job["options"]["work"], "untuned.so"))
    if not job["directory"] and not library.exists():
        build_untuned(Path(job["options"]["model"]), library)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

    def run() -> list[Any]:
        returned = machine["main"](*(tvm.runtime.tensor(value) for value in feeds.values()))
        results = [returned] if isinstance(returned, tvm.runtime.Tensor) else list(returned)
        return [result.numpy() for result in results]

    return run


# Any other name is that of an artifact of ours.
SIDES: dict[str, Callable[[Mapping[str, Any], dict[str, Any]], Run]] = {
    "onnxruntime": _open_onnxruntime,
    "openvino": openvino_side.open_openvino,
    "torch": torch_side.open_torch,
    "torch.compile": torch_side.open_torch,
    "torch.compile max-autotune": torch_side.open_torch,
    "iree": iree_side.open_iree,
    "tvm untuned": _open_tvm,
    **dict.fromkeys(TUNED_BY_TVM, _open_tvm),
}
