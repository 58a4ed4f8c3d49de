"""Runs at a time, each on cores of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from benchmarks.lanes import in_lanes, on_cores, pinned, shares
from slipstream.errors import SlipstreamError

CORES = sorted(os.sched_getaffinity(0))
SHOW = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]


def test_the_cores_are_shared_out_equally_and_once() -> None:
    for count in range(1, len(CORES) + 1):
        found = shares(count)
        assert len(found) == count
        assert {len(cores) for cores in found} == {len(CORES) // count}
        assert len({core for cores in found for core in cores}) == count * (len(CORES) // count)


@pytest.mark.parametrize("count", [0, len(CORES) + 1])
def test_more_lanes_than_cores_are_refused(count: int) -> None:
    with pytest.raises(SlipstreamError, match=f"--lanes {count} does not fit.*give 1 to {len(CORES)}"):
        shares(count)


def test_two_items_never_have_the_same_cores_at_a_time() -> None:
    count = min(2, len(CORES))
    used: list[int] = []
    lock = threading.Lock()

    def work(item: int, cores: Sequence[int]) -> int:
        with lock:
            assert not set(used) & set(cores)
            used.extend(cores)
        threading.Event().wait(0.02)
        with lock:
            for core in cores:
                used.remove(core)
        return item**2

    assert list(in_lanes(count, work, range(7))) == [item**2 for item in range(7)]


def test_a_command_runs_where_it_is_pinned() -> None:
    last = CORES[-1:]
    assert subprocess.check_output([*pinned(last), *SHOW], text=True).split() == [str(last[0])]
    with on_cores(last):
        assert subprocess.check_output(SHOW, text=True).split() == [str(last[0])]
    assert sorted(os.sched_getaffinity(0)) == CORES
    assert pinned([]) == []
