"""Tunes an ONNX model by the artifact's task scheduler: `python tune.py '{"model": ..., "folder": ..., ...}'`.

Into the folder go `tasks.json` with the seconds that importing the model and extracting its tasks took, a line of
`curve.jsonl` after every round, its seconds counted from there, and the artifact's own record of every measurement,
`records.json`. The process may be killed at any time: what it has written so far is the result.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from relay_model import import_model

_FAILED = 1e9  # seconds: the artifact's cost of a task of which no program has run yet is above it


def main(job: dict[str, Any]) -> None:
    import numpy as np
    import tvm
    from tvm import auto_scheduler
    from tvm.auto_scheduler.task_scheduler import LogEstimatedLatency, PrintTableInfo

    random.seed(job["seed"])  # the artifact draws the seeds of its searches from here
    np.random.seed(job["seed"])
    folder = Path(job["folder"])
    module = import_model(job["model"], job["layout"])
    tasks, weights = auto_scheduler.extract_tasks(module["main"], {}, tvm.target.Target(job["target"]))
    for number, task in enumerate(tasks):
        task.id = number
    about = [
        {"name": task.desc, "weight": int(weight), "flops": float(task.compute_dag.flop_ct)}
        for task, weight in zip(tasks, weights)  # noqa: B905 -- not in Python 3.9
    ]
    prepared = time.monotonic()
    (folder / "tasks.json").write_text(json.dumps({"preparing": prepared - job["began"], "tasks": about}))
    curve = (folder / "curve.jsonl").open("w")

    class WriteCurve(auto_scheduler.task_scheduler.TaskSchedulerCallback):
        def post_tune(self, task_scheduler: Any, task_id: int) -> None:
            best = [cost if cost < _FAILED else None for cost in map(float, task_scheduler.best_costs)]
            latency = None if None in best else float(task_scheduler.cur_score)
            point = {"seconds": time.monotonic() - prepared, "trials": int(task_scheduler.ct), "latency": latency}
            curve.write(json.dumps({**point, "task": int(task_id), "best": best}) + "\n")
            curve.flush()

    table = str(folder / "total_latency.tsv")
    scheduler = auto_scheduler.TaskScheduler(
        tasks,
        weights,
        callbacks=[PrintTableInfo(), LogEstimatedLatency(table), WriteCurve()],
        log_file_name=table,
        **({"group_type": job["groups"]} if job["groups"] else {}),
    )
    measure = auto_scheduler.LocalRPCMeasureContext(**job["measure"])
    scheduler.tune(
        auto_scheduler.TuningOptions(
            num_measure_trials=len(tasks) * job["trials"],
            early_stopping=None,
            num_measures_per_round=job["measures_per_round"],
            verbose=1,
            builder=auto_scheduler.LocalBuilder(n_parallel=job["builders"]),
            runner=measure.runner,
            measure_callbacks=[auto_scheduler.RecordToFile(str(folder / "records.json"))],
        ),
        search_policy_params=_smaller_search(job["population"]) if job["population"] else None,
    )


def _smaller_search(population: int) -> dict[str, int]:
    return {
        "evolutionary_search_population": population,
        "evolutionary_search_num_iters": 1,
        "sample_init_min_population": population // 4,
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
