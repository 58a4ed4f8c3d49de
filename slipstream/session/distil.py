"""From stored sessions to distilled priors (`diffusion/distilled.py`). Needs no TVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipstream.diffusion.distilled import (
    ClassPriors,
    Features,
    PriorsError,
    TunedOperator,
    TunedProgram,
    fastest_of_each,
)
from slipstream.diffusion.signature import signature
from slipstream.machine.hardware import instruction_set
from slipstream.program.decisions import from_json
from slipstream.program.sketch import Sketch
from slipstream.session.history import INCONCLUSIVE_FAILURES
from slipstream.session.state_names import PEAK_FLOPS
from slipstream.store import Store, StoreLocation, TrialRecord

KEPT = 48  # programs of an operator on a machine


def distil_stores(
    locations: Sequence[StoreLocation], known: Mapping[str, ClassPriors], *, keep: int = KEPT, noisy: bool = False
) -> dict[str, ClassPriors]:
    """What is `known` and what the stores' trials teach, by class of hardware: `keep` programs of each operator.

    Trials that were measured while others used the machine count only if `noisy` ones may.
    """
    found = dict(known)
    for location in locations:
        with Store.open(location, read_only=True) as store:
            for name, one in distil(store, noisy=noisy).items():
                found[name] = found.get(name, ClassPriors()).merged(one)
    if not any(one.operators for one in found.values()):
        raise PriorsError(
            "there is nothing to distil: no operator had two programs measured while nothing else used the machine: "
            "tune for longer, on an idle one, or take what there is with --noisy"
        )
    return {name: one.thinned(keep) for name, one in found.items()}


def distil(store: Store, *, noisy: bool = False) -> dict[str, ClassPriors]:
    """What one store's trials teach, by class of hardware."""
    found: dict[str, ClassPriors] = {}
    sketches: dict[str, Sketch | None] = {}
    peaks = _peaks(store)
    for hardware in sorted({session.hardware for session in store.sessions()}):
        described = store.hardware(hardware)
        machine = machine_name(described)
        operators, used = [], dict[str, Sketch]()
        for key in sorted(store.counts(hardware)):
            record = store.operator(key)
            found_there = store.trials(operator=key, hardware=hardware)
            trials = [trial for trial in found_there if noisy or not trial.noisy]
            programs = _programs(store, trials, sketches, used)
            # What had only its default program measured teaches nothing about the others.
            if record is not None and record.shapes and len(programs) > 1:
                dtype = record.shapes[0][1]
                operators.append(TunedOperator(key, record.name, dtype, machine, programs))
        if operators:
            features = machine_features(described, peaks.get(hardware, 0.0))
            one = ClassPriors({machine: features}, used, operators)
            name = instruction_set(described)
            found[name] = found.get(name, ClassPriors()).merged(one)
    return found


def machine_name(described: Mapping[str, Any]) -> str:
    threads = f", {described['threads']} threads" if described.get("kind") == "cpu" else ""
    return f"{described.get('machine')}{threads}"


def machine_features(described: Mapping[str, Any], peak_flops: float) -> Features:
    """What numbers say about a machine: threads or multiprocessors, shared memory, the FLOP/s it reaches."""
    features = {**described, "peak_flops": peak_flops}
    return {
        n: float(v) for n, v in features.items() if isinstance(v, int | float) and not isinstance(v, bool) and v > 0
    }


def _peaks(store: Store) -> dict[str, float]:
    """The most FLOP/s that a session measured on each piece of hardware."""
    peaks: dict[str, float] = {}
    for session in store.sessions():
        if (saved := store.state(session.id, PEAK_FLOPS)) is not None:
            peaks[session.hardware] = max(peaks.get(session.hardware, 0.0), float(saved[1]))
    return peaks


def _programs(
    store: Store, trials: Iterable[TrialRecord], sketches: dict[str, Sketch | None], used: dict[str, Sketch]
) -> tuple[TunedProgram, ...]:
    """The programs of an operator's trials, the fastest first; `used` gets a sketch for every signature."""
    programs = []
    for trial in trials:
        if trial.program.sketch not in sketches:
            text = store.sketch(trial.program.sketch)
            sketches[trial.program.sketch] = None if text is None else Sketch(text)
        sketch = sketches[trial.program.sketch]
        if sketch is not None and sketch.sampled and trial.failure not in INCONCLUSIVE_FAILURES:
            name = signature(sketch)
            used.setdefault(name, sketch)
            programs.append(TunedProgram(name, from_json(trial.program.decisions), trial.median))
    return fastest_of_each(programs)
