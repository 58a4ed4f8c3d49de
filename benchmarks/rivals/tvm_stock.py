"""TVM's own way from an ONNX file to a library: its importer, its pipeline, its tuner.

    python -m benchmarks.rivals.tvm_stock MODEL.onnx FOLDER '{"max_trials_global": 640, ...}'

tunes as `relax.get_pipeline("static_shape_tuning", cpu_weight_prepack=True)` does, with the same passes in the same
order; with a `budget` in place of trials, by `slipstream.tvm.tune_relax`. TVM's own needs one change to work at all:
the stock builder starts new processes for every batch, and each of them spends its whole time limit on importing TVM's
tensor intrinsics, so that every candidate fails. Here these processes import them quickly (the builder's own
`initializer` option). TVM_NUM_THREADS has to be set, or TVM uses half the cores.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
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
    """`tune_relax` with these options, TVM's own or, if they have a `budget`, ours; the model is FOLDER/model.so.

    With `prepare`, Slipstream's passes stand for TVM's before and after tuning.
    """
    began = time.perf_counter()
    import tvm
    from tvm import relax
    from tvm.relax import transform
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks

    target, options = _target(), dict(options)
    prepare, database = options.pop("prepare", False), folder / "tuning"
    with target:
        before = [transform.DecomposeOpsForInference(), transform.CanonicalizeBindings(), relax.get_pipeline("zero")]
        before.append(transform.AttachAttrLayoutFreeBuffers())
        if prepare:
            import slipstream.tvm

            before = [slipstream.tvm.Prepare(target)]
        module = tvm.transform.Sequential(before)(import_model(model))
        tasks = len(extract_tasks(module, target, {}))
        database.mkdir()
        _tuner(options)(module, {}, target, str(database), **options)
        tuned = time.perf_counter() - began
        after = [transform.MetaScheduleApplyDatabase(str(database)), transform.SplitLayoutRewritePreproc()]
        after += [transform.LiftTransformParams(), transform.FoldConstant()]
        if prepare:
            after = [slipstream.tvm.Tuned(database)]
        module = tvm.transform.Sequential(after)(module)
    _export(tvm.compile(module, target=target), folder / "model.so")
    # A line of the database is [workload, [trace, seconds, ...]].
    records = [json.loads(line) for line in (database / "database_tuning_record.json").read_text().splitlines()]
    return {
        "tasks": tasks,
        "tasks_tuned": len({record[0] for record in records}),
        "trials": _trials(database) or len(records),
        "tuning_seconds": round(tuned, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _tuner(options: dict[str, Any]) -> Any:
    if "budget" in options:
        import slipstream.tvm

        return slipstream.tvm.tune_relax
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.relax_integration import tune_relax

    from slipstream.tvm_bridge.intrinsics import import_intrinsics

    return partial(tune_relax, builder=ms.builder.LocalBuilder(initializer=import_intrinsics))


def _trials(folder: Path) -> int:
    """How many programs a session of ours has measured: its database has only the best."""
    from benchmarks.ended_session import EndedSession
    from slipstream.session.directory import SESSION

    return len(EndedSession(folder).trials) if (folder / SESSION).exists() else 0


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
