"""A fleet whose network is lost, between two real networks on this machine: packets are dropped, nobody is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from slipstream.artifact.manifest import Manifest
from tests.measure.cut_network import FAR, NEAR, Cable, is_possible
from tests.measure.test_fleet import needs_ray
from tests.measure.test_fleet_faults import measured, trials_of, wait_for

pytestmark = [
    needs_ray,
    pytest.mark.slow,
    pytest.mark.usefixtures("ordinary_signals"),
    pytest.mark.skipif(not is_possible(), reason="needs network namespaces: unshare, nsenter and ip"),
]
SLIPSTREAM = [sys.executable, "-c", "from slipstream.cli import main; main()"]
# A fleet that is away is given up after about two minutes, whatever of it is away.
MOST_SECONDS = 300


class Command:
    """A command of ours in one of the networks. `said` is all that it has printed."""

    def __init__(self, network: list[str], log: Path, *words: str) -> None:
        self._log = log
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [*network, *SLIPSTREAM, *words], stdout=file, stderr=subprocess.STDOUT, env=environment
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_until_said(self, text: str, seconds: float = 120) -> None:
        wait_for(lambda: text in self.said or self._process.poll() is not None, seconds)
        assert text in self.said, self.said

    def wait(self, seconds: float) -> None:
        """Until it has ended, as it should."""
        assert self._process.wait(seconds) == 0, self.said

    def leave(self) -> None:
        if self._process.poll() is None:
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            for child in psutil.wait_procs(children, timeout=30)[1]:
                child.kill()


@contextmanager
def fleet(cable: Cable, folder: Path, head: str) -> Iterator[list[str]]:
    """A head at one of the addresses and a node on the far side; gives the options of a session on the near one."""
    side, other = (cable.near, f"{head}:6379") if head == NEAR else (cable.far, f"ray://{head}:10001")
    with ExitStack() as stack:
        started = Command(side, folder / "head.txt", "fleet", "start", "--host", head)
        stack.callback(started.leave)
        started.wait_until_said("the fleet is at")
        words = ("fleet", "join", f"{head}:6379", "--host", FAR, "--builders", "2")
        node = Command(cable.far, folder / "node.txt", *words)
        stack.callback(node.leave)
        node.wait_until_said("joined")
        yield ["--fleet", other]


def assert_nothing_is_lost(out: Path, before: set[tuple[int, int]]) -> None:
    trials = Counter((trial.slot, trial.position) for trial in trials_of(out))
    assert before < set(trials)
    assert max(trials.values()) == 1
    assert Manifest.read(out / "model").verification is not None


def test_a_short_loss_costs_its_time_and_a_long_one_ends_in_a_session_that_goes_on(tmp_path: Path) -> None:
    """The session is a client of a cluster that is wholly on the other side."""
    out = tmp_path / "out"
    with Cable() as cable, fleet(cable, tmp_path, FAR) as options:
        words = ["tune", "zoo:tiny_cnn", "-o", str(out), "--trials", "2000", "--effort", "quick", "--plain", *options]
        tune = Command(cable.near, tmp_path / "tune.txt", *words)
        with ExitStack() as stack:
            stack.callback(tune.leave)
            wait_for(lambda: (out / "session.json").exists() and len(trials_of(out)) >= 10, 120)
            cable.cut()
            time.sleep(2)
            seen = len(trials_of(out))
            time.sleep(6)
            assert len(trials_of(out)) == seen
            cable.mend()
            wait_for(lambda: len(trials_of(out)) >= 20, 60)
            assert all(trial.failure != "device lost" for trial in trials_of(out))
            cable.cut()
            tune.wait(MOST_SECONDS)
        assert "nothing can be measured" in tune.said
        assert "the devices are away; the compiled model is in" in tune.said
        assert f"everything measured is kept: slipstream resume {out} goes on" in tune.said
        assert "Traceback" not in tune.said
        before = {(trial.slot, trial.position) for trial in measured(out)}
        cable.mend()
        resume = Command(cable.near, tmp_path / "resume.txt", "resume", str(out), "--trials", "10", "--plain")
        resume.wait(200)
        assert "all trials are used" in resume.said
    assert_nothing_is_lost(out, before)


def test_a_session_whose_nodes_are_lost_ends_soon_and_keeps_all(tmp_path: Path) -> None:
    """The head is where the session is, the node on the other side."""
    out = tmp_path / "out"
    with Cable() as cable, fleet(cable, tmp_path, NEAR) as options:
        words = ["tune", "zoo:tiny_cnn", "-o", str(out), "--trials", "2000", "--effort", "quick", "--plain", *options]
        tune = Command(cable.near, tmp_path / "tune.txt", *words)
        with ExitStack() as stack:
            stack.callback(tune.leave)
            wait_for(lambda: (out / "session.json").exists() and len(trials_of(out)) >= 10, 120)
            cable.cut()
            before = {(trial.slot, trial.position) for trial in measured(out)}
            tune.wait(MOST_SECONDS)
        assert "no node of the fleet has a device of the class" in tune.said
        assert f"everything measured is kept: slipstream resume {out} goes on" in tune.said
    assert_nothing_is_lost(out, before)
