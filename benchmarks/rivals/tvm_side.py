"""Unmodified TVM: its ONNX importer and its own pipeline, without any of Slipstream's preparation.

The untuned model is built here; the one tuned by `tune_relax` is built by `benchmarks.rivals.tvm_stock`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.rivals.contender import Run, feeds, work_folder


def environment(threads: int) -> dict[str, str]:
    # By default it uses half the cores of an x86-64 machine.
    return {"TVM_NUM_THREADS": str(threads)}


def variants(side: str, job: Mapping[str, Any]) -> dict[str, Run]:
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    import tvm
    from tvm import relax

    from benchmarks.rivals.tvm_stock import build_untuned

    if side == "tvm untuned":
        library = work_folder(job) / "untuned.so"
        if not library.exists():
            build_untuned(Path(job["model"]), library)
    else:
        library = Path(job["artifacts"][side])
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    values = feeds(job)

    def run() -> list[Any]:
        returned = machine["main"](*(tvm.runtime.tensor(value) for value in values.values()))
        results = [returned] if isinstance(returned, tvm.runtime.Tensor) else list(returned)
        return [result.numpy() for result in results]

    return {"": run}
