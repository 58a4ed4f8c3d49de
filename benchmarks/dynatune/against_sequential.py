"""DynaTune, one operator after the other, and the oracle (the paper's figure 7).

python -m benchmarks.dynatune.against_sequential
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.dynatune.command import run
from benchmarks.dynatune.convergence import convergence
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    return convergence(study, "against_sequential", ("dynatune", "sequential", "oracle", "dynatune_paper"))


if __name__ == "__main__":
    run(make, __doc__)
