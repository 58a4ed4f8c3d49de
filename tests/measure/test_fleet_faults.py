"""What a fleet must survive, on a real Ray cluster of several nodes on this machine."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import slipstream
from slipstream.artifact.manifest import Manifest
from slipstream.machine.hardware import cpu_class
from slipstream.measure.fleet.look import look
from slipstream.measure.fleet.offer import Offer
from slipstream.session.directory import SessionDirectory
from slipstream.store import Store
from tests.measure.fleet_cluster import FleetCluster
from tests.measure.test_fleet import CONFIG, good_programs, measurer_on, needs_ray

pytestmark = [needs_ray, pytest.mark.slow]
TRIALS = 80


@pytest.fixture
def cluster() -> Iterator[FleetCluster]:
    with FleetCluster() as cluster:
        yield cluster


def offer() -> Offer:
    return Offer(1, {cpu_class(): 1})


def trials_of(directory: Path) -> list[Any]:
    folder = SessionDirectory.read(directory)
    with Store.open(folder.store, read_only=True) as store:
        return list(store.trials(session=folder.session))


class Killer(threading.Thread):
    """Kills a random node every few seconds and lets another join, until it is stopped."""

    def __init__(self, cluster: FleetCluster, nodes: list[int], seed: int) -> None:
        super().__init__(daemon=True)
        self._cluster, self._nodes, self._random = cluster, nodes, random.Random(seed)
        self._over = threading.Event()
        self.killed = 0

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(8.0, 16.0)):
            victim = self._random.choice(self._nodes)
            self._nodes.remove(victim)
            self._cluster.kill(victim)
            self.killed += 1
            self._nodes.append(self._cluster.add(offer()))

    def end(self) -> None:
        self._over.set()
        self.join()


def test_nodes_killed_at_random_cost_nothing_but_their_time(cluster: FleetCluster, tmp_path: Path) -> None:
    killer = Killer(cluster, [cluster.add(offer()) for _ in range(3)], seed=1)
    killer.start()
    try:
        result = slipstream.tune("zoo:tiny_cnn", tmp_path / "out", trials=TRIALS, effort="quick", fleet=cluster.address)
    finally:
        killer.end()
    assert killer.killed >= 2
    trials = trials_of(tmp_path / "out")
    assert len(trials) == result.trials >= TRIALS
    assert max(Counter((trial.slot, trial.position) for trial in trials).values()) == 1
    assert "device lost" not in result.failures, result.failures
    manifest = Manifest.read(tmp_path / "out" / "model")
    assert manifest.verification is not None
    assert not result.snapshot.fallback


def test_a_frozen_node_is_left_behind(cluster: FleetCluster) -> None:
    for _ in range(2):
        cluster.add(offer())
    with measurer_on(cluster) as measurer:
        assert all(m.failure is None for m in measurer.measure(good_programs(1, 2)))
        frozen = actors(cluster)[0]
        family = [frozen, *frozen.children(recursive=True)]
        for process in family:
            process.suspend()
        try:
            began = time.monotonic()
            results = list(measurer.measure(good_programs(4, 8, 16, 32, 64)))
            assert [m.failure for m in results] == [None] * 5
            assert all(m.run_seconds < CONFIG.run_seconds for m in results)
            assert time.monotonic() - began < 60
        finally:
            for process in family:
                if process.is_running():
                    process.resume()


def test_a_killed_session_goes_on_with_the_same_fleet(cluster: FleetCluster, tmp_path: Path) -> None:
    cluster.add(offer())
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from slipstream.cli import main; main()"]
    options = ["--fleet", cluster.address, "--effort", "quick", "--quiet"]
    driver = subprocess.Popen([*command, "tune", "zoo:tiny_cnn", "-o", str(out), "--trials", "60", *options])
    wait_for(lambda: (out / "session.json").exists() and len(trials_of(out)) >= 15, 120)
    driver.kill()
    driver.wait()
    before = len(trials_of(out))
    wait_for(lambda: all(not view.stats for view in look(cluster.address, stats=True)), 30)
    subprocess.run([*command, "resume", str(out), "--quiet"], check=True)
    trials = trials_of(out)
    assert before < 60 <= len(trials)
    assert max(Counter((trial.slot, trial.position) for trial in trials).values()) == 1
    assert Manifest.read(out / "model").verification is not None


def test_a_fleet_that_vanishes_leaves_a_session_that_can_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FleetCluster() as cluster:
        node = cluster.add(offer())

        def kill_the_node(event: Any, snapshot: Any) -> None:
            if event.kind == "trial" and snapshot.trials == 20:
                cluster.kill(node)

        result = slipstream.tune(
            "zoo:tiny_cnn",
            out,
            trials=60,
            effort="quick",
            fleet=cluster.address,
            callbacks=[kill_the_node],
        )
    assert result.reason == "the devices are away"
    assert (out / "model").is_dir()
    assert 20 <= sum(trial.failure != "device lost" for trial in trials_of(out)) < 60


def test_a_session_whose_head_is_lost_goes_on_with_another_cluster(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FleetCluster() as cluster:
        cluster.add(offer())

        def lose_it(event: Any, snapshot: Any) -> None:
            if event.kind == "trial" and snapshot.trials == 20:
                cluster.head().kill()

        try:
            # Nodes go on for a while without a head: the session must not be done by then.
            patient = {"patience_trials": 1_000_000}
            result = slipstream.tune(
                "zoo:tiny_cnn", out, trials=5000, fleet=cluster.address, callbacks=[lose_it], settings=patient
            )
        finally:
            for process in cluster.processes():
                with suppress(psutil.NoSuchProcess):
                    process.resume()
                    process.kill()
    assert result.reason == "the devices are away"
    assert (out / "model").is_dir()
    before = {(trial.slot, trial.position): trial.measured_at for trial in measured(out)}
    assert len(before) >= 20
    with FleetCluster() as another:
        another.add(offer())
        slipstream.resume(out, trials=20, fleet=another.address)
    after = [(trial.slot, trial.position) for trial in measured(out)]
    assert set(before) < set(after)
    assert len(set(after)) == len(after)
    assert Manifest.read(out / "model").verification is not None


def measured(directory: Path) -> list[Any]:
    return [trial for trial in trials_of(directory) if trial.failure != "device lost"]


def test_a_build_that_straggles_is_given_to_another_node(cluster: FleetCluster) -> None:
    """The node of one build stands still, but for its actor: it answers late, and nobody waits for it."""
    for _ in range(2):
        cluster.add(offer())
    with measurer_on(cluster, replace(CONFIG, build_seconds=60.0)) as measurer:
        assert all(m.failure is None for m in measurer.measure(good_programs(1, 2)))
        living = [p for p in actors(cluster)[0].children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
        servers = [p for p in living if "slipstream.processes.server" in p.cmdline()]
        for process in servers:
            process.suspend()
        try:
            began = time.monotonic()
            results = list(measurer.measure(good_programs(4, 8)))
            assert [m.failure for m in results] == [None] * 2
            assert time.monotonic() - began < 60.0
        finally:
            for process in servers:
                process.resume()


def actors(cluster: FleetCluster) -> list[psutil.Process]:
    return cluster.named("ray::Node")


def wait_for(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)
