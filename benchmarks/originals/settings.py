"""The artifact's commit and the settings its authors state in its README and scripts."""

from __future__ import annotations

from dataclasses import dataclass

COMMIT = "c50d6a56d0863eeb7aa1b24a7c0b839394ec1350"

# experiments/script.sh and the scripts it calls.
TRIALS_PER_TASK = 200
MEASURES_PER_ROUND = 64
MEASURE = {"repeat": 1, "min_repeat_ms": 300, "timeout": 10}
_NCHW = ("squeezenet1_1",)  # the authors tune SqueezeNet in NCHW, every other model in NHWC

# CPUs that LLVM 14, which the artifact is built with, does not know: its TVM refuses them. The closest that it knows.
KNOWN_TO_LLVM_14 = {
    "emeraldrapids": "sapphirerapids",
    "graniterapids": "sapphirerapids",
    "znver4": "znver3",
    "znver5": "znver3",
    "neoverse-v2": "neoverse-v1",
}


@dataclass(frozen=True)
class Side:
    """One of the artifact's tuners: the tree it is built from and how it groups operators."""

    tree: str
    groups: str = ""


ANSOR = "ansor"
# Chosen before anything was run: the default of the authors' script and of their class.
CODE_DIFFUSION = "code-diffusion"
# Reported beside it.
BY_SKETCH = "code-diffusion-sketch"
SIDES = {
    ANSOR: Side("ansor"),
    CODE_DIFFUSION: Side("code-diffusion", "operator"),
    BY_SKETCH: Side("code-diffusion", "sketch"),
}


def layout(model: str) -> str:
    return "NCHW" if model in _NCHW else "NHWC"
