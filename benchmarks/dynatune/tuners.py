"""The tuners of single operators that DynaTune's paper builds on or compares with, as settings of a recording.

AutoTVM no longer exists in TVM: MetaSchedule's evolutionary search with boosted trees stands in for its simulated
annealing with boosted trees. All three search MetaSchedule's sketches alone, start from a random program of these, and
share nothing between operators.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.dynatune.curves import CURVES

TUNER_CURVES = CURVES / "tuners"  # a folder for each tuner
_COMMON: dict[str, Any] = {"without": ["own_sketches"], "population": 64, "generations": 2}
# Name -> (how figures call it, options of `slipstream.tune`, settings).
TUNERS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "autotvm": ("AutoTVM stand-in", {"search": "evolutionary", "evaluation": "fixed"}, _COMMON | {"slot_trials": 16}),
    # Up to 32 centroids, as many as the knee of their loss says.
    "chameleon": ("Chameleon", {"search": "chameleon", "evaluation": "fixed"}, _COMMON | {"slot_trials": 32}),
    "adatune": ("AdaTune stand-in", {"search": "evolutionary", "evaluation": "adatune"}, _COMMON | {"slot_trials": 16}),
}


def folder_of(tuner: str, curves: Path = TUNER_CURVES) -> Path:
    """Where a tuner's recordings are."""
    return curves / tuner
