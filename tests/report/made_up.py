"""SIMULATES: stores filled with sessions nobody tuned, as large and as odd as a test needs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.session.directory import SessionDirectory
from slipstream.session.records import DEFAULTS
from slipstream.session.settings import Settings
from slipstream.session.state_names import BANDWIDTH, FAMILIES, PEAK_FLOPS
from slipstream.store import OperatorRecord, ProgramRecord, Store, TrialRecord
from slipstream.store.records import digest

SLOT = 8
BEGAN = 1_700_000_000.0
# What a split and a vectorised loop look like in the store.
SKETCH = json.dumps(
    [
        ["GetSBlock", [], ["#0", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [3, 32], ["v3", "v4", "v5"]],
        ["Split", ["l1", "v3", "v4", "v5"], [True, False], ["l6", "l7", "l8"]],
        ["SampleCategorical", [], [[0, 16, 64], [0.3, 0.3, 0.4]], ["v9"]],
        ["Annotate", ["b0", "v9"], ["unroll"], []],
        ["Vectorize", ["l8"], [], []],
    ],
    separators=(",", ":"),
)


def made_up_session(
    directory: Path,
    *,
    operators: int = 3,
    slots: int = 12,
    model: str = "made_up",
    name: str = "conv2d 3x3 {n}→64 + relu",
    status: str = "finished",
    failures: bool = True,
    seed: int = 0,
) -> SessionDirectory:
    """A session of `slots` slots in a store of its own; operators take turns, the first more often than the last."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with Store.open(directory / "store.db") as store:
        keys = [digest(f"{seed}:{n}") for n in range(operators)]
        hardware = store.add_hardware({"kind": "cpu", "machine": "made up", "cpu": "none", "threads": 2})
        store.add_model(digest(model), model, "made_up.onnx")
        store.add_operators(
            OperatorRecord(
                key, name.format(n=n), ("conv2d", "relu"), 10**8 + n * 10**6, 10**6 + n * 1000, (((n,), "float32"),), ""
            )
            for n, key in enumerate(keys)
        )
        store.add_sketch(digest(SKETCH), SKETCH)
        options = {
            "settings": Settings(slot_trials=SLOT).to_json(),
            "budget": {"seconds": 600.0, "trials": None, "until_latency": None},
            "target": "cpu",
            "threads": None,
            "source": "made_up.onnx",
        }
        session = store.create_session(digest(model), hardware, options, {k: 1 + n % 3 for n, k in enumerate(keys)})
        store.put_state(session, PEAK_FLOPS, 0, b"4e12")
        store.put_state(session, BANDWIDTH, 0, b"2e10")
        family = {"similarity": dict.fromkeys(keys[:6], 0.9)} if keys else {}
        store.put_state(session, FAMILIES, 0, json.dumps([family] if len(keys) > 1 else []).encode())
        play_defaults(store, session, hardware, keys)
        play(store, session, hardware, keys, range(slots), rng, failures)
        elapsed = 5.0 + slots * 2.0
        store.update_session(session, status=status, elapsed=elapsed, result=result() if status == "finished" else None)
    folder = SessionDirectory(directory, directory / "store.db", session)
    folder.write()
    return folder


def result() -> dict[str, Any]:
    return {"reason": "the time is up", "end_to_end": 0.0123, "split": {"compile": 1.5, "schedule": 0.25}}


def play_defaults(store: Store, session: str, hardware: str, keys: list[str]) -> None:
    with store.database.transaction():
        for slot, key in enumerate(keys):
            store.begin_slot(session, slot, key, [], 0.0, DEFAULTS)
            store.append_trial(made_up_trial(session, hardware, key, slot, 0, 1e-3, BEGAN + 4.0))
            store.finish_slot(session, slot, {"best": 1e-3, "elapsed": 5.0})


def play(
    store: Store,
    session: str,
    hardware: str,
    keys: list[str],
    slots: range,
    rng: np.random.Generator,
    failures: bool = True,
) -> None:
    """Write slots, in one transaction: a hundred thousand trials in seconds."""
    with store.database.transaction():
        for number in slots:
            slot = len(keys) + number
            key = keys[int(len(keys) * rng.random() ** 2)]
            store.begin_slot(session, slot, key, [], 0.25, {})
            began = BEGAN + 5.0 + number * 2.0
            for position in range(SLOT):
                seconds = float(1e-3 * (0.2 + rng.random() ** 0.5)) * (1 - 0.5 * number / slots.stop)
                broken = failures and rng.random() < 0.1
                at = began + 0.25 + position * 0.2
                store.append_trial(
                    made_up_trial(session, hardware, key, slot, position, None if broken else seconds, at)
                )
            store.finish_slot(session, slot, {"best": 1e-3, "elapsed": 5.0 + (number + 1) * 2.0})


def made_up_trial(
    session: str, hardware: str, key: str, slot: int, position: int, seconds: float | None, at: float
) -> TrialRecord:
    program = ProgramRecord(digest(SKETCH), f"[[{2 ** (position % 3)},2,16],{position % 3}]", "diffusion:keep")
    return TrialRecord(
        operator=key,
        hardware=hardware,
        program=program,
        samples=() if seconds is None else (seconds,),
        failure="run error" if seconds is None else None,
        message="made up <b>failure</b>" if seconds is None else "",
        build_seconds=0.1,
        run_seconds=0.05,
        measured_at=at,
        session=session,
        slot=slot,
        position=position,
    )
