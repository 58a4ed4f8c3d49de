"""Records the tuning curve of every operator of some models, each tuned separately.

    python -m benchmarks.dynatune.record                                     # hours; needs a quiet machine
    python -m benchmarks.dynatune.record --models tiny_cnn --trials 16 --curves build/curves
    python -m benchmarks.dynatune.record --models resnet18,transformer_encoder --target cuda

After an interruption the same command continues. Operators share no programs (each is a family of its own), but one
cost model, which is trained on the earlier operators too. With `--budget 150s` for each model operators take turns, so
that all have about as many trials at the end.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import slipstream
from benchmarks.dynatune.curves import CURVES, GPU_CURVES, OperatorCurve, Recording, RecordingError
from slipstream.errors import SlipstreamError
from slipstream.session.directory import SESSION, SessionDirectory, open_store
from slipstream.session.records import is_default
from slipstream.session.settings import Settings
from slipstream.store import SlotRecord, Store, TrialRecord

MODELS = ("resnet18", "squeezenet1_1", "vgg16", "transformer_encoder")
_SLOT_TRIALS = 8
_PACKAGES = ("apache-tvm", "numpy", "xgboost-cpu")


def record(
    model: str, seed: int, trials: int, work: Path, target: str = "cpu", budget: str | None = None
) -> Recording | None:
    """Tune all operators of a zoo model, or go on with it; None if interrupted before the end."""
    folder = work / f"{model}-{seed}"
    load = os.getloadavg()
    if not is_recorded(folder, trials):
        from slipstream.session.tune import resume, tune

        if (folder / SESSION).exists():
            result = resume(folder, callbacks=[_say])
        else:
            # Nothing but the number of trials ends an operator.
            settings = {
                "families": "none",
                "slot_trials": _SLOT_TRIALS,
                "patience_trials": 10 * trials,
                "most_trials": trials,
            }
            result = tune(
                f"zoo:{model}",
                folder,
                scheduler="sequential" if budget is None else "round_robin",
                search="diffusion",
                seed=seed,
                settings=settings,
                target=target,
                budget=budget,
                callbacks=[_say],
            )
        if result.reason == "interrupted":
            return None
    return recording_of(folder, model, seed, {"load": load, "load_at_end": os.getloadavg()})


def is_recorded(folder: Path, trials: int) -> bool:
    """Whether the session in `folder` is at its end; an error if it was begun with other numbers."""
    if not (folder / SESSION).exists():
        return False
    directory = SessionDirectory.read(folder)
    with open_store(directory, read_only=True) as store:
        session = store.session(directory.session)
    begun = session.options["settings"].get("most_trials")
    if begun != trials:
        raise RecordingError(f"{folder} was begun with --trials {begun}: say so again, or choose another --work")
    return session.status == "finished"


def recording_of(folder: Path, model: str, seed: int, about: Mapping[str, Any]) -> Recording:
    """The curves of a finished session."""
    directory = SessionDirectory.read(folder)
    with open_store(directory, read_only=True) as store:
        session = store.session(directory.session)
        peak = store.state(session.id, "peak_flops")
        if peak is None:
            raise RecordingError(f"{folder} has not been tuned: run the recorder again")
        target = session.options["target"]
        similar = _similar(model, target)
        hardware = store.hardware(session.hardware)
        curves = tuple(_curves(store, session.id, similar))
        noisy = [trial.noisy for trial in store.trials(session=session.id)]
    settings, budget = session.options["settings"], session.options["budget"]["seconds"]
    described = {
        "machine": hardware,
        "versions": {
            "python": sys.version.split()[0],
            "slipstream": slipstream.__version__,
            **{name: version(name) for name in _PACKAGES},
        },
        "command": f"python -m benchmarks.dynatune.record --models {model} --trials {settings['most_trials']}"
        + (f" --target {target}" if target != "cpu" else "")
        + (f" --budget {budget:g}" if budget is not None else ""),
        "date": datetime.fromtimestamp(session.created_at, UTC).isoformat(timespec="seconds"),
        "settings": settings,
        "session_seconds": session.elapsed,
        "trials": len(noisy),
        "noisy_trials": sum(noisy),
        **about,
    }
    return Recording(model, seed, float(peak[1]), described, curves)


def _curves(store: Store, session: str, similar: Mapping[str, Sequence[str]]) -> Iterator[OperatorCurve]:
    slots = {slot.slot: slot for slot in store.slots(session)}
    trials: dict[str, list[TrialRecord]] = defaultdict(list)
    for trial in store.trials(session=session):
        if trial.slot in slots:
            trials[trial.operator].append(trial)
    for key, weight in store.session_operators(session).items():
        operator = store.operator(key)
        assert operator is not None
        at, seconds, best = points(trials[key], slots)
        yield OperatorCurve(key, operator.name, weight, operator.flops, tuple(similar[key]), at, seconds, best)


def points(
    trials: Iterable[TrialRecord], slots: Mapping[int, SlotRecord]
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float | None, ...]]:
    """(trial, seconds, best) wherever the best changed, and at the end; trial 0 is the default program."""
    kept: list[tuple[int, float, float]] = []
    count, spent, best, last_slot = 0, 0.0, math.inf, None
    for trial in trials:
        slot = slots[trial.slot]  # type: ignore[index]  # the caller left out trials without a slot
        improved = trial.median < best
        best = min(best, trial.median)
        if not is_default(slot):
            count += 1
            spent += trial.build_seconds + trial.run_seconds + trial.overhead_seconds
            spent += slot.search_seconds if slot.slot != last_slot else 0.0
            last_slot = slot.slot
        if improved or count == 0:
            kept.append((count, spent, best))
    if kept and kept[-1][0] != count:
        kept.append((count, spent, best))
    return (
        tuple(at for at, _, _ in kept),
        tuple(float(f"{seconds:.6g}") for _, seconds, _ in kept),
        tuple(float(f"{value:.6g}") if math.isfinite(value) else None for _, _, value in kept),
    )


def _similar(model: str, spec: str) -> dict[str, list[str]]:
    """The operators that would be in the same family, the nearest first."""
    from slipstream.frontends import load_model
    from slipstream.graph.operators import extract_operators
    from slipstream.graph.prepare import prepare
    from slipstream.machine.target import resolve_target
    from slipstream.program.space import Space
    from slipstream.session.families import Families
    from slipstream.session.operator_trials import OperatorTrials
    from slipstream.tvm_bridge.native_output import quiet_native_code

    target = resolve_target(spec)
    with quiet_native_code():
        operators = extract_operators(prepare(load_model(f"zoo:{model}").module, target)[0])
        trials = {o.key: OperatorTrials(o, Space(o.key, o.func, target)) for o in operators}
        families = Families(trials, Settings().families)
    return {key: list(families.similar(key)) for key in trials}


def _say(event: Any, snapshot: Any) -> None:
    if event.kind == "slot":
        at = time.strftime("%H:%M:%S")
        best = f"{1e3 * snapshot.latency:.2f} ms"
        print(f"{at} {snapshot.trials:5} trials, {best}: {event.data['name']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="models of the zoo, with commas between them")
    parser.add_argument("--trials", type=int, default=128, help="for each operator")
    parser.add_argument("--budget", help="for each model, such as 150s; without it only --trials ends a recording")
    parser.add_argument("--seeds", type=int, default=1, help="record each model so many times")
    parser.add_argument("--work", type=Path, help="where the sessions are kept")
    parser.add_argument("--target", default="cpu", help="as of 'slipstream tune'; cuda's curves go beside the CPU's")
    parser.add_argument("--curves", type=Path, help="where the curves go")
    options = parser.parse_args()
    if options.trials < 1 or options.seeds < 1:
        parser.error("--trials and --seeds are whole numbers from 1")
    on_gpu = options.target != "cpu"
    curves = options.curves or (GPU_CURVES if on_gpu else CURVES)
    work = options.work or Path("build/dynatune_gpu" if on_gpu else "build/dynatune")
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    try:
        for seed in range(options.seeds):
            for model in options.models.split(","):
                print(f"{model}, seed {seed}", flush=True)
                recording = record(model, seed, options.trials, work, options.target, options.budget)
                if recording is None:
                    raise KeyboardInterrupt
                print(f"wrote {recording.write(curves)}", flush=True)
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on from here")
    except SlipstreamError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
