"""Unmodified TVM: its ONNX importer and its own pipeline, without any of Slipstream's preparation.

The untuned model is built here; the one tuned by `tune_relax` is built by `benchmarks.rivals.tvm_stock`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals.sides import Run


def settings(side: str, options: Mapping[str, Any]) -> Sequence[str]:
    return ("",)


def open_side(job: Mapping[str, Any], feeds: dict[str, Any]) -> Run:
    # By default it uses half the cores of an x86-64 machine.
    os.environ["TVM_NUM_THREADS"] = str(job["threads"])
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    import tvm
    from tvm import relax

    from benchmarks.rivals.tvm_stock import build_untuned

    options = job["options"]
    if job["name"] == "tvm untuned":
        library = Path(options["work"], "untuned.so")
        if not library.exists():
            build_untuned(Path(options["model"]), library)
    else:
        library = Path(options["artifacts"][job["name"]])
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())

    def run() -> list[Any]:
        returned = machine["main"](*(tvm.runtime.tensor(value) for value in feeds.values()))
        results = [returned] if isinstance(returned, tvm.runtime.Tensor) else list(returned)
        return [result.numpy() for result in results]

    return run
