"""Contenders in turns: the same model, inputs and threads, in short blocks, in a new order each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals.models import model_files
from benchmarks.rivals.openvino_side import said_by
from benchmarks.rivals.sides import start
from slipstream.artifact.bench import BACK_TO_BACK, BaselineError
from slipstream.artifact.contender import Contender
from slipstream.artifact.request_pattern import RequestPattern
from slipstream.errors import SlipstreamError
from slipstream.machine.target import available_cores

# Of the largest value of an output. Runtimes add in different orders and take different polynomials for exp.
_TOLERANCE = 1e-3
_CHOICE_ROUNDS = 8
_SLOW_SECONDS = 1.0
_ROUNDS_OF_SLOW = 3


def compare(
    sides: Sequence[str],
    jobs: Mapping[str, Mapping[str, Any]],
    *,
    processes: int,
    rounds: int,
    seed: int,
    start: Callable[..., dict[str, Contender]] = start,
    pattern: RequestPattern = BACK_TO_BACK,
) -> dict[str, dict[str, Any]]:
    """For each side its description and, for each set of processes, its median of each round.

    Memory placement makes the same code up to a tenth faster or slower from process to process, hence several. The
    first set times each side's settings; the others use the fastest. A side that takes longer than a second takes
    part in three rounds only and has None for the others. One that cannot take part gives the reason.
    """
    found: dict[str, dict[str, Any]] = {side: {"blocks": []} for side in sides}
    rng = np.random.default_rng(seed)
    for _ in range(processes):
        well = [side for side in sides if "failed" not in found[side]]
        started = {side: start(side, jobs[side], found[side].get("variant")) for side in well}
        try:
            for side in well:
                _get_ready(started[side], jobs[side], found[side])
            # Only when all are ready: what one tries must not be disturbed by another that is still compiling.
            ready = {
                side: _fastest(started[side], found[side], pattern) for side in well if "failed" not in found[side]
            }
            rows = _rounds(ready, rounds, rng, pattern)
        finally:
            for contenders in started.values():
                for contender in contenders.values():
                    contender.close()
        for side in ready:
            found[side]["blocks"].append([row[side] for row in rows])
    return found


def compare_artifacts(
    model: str,
    artifacts: Mapping[str, Path],
    folder: Path,
    *,
    processes: int,
    rounds: int,
    others: Sequence[str] = ("onnxruntime",),
) -> dict[str, Any]:
    """Artifacts of a zoo model and other runtimes: name -> blocks."""
    job = {**model_files(model, folder / "files"), "threads": available_cores(), "work": str(folder)}
    job["artifacts"] = {name: str(path) for name, path in artifacts.items()}
    sides = [*artifacts, *others]
    found = compare(sides, dict.fromkeys(sides, job), processes=processes, rounds=rounds, seed=0)
    for side, row in found.items():
        if "failed" in row:
            raise SlipstreamError(f"{model}, {side}: {row['failed']}")
    return {side: row["blocks"] for side, row in found.items()}


def _get_ready(contenders: dict[str, Contender], job: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Wait for all settings of a side; those that cannot run the model are left out, and so is a side without any."""
    ready_seconds, errors, failures = [0.0], [0.0], dict[str, str]()
    for setting, contender in list(contenders.items()):
        try:
            facts = contender.ready()
            errors.append(_error(contender, job))
        except SlipstreamError as failure:
            failures[setting] = failure.reason if isinstance(failure, BaselineError) else str(failure)
            contenders.pop(setting).close()
        else:
            ready_seconds.append(facts.import_seconds + facts.load_seconds)
    if not contenders:
        found["failed"] = next(iter(failures.values()))
        return
    if failures:
        found.setdefault("settings_left_out", failures)
    new = {"error": max(errors), "ready_seconds": round(max(ready_seconds), 1), **said_by(job)}
    found |= {**new, **found}


def _error(contender: Contender, job: Mapping[str, Any]) -> float:
    """The error against ONNX Runtime, of the worst output; too large is a failure.

    It is the largest difference relative to the largest value of the output; with `rms_tolerance`, the root of the mean
    square relative to that of the values: of models that round to few levels, single values differ by any amount.
    """
    with np.load(job["expected"]) as archive:
        expected = [archive[f"arr_{n}"] for n in range(len(archive.files))]
    size = _root_mean_square if "rms_tolerance" in job else _largest
    tolerance = job.get("rms_tolerance", _TOLERANCE)
    worst = 0.0
    for wanted, given in zip(expected, contender.outputs(), strict=True):
        worst = max(worst, size(wanted - given) / (size(wanted) or 1.0))
    if not worst <= tolerance:
        raise BaselineError(contender.job.name, f"wrong: off by {worst:.1g}")
    return worst


def _largest(values: Any) -> float:
    return float(np.abs(values).max(initial=0.0))


def _root_mean_square(values: Any) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) if values.size else 0.0


def _fastest(contenders: Mapping[str, Contender], found: dict[str, Any], pattern: RequestPattern) -> Contender:
    """The contender at the fastest setting, timed in turns, slow ones once; the others are closed."""
    taken: dict[str, list[float]] = {setting: [] for setting in contenders}
    for number in range(_CHOICE_ROUNDS if len(contenders) > 1 else 0):
        for setting, contender in contenders.items():
            if number == 0 or taken[setting][0] < _SLOW_SECONDS:
                taken[setting].append(_median(contender, pattern))
    tried = {setting: float(np.median(times)) for setting, times in taken.items() if times}
    found["variant"] = min(tried, key=tried.__getitem__) if tried else next(iter(contenders))
    found.setdefault("tried", tried)
    for setting, contender in contenders.items():
        if setting != found["variant"]:
            contender.close()
    return contenders[found["variant"]]


def _rounds(
    ready: Mapping[str, Contender], rounds: int, rng: np.random.Generator, pattern: RequestPattern
) -> list[dict[str, float | None]]:
    rows: list[dict[str, float | None]] = []
    slow: set[str] = set()
    for number in range(rounds):
        row: dict[str, float | None] = dict.fromkeys(ready)
        for side in rng.permutation(list(ready)).tolist():
            if side in slow and number >= _ROUNDS_OF_SLOW:
                continue
            seconds = row[side] = _median(ready[side], pattern)
            if seconds > _SLOW_SECONDS:
                slow.add(side)
        rows.append(row)
    return rows


def _median(contender: Contender, pattern: RequestPattern) -> float:
    return float(np.median(contender.block(pattern, pattern.block_seconds, 0).latencies))
