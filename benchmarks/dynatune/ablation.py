"""Ablation: DynaTune, without potential, the paper's own bound, and no belief (highest latency / (slots + 1)).

python -m benchmarks.dynatune.ablation
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.dynatune.command import run
from benchmarks.dynatune.convergence import convergence
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    return convergence(study, "ablation", ("dynatune", "dynatune_no_potential", "dynatune_paper", "no_belief"))


if __name__ == "__main__":
    run(make, __doc__)
