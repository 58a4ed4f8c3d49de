"""DynaTune and Ansor's scheduler: the whole course (the paper's figure 20) and its end (figure 21).

python -m benchmarks.dynatune.against_gradient
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.dynatune.command import run
from benchmarks.dynatune.convergence import convergence
from benchmarks.dynatune.replays import Study


def make(study: Study) -> list[Path]:
    return [
        *convergence(study, "against_gradient", ("dynatune", "gradient", "sequential")),
        *convergence(study, "against_gradient_detail", ("dynatune", "gradient"), detail=True),
    ]


if __name__ == "__main__":
    run(make, __doc__)
