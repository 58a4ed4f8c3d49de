"""Tuning captured graphs: now, or one after the other in the background."""

from __future__ import annotations

import atexit
import json
import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.processes.child import child_environment
from slipstream.session.budget import parse_duration
from slipstream.torch.graph import Graph
from slipstream.torch.variant import Variant

logger = logging.getLogger(__name__)

_LEAST_SECONDS = 10.0
_waiting: queue.SimpleQueue[Variant] = queue.SimpleQueue()
_worker: threading.Thread | None = None
_running: list[subprocess.Popen[str]] = []
_lock = threading.Lock()


def tune_graphs(graphs: Sequence[Graph], budget: str | float | None, trials: int | None, store: Any) -> None:
    """Tune every compiled form of these graphs; each gets its share of the budget by the time it has taken."""
    seconds = parse_duration(budget, "a budget") if isinstance(budget, str) else budget
    variants = [variant for graph in graphs for variant in graph.variants.values() if variant is not None]
    total = sum(variant.seconds for variant in variants) or 1.0
    for variant in variants:
        share = seconds
        if seconds is not None and len(variants) > 1:
            share = max(_LEAST_SECONDS, seconds * variant.seconds / total)
        job = _job(variant)
        tune_or_resume({**job, "budget": share, "trials": trials, "store": store or job["store"]})
        variant.reload()


def _job(variant: Variant) -> dict[str, Any]:
    """What `slipstream.tune` is called with."""
    return {
        "model": str(variant.program),
        "output": str(variant.session),
        "target": "cuda" if variant.model.manifest.gpu else "cpu",
        **{name: getattr(variant.options, name) for name in ("budget", "store", "dtype", "threads")},
    }


def tune_or_resume(job: dict[str, Any]) -> None:
    """Tune what a job says, or go on with its session."""
    from slipstream.session.tune import resume, tune

    if (Path(job["output"]) / "session.json").exists():
        resume(job["output"], budget=job["budget"], trials=job.get("trials"))
    else:
        tune(**job)


def tune_in_background(variant: Variant) -> None:
    """In a process of its own, after those that were asked for before."""
    global _worker
    _waiting.put(variant)
    with _lock:
        if _worker is None:
            atexit.register(_stop)
            _worker = threading.Thread(target=_tune_waiting, name="slipstream tuning", daemon=True)
            _worker.start()


def _tune_waiting() -> None:
    while True:
        variant = _waiting.get()
        process = subprocess.Popen(
            [sys.executable, "-m", "slipstream.torch.background"],
            env=child_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        _running.append(process)
        said = process.communicate(json.dumps(_job(variant)))[1]  # no argument: a store's URL may have a password
        _running.remove(process)
        if process.returncode == 0:
            variant.reload()
        else:
            lines = said.strip().splitlines() or [f"it ended with status {process.returncode}"]
            logger.warning("tuning in the background failed, the untuned code stays in use: %s", lines[-1])


def _stop() -> None:
    for process in _running:
        process.terminate()
