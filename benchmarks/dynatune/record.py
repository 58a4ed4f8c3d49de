"""Records the tuning curve of every operator of some models, each tuned separately.

    python -m benchmarks.dynatune.record                                     # hours; needs a quiet machine
    python -m benchmarks.dynatune.record --models tiny_cnn --trials 16 --curves build/curves
    python -m benchmarks.dynatune.record --models resnet18,transformer_encoder --target cuda
    python -m benchmarks.dynatune.record --tuners autotvm,chameleon,adatune --models squeezenet1_1 --trials 32

After an interruption the same command continues; `slipstream status build/dynatune/MODEL-SEED` shows how far it is.
Operators share no programs (each is a family of its own) unless `--families` lets them, as in a session, but one cost
model, which is trained on the earlier operators too. `--tuners` names some of `benchmarks/dynatune/tuners.py` in place
of diffusion. With `--budget 150s` for each model operators take turns, so that all have as many trials at the end.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.dynatune.curves import CURVES, GPU_CURVES, OperatorCurve, Recording, RecordingError
from benchmarks.dynatune.tuners import TUNER_CURVES, TUNERS, folder_of
from benchmarks.ended_session import tune_apart
from benchmarks.machine import describe_machine
from slipstream.errors import SlipstreamError
from slipstream.session.directory import SessionDirectory, open_store
from slipstream.session.history import OperatorHistory
from slipstream.session.settings import Settings
from slipstream.session.state_names import PEAK_FLOPS
from slipstream.session.stored_history import StoredHistory

MODELS = ("resnet18", "squeezenet1_1", "vgg16", "transformer_encoder")
_SLOT_TRIALS = 8


def record(
    model: str,
    seed: int,
    trials: int,
    folder: Path,
    target: str,
    budget: str | None,
    tuner: str | None = None,
    threads: int | None = None,
    families: bool = False,
    dtype: str = "float32",
) -> Recording:
    """Tune all operators of a zoo model, or go on with it."""
    load = os.getloadavg()
    _, chosen, changed = TUNERS[tuner] if tuner else ("", {"search": "diffusion"}, {})
    # Nothing but the number of trials ends an operator.
    settings = {"families": "none", "slot_trials": _SLOT_TRIALS, "patience_trials": 10 * trials, "most_trials": trials}
    settings |= changed | ({"families": Settings().families} if families else {})
    scheduler = "sequential" if budget is None else "round_robin"
    how: dict[str, Any] = {"scheduler": scheduler, **chosen, "seed": seed}
    how |= {"target": target, "dtype": dtype, "threads": threads}
    tune_apart(f"zoo:{model}", folder, budget=budget, settings=settings, **how)
    said = f"python -m benchmarks.dynatune.record --models {model}" + (f" --tuners {tuner}" if tuner else "")
    said += (" --families" if families else "") + (f" --dtype {dtype}" if dtype != "float32" else "")
    about = {"command": said, "load": load, "load_at_end": os.getloadavg()}
    recording = recording_of(folder, model, seed, about)
    begun = recording.about["settings"]["most_trials"]
    if begun != trials:
        raise RecordingError(f"{folder} was begun with --trials {begun}: say so again, or choose another --work")
    return recording


def recording_of(folder: Path, model: str, seed: int, about: Mapping[str, Any]) -> Recording:
    """The curves of a finished session."""
    directory = SessionDirectory.read(folder)
    with open_store(directory, read_only=True) as store:
        stored = StoredHistory.of(store, directory.session)
        noisy = [trial.noisy for trial in store.trials(session=directory.session)]
    assert stored.record is not None
    options = stored.record.options
    dtype = options["dtype"]
    similar = _similar(model, options["target"], dtype)
    described = {
        **describe_machine(),
        "hardware": stored.hardware,
        "options": {name: options[name] for name in ("target", "dtype", "threads", "budget")},
        "settings": options["settings"],
        "session_seconds": stored.record.elapsed,
        "trials": len(noisy),
        "noisy_trials": sum(noisy),
        **about,
    }
    curves = tuple(curve_of(operator, similar[key]) for key, operator in stored.history.operators.items())
    return Recording(_named(model, dtype), seed, float(stored.saved[PEAK_FLOPS]), described, curves)


def _named(model: str, dtype: str) -> str:
    return model if dtype == "float32" else f"{model}-{dtype}"


def curve_of(operator: OperatorHistory, similar: Sequence[str] = ()) -> OperatorCurve:
    """Its curve where the best changed, and at the end; trial 0 is the default program, whose time does not count."""
    clock, seconds, best = 0.0, [0.0], operator.best_after
    for slot in operator.slots:
        clock += slot.search_seconds
        for trial in slot.trials:
            if not (slot.default and trial.position == 0):
                clock += trial.spent
                seconds += [] if trial.is_inconclusive else [clock]
    last = len(best) - 1
    at = [n for n in range(last + 1) if n in (0, last) or best[n] < best[n - 1]]
    return OperatorCurve(
        operator.key,
        operator.name,
        operator.weight,
        operator.flops,
        tuple(similar),
        tuple(at),
        tuple(float(f"{seconds[n]:.6g}") for n in at),
        tuple(float(f"{best[n]:.6g}") if math.isfinite(best[n]) else None for n in at),
    )


def _similar(model: str, spec: str, dtype: str) -> dict[str, list[str]]:
    """The operators that would be in the same family, the nearest first."""
    from benchmarks.candidates import operators_of
    from slipstream.machine.target import resolve_target
    from slipstream.program.space import Space
    from slipstream.session.families import Families
    from slipstream.session.operator_trials import OperatorTrials
    from slipstream.tvm_bridge.native_output import quiet_native_code

    target = resolve_target(spec, dtype=dtype)
    with quiet_native_code():
        trials = {o.key: OperatorTrials(o, Space(o.key, o.func, target)) for o in operators_of(model, target)}
        families = Families(trials, Settings().families)
    return {key: list(families.similar(key)) for key in trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="models of the zoo, with commas between them")
    parser.add_argument("--trials", type=int, default=128, help="for each operator")
    parser.add_argument("--budget", help="for each model, such as 150s; without it only --trials ends a recording")
    parser.add_argument("--seeds", type=int, default=1, help="record each model so many times")
    parser.add_argument("--work", type=Path, help="where the sessions are kept")
    parser.add_argument("--target", default="cpu", help="as of 'slipstream tune'; cuda's curves go beside the CPU's")
    parser.add_argument("--dtype", default="float32", help="as of 'slipstream tune'")
    parser.add_argument("--curves", type=Path, help="where the curves go")
    parser.add_argument("--families", action="store_true", help="let operators learn from their relatives")
    parser.add_argument("--threads", type=int, help="that programs run on [all cores]; 1 on a busy machine")
    parser.add_argument("--tuners", default="", help=f"of {', '.join(TUNERS)}, with commas, in turns [diffusion]")
    parser.add_argument("--quick", action="store_true", help="all tuners on tiny_cnn, 16 trials each, into build/")
    options = parser.parse_args()
    if options.quick:
        options.models, options.trials, options.tuners = "tiny_cnn", 16, ",".join(TUNERS)
        options.work = options.work or Path("build/dynatune_quick")
        options.curves = options.curves or Path("build/dynatune_quick/curves/tuners")
    if options.trials < 1 or options.seeds < 1:
        parser.error("--trials and --seeds are whole numbers from 1")
    tuners = options.tuners.split(",") if options.tuners else [None]
    if unknown := set(tuners) - {None, *TUNERS}:
        parser.error(f"there is no tuner {unknown.pop()}: choose from {', '.join(TUNERS)}")
    on_gpu = options.target != "cpu"
    curves = options.curves or (TUNER_CURVES if options.tuners else GPU_CURVES if on_gpu else CURVES)
    work = options.work or Path("build/dynatune_gpu" if on_gpu else "build/dynatune")
    from slipstream.tvm_bridge.imports import import_tvm_without_torch

    import_tvm_without_torch()
    try:
        for seed in range(options.seeds):
            for model, tuner in product(options.models.split(","), tuners):
                print(f"{model}, {tuner or 'diffusion'}, seed {seed}", flush=True)
                folder = work / (tuner or "") / f"{_named(model, options.dtype)}-{seed}"
                how = (options.target, options.budget, tuner, options.threads, options.families, options.dtype)
                recording = record(model, seed, options.trials, folder, *how)
                print(f"wrote {recording.write(folder_of(tuner, curves) if tuner else curves)}", flush=True)
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on from here")
    except SlipstreamError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
