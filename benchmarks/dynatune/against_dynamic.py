"""DynaTune and policies that skip finished operators but predict nothing (the paper's figure 9).

python -m benchmarks.dynatune.against_dynamic
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.dynatune.command import run
from benchmarks.dynatune.convergence import convergence
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    return convergence(study, "against_dynamic", ("dynatune", "dynamic_random", "dynamic_round_robin"))


if __name__ == "__main__":
    run(make, __doc__)
