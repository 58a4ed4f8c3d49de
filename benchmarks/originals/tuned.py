"""One tuning by the artifact: a process of its own, ended at a limit of wall-clock time, and the model it leads to."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lanes import pinned
from benchmarks.originals.artifact import BuiltArtifact
from benchmarks.originals.settings import MEASURE, SIDES, layout
from slipstream.errors import SlipstreamError

RESULT = "result.json"
TUNED = "tuned.json"  # whether it was ended at the limit, and its seconds


def tune_original(
    artifact: BuiltArtifact,
    side: str,
    model: str,
    onnx: Path,
    folder: Path,
    *,
    seed: int,
    limit: float,
    cores: Sequence[int],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Tune and build, unless `folder` has it; seconds of tuning count from the first search.

    `settings` are trials, measures_per_round, population and target. A tuning that reaches `limit` seconds is ended
    there and its model is built from what it has recorded: it is `censored`. One whose model could not be built is not
    repeated either: the model is built again.
    """
    result, tuned = folder / RESULT, folder / TUNED
    if not result.exists():
        artifact.check(SIDES[side].tree)
        job = {"model": str(onnx.absolute()), "folder": str(folder.absolute()), "layout": layout(model), **settings}
        job |= {"measure": MEASURE, "groups": SIDES[side].groups, "seed": seed, "builders": len(cores)}
        if not tuned.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            tuned.write_text(json.dumps(_tune(artifact, side, job, folder, limit, cores)))
        censored, seconds = json.loads(tuned.read_text())
        curve = read_curve(folder / "curve.jsonl")
        tasks = _read_tasks(folder / "tasks.json")
        built = _build(artifact, side, job, folder, cores)
        result.write_text(
            json.dumps(
                {
                    "layout": job["layout"],
                    **settings,
                    "seed": seed,
                    "limit": limit,
                    "censored": censored,
                    "preparing": round(tasks["preparing"], 2),
                    "tuning_seconds": round(seconds - tasks["preparing"], 2),
                    "finishing": round(built, 2),
                    "trials": curve[-1]["trials"] if curve else 0,
                    "tasks": _tasks(tasks["tasks"], curve),
                    "curve": [(round(p["seconds"], 2), p["latency"], p["trials"]) for p in curve],
                }
            )
        )
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def _tune(
    artifact: BuiltArtifact, side: str, job: Mapping[str, Any], folder: Path, limit: float, cores: Sequence[int]
) -> tuple[bool, float]:
    began = time.monotonic()
    command = [*pinned(cores), *artifact.command("tune.py", json.dumps({**job, "began": began}))]
    environment = artifact.environment(SIDES[side].tree, len(cores))
    with (folder / "tune.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:  # whatever it started: servers and workers of its measurer
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - began
    if status:
        raise SlipstreamError(f"{side} failed with status {status} after {seconds:.0f} s: see {folder / 'tune.log'}")
    return status is None, seconds


def _build(artifact: BuiltArtifact, side: str, job: Mapping[str, Any], folder: Path, cores: Sequence[int]) -> float:
    drop_unfinished_line(folder / "records.json")
    with (folder / "build.log").open("w") as log:
        status = subprocess.run(
            [*pinned(cores), *artifact.command("build_model.py", json.dumps(job))],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=artifact.environment(SIDES[side].tree, len(cores)),
            cwd=folder,
            check=False,
        ).returncode
    if status:
        raise SlipstreamError(f"the model of {side} cannot be built: see {folder / 'build.log'}")
    return float(json.loads((folder / "built.json").read_text())["seconds"])


def drop_unfinished_line(path: Path) -> None:
    """A tuning that was ended may have been writing."""
    if not path.exists():
        raise SlipstreamError(f"{path} does not exist: nothing was measured within the limit, so give a longer --limit")
    text = path.read_bytes()
    path.write_bytes(text[: text.rfind(b"\n") + 1])


def read_curve(path: Path) -> list[dict[str, Any]]:
    """The rounds that were written whole."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _read_tasks(path: Path) -> dict[str, Any]:
    """All tasks, and the seconds until the artifact had them."""
    if not path.exists():
        raise SlipstreamError(f"{path} does not exist: the model was still being imported, so give a longer --limit")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _tasks(tasks: list[dict[str, Any]], curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name, weight and FLOPs of every task, its best seconds (None if none of its programs ran) and its rounds."""
    best = curve[-1]["best"] if curve else [None] * len(tasks)
    rounds = [sum(point["task"] == number for point in curve) for number in range(len(tasks))]
    return [
        {**task, "seconds": seconds if seconds is not None and math.isfinite(seconds) else None, "rounds": count}
        for task, seconds, count in zip(tasks, best, rounds, strict=True)
    ]
