"""A fleet with GPUs on a real Ray cluster: who builds, who measures, and what is refused. The GPUs are described ones,
and the CPU runs what they would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.machine.hardware import class_of, cpu_class
from slipstream.machine.target import resolve_target
from slipstream.measure import Engine, FailureKind, Settling, reference_text
from slipstream.measure.fleet import connection
from slipstream.measure.fleet.devices import FleetDevices
from slipstream.measure.fleet.look import check_nodes, look
from slipstream.measure.fleet.offer import Offer
from slipstream.measure.fleet.ray_connection import FleetError
from tests.measure import gpu_fleet, misbehaving
from tests.measure.fleet_cluster import FleetCluster
from tests.measure.gpu_fleet import H200, gpu_target
from tests.measure.test_fleet import CONFIG, good_programs, needs_ray

pytestmark = [needs_ray, pytest.mark.slow]
OTHER = class_of(gpu_target(replace(H200, name="NVIDIA H100")))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each process that has a GPU leaves which one."""
    return tmp_path_factory.mktemp("gpus")


@pytest.fixture(scope="module")
def cluster(seen: Path) -> Iterator[FleetCluster]:
    """A node that only builds, one with two GPUs and a CPU, and one whose GPU is of another kind."""
    with FleetCluster() as cluster:
        cluster.add(Offer(2, {}))
        for offer in (
            Offer(1, {cpu_class(): 1, class_of(gpu_target()): 2}, gpus="GPU-a,GPU-b"),
            Offer(1, {cpu_class(): 1, OTHER: 1}, gpus="GPU-c"),
        ):
            cluster.add(offer, environment={"GPUS_SEEN": str(seen)})
        yield cluster


def test_all_nodes_build_and_only_gpus_of_the_class_measure(
    cluster: FleetCluster, seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GATEWAY", gpu_fleet.__name__)
    references = {misbehaving.KEY: reference_text(misbehaving.good(1))}
    devices = FleetDevices(cluster.address, gpu_target(), CONFIG)
    with Engine(resolve_target(), references, devices, CONFIG) as measurer:
        bad = {name: misbehaving.BAD[name] for name in ("segfault", "wrong result")}
        programs = [misbehaving.program(func, label) for label, (func, _) in bad.items()]
        programs += good_programs(*(2**n for n in range(12)))
        results = {m.program.label: m for m in measurer.measure(programs)}
        good = [m for label, m in results.items() if label not in bad]
        settling = Settling(near=1e6, least_rounds=3, most_rounds=4)
        # A program is freed while the next ones are started: a GPU's process answers all in turn.
        settled = [measurer.settle(good[n : n + 3], np.random.default_rng(0), settling) for n in range(0, 12, 3)]
        views = look(cluster.address, stats=True)
    assert [m.failure for m in good] == [None] * 12
    for label, (_, kinds) in bad.items():
        failure = results[label].failure
        assert failure is not None
        assert failure.kind in kinds
        assert failure.kind is not FailureKind.DEVICE_LOST
    assert [one is not None and len(one.finalists) for one in settled] == [3] * 4
    assert {note.read_text() for note in seen.iterdir()} == {"GPU-a", "GPU-b"}
    assert all(view.stats["built"] for view in views)
    assert all("ran" not in view.stats for view in views if class_of(gpu_target()) not in view.node.devices)


def test_a_class_that_no_node_has_is_refused_in_one_line(cluster: FleetCluster) -> None:
    check_nodes(cluster.address, OTHER)
    missing = class_of(gpu_target(replace(H200, name="NVIDIA A10", architecture="sm_86")))
    with pytest.raises(FleetError, match=f"has a device like this machine's, class {missing}") as error:
        check_nodes(cluster.address, missing)
    assert class_of(gpu_target()) in str(error.value)
    assert "\n" not in str(error.value)
