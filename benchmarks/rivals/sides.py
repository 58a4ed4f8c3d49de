"""The runtimes that are compared: each is a module of this folder, loaded in a process of its own.

A module has `settings(side, job)`, of which the fastest is taken, and `open_side(job, feeds)`, which gives a function
that runs the model once. `job["options"]` has the model's files (`models.py`), a `work` folder and `artifacts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.artifact.contender import Contender, Job

Run = Callable[[], Sequence[Any]]

# Any other name is that of an artifact of ours.
SIDES = {
    "onnxruntime": "onnxruntime_side",
    "openvino": "openvino_side",
    "torch": "torch_side",
    "torch.compile": "torch_side",
    "torch.compile max-autotune": "torch_side",
    "iree": "iree_side",
    "tvm untuned": "tvm_side",
    "tvm tune_relax": "tvm_side",
}


def start(side: str, options: Mapping[str, Any], setting: str | None = None) -> dict[str, Contender]:
    """A process for each of a side's settings, or for one of them."""
    settings = _module(side).settings(side, options)
    return {
        each: Contender(
            Job(
                side,
                each,
                options.get("artifacts", {}).get(side, ""),
                None,
                options["feeds"],
                options["threads"],
                loader=f"{__name__}:load",
                options=options,
            )
        )
        for each in (settings if setting is None else [setting])
    }


def load(job: Mapping[str, Any], feeds: dict[str, Any]) -> Callable[[], tuple[Run, Run]]:
    """In its process: what opens the model."""
    Path(job["options"]["work"]).mkdir(parents=True, exist_ok=True)
    side = _module(job["name"])

    def open_model() -> tuple[Run, Run]:
        run: Run = side.open_side(job, feeds)
        return run, run

    return open_model


def _module(side: str) -> ModuleType:
    return import_module(f"benchmarks.rivals.{SIDES.get(side, 'our_side')}")
