"""What a session finds out once and keeps in its store, by name: its report is made of it without TVM."""

from __future__ import annotations

import json
from typing import Any

from slipstream.store import Store

PEAK_FLOPS = "peak_flops"  # FLOP/s the target can do: a number
BANDWIDTH = "bandwidth"  # bytes/s it can stream: a number; measured when tuning ends
FAMILIES = "families"  # [{"similarity": {key: mean likeness to the others}}]
WINNERS = "winners"  # {key: [digest of the sketch, decisions]} of the programs in the compiled model
SHAPES = "shapes"  # {label of a shape or model: {key: calls of the operator}}; nothing for one model of one shape
WEIGHTS = "weights"  # {label: how often it counts} of several models; nothing for one


def save(store: Store, session: str, name: str, value: Any) -> None:
    store.put_state(session, name, 0, json.dumps(value).encode())
