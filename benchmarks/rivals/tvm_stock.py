"""TVM's own way from an ONNX file to a library: its importer, its pipeline, its tuner.

    python -m benchmarks.rivals.tvm_stock MODEL.onnx FOLDER '{"max_trials_global": 640, ...}'

tunes as `relax.get_pipeline("static_shape_tuning", cpu_weight_prepack=True)` does, with the same passes in the same
order, and needs one change to work at all: the stock builder starts new processes for every batch, and each of them
spends its whole time limit on importing TVM's tensor intrinsics, so that every candidate fails. Here these processes
import them quickly (the builder's own `initializer` option). TVM_NUM_THREADS has to be set, or TVM uses half the cores.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def build_untuned(model: Path, library: Path) -> None:
    import tvm
    from tvm import relax

    target = _target()
    with target:
        module = relax.get_pipeline("zero")(import_model(model))
    _export(tvm.compile(module, target=target), library)


def import_model(path: Path) -> Any:
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    return from_onnx(onnx.load(str(path)), keep_params_in_input=False)


def tune(model: Path, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """`tune_relax` with these options; the compiled model is FOLDER/model.so."""
    began = time.perf_counter()
    import tvm
    from tvm import relax
    from tvm.relax import transform
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks, tune_relax

    from slipstream.tvm_bridge.intrinsics import import_intrinsics

    target = _target()
    with target:
        before = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings(), relax.get_pipeline("zero")]
        before.append(transform.AttachAttrLayoutFreeBuffers())
        module = tvm.transform.Sequential(before)(import_model(model))
        tasks = len(extract_tasks(module, target, {}))
        tune_relax(
            module,
            {},
            target,
            str(folder),
            builder=ms.builder.LocalBuilder(initializer=import_intrinsics),
            **options,
        )
        tuned = time.perf_counter() - began
        after = [transform.MetaScheduleApplyDatabase(str(folder)), transform.SplitLayoutRewritePreproc()]
        after += [transform.LiftTransformParams(), transform.FoldConstant()]
        module = tvm.transform.Sequential(after)(module)
    _export(tvm.compile(module, target=target), folder / "model.so")
    # A line of the database is [workload, [trace, seconds, ...]].
    records = [json.loads(line) for line in (folder / "database_tuning_record.json").read_text().splitlines()]
    return {
        "tasks": tasks,
        "tasks_tuned": len({record[0] for record in records}),
        "trials": len(records),
        "tuning_seconds": round(tuned, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _target() -> Any:
    from slipstream.machine.target import resolve_target

    return resolve_target("cpu").tvm


def _export(executable: Any, library: Path) -> None:
    unfinished = library.with_suffix(".unfinished.so")
    executable.export_library(str(unfinished))
    unfinished.rename(library)


if __name__ == "__main__":
    result = tune(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
    Path(sys.argv[2], "result.json").write_text(json.dumps(result))
