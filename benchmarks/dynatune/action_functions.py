"""The three action functions on the same belief (the paper's figures 14 to 18).

python -m benchmarks.dynatune.action_functions
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.dynatune.command import run
from benchmarks.dynatune.convergence import convergence
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    return convergence(study, "action_functions", ("dynatune", "epsilon_greedy", "softmax"))


if __name__ == "__main__":
    run(make, __doc__)
