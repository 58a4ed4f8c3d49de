"""DynaTune and policies that plan ahead (the paper's figure 8).

python -m benchmarks.dynatune.against_static
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.dynatune.command import run
from benchmarks.dynatune.convergence import convergence
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    return convergence(study, "against_static", ("dynatune", "random", "round_robin", "linear"))


if __name__ == "__main__":
    run(make, __doc__)
