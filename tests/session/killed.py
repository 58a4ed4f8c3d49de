"""A session that is killed with SIGKILL again and again at random moments until it gets to its end.

python -m tests.session.killed STORE LOG STATE TRIALS COST: prints how often it was killed and how it ended. Each
attempt is a forked child of this process, which has imported everything but has started no thread: attempts are cheap.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from slipstream.tvm_bridge.imports import import_tvm_without_torch

import_tvm_without_torch()

from slipstream.session.budget import Budget  # noqa: E402
from tests.session.synthetic import Scored, SyntheticMeasurer, operators, play, space  # noqa: E402

SETTINGS: dict[str, Any] = {"slot_trials": 6, "patience_trials": 40, "seed": 5}


def main(store: str, log: str, state: str, trials: str, cost: str) -> None:
    for key in operators():
        assert space(key).sketches is not None
    chance, kills, status = random.Random(0), 0, None
    while status is None:
        child = os.fork()
        if child == 0:
            _attempt(Path(store), Path(log), Path(state), int(trials), cost)
        status = _wait_or_kill(child, Path(log), chance)
        kills += status is None
    print(kills, status)


def _wait_or_kill(child: int, log: Path, chance: random.Random) -> int | None:
    """Kill the child somewhere between its start and a few trials later; its exit status if it was through before."""
    wanted = _measured(log) + chance.randint(0, 3)
    while _measured(log) < wanted:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return status
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else status


def _measured(log: Path) -> int:
    return log.read_text().count("\n") if log.exists() else 0


def _attempt(store: Path, log: Path, state: Path, trials: int, cost: str) -> None:
    try:
        measurer = SyntheticMeasurer(pause=0.02, log=log)
        session, _ = play(store, Budget(trials=trials), measurer, proposer=Scored(), cost=cost, **SETTINGS)
        state.write_bytes(session.cost.state())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
