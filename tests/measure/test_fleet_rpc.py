"""RPC devices as measurers of a fleet: a real tracker, real servers, and a real Ray cluster with a node near them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

from slipstream.machine.hardware import cpu_class
from slipstream.measure import Engine, Settling
from slipstream.measure.devices.rpc_tracker import DeviceError
from slipstream.measure.fleet.look import look
from slipstream.measure.fleet.offer import Offer, offer_near_rpc
from slipstream.measure.types import FailureKind
from tests.measure import misbehaving
from tests.measure.fleet_cluster import FleetCluster
from tests.measure.test_fleet import good_programs, measurer_on, needs_ray
from tests.measure.test_rpc import HOST, Farm, farm, kill_group, needs_tracker, ours, wait_until

__all__ = ["farm", "ours"]
pytestmark = [needs_ray, needs_tracker, pytest.mark.slow]


@pytest.fixture(scope="module")
def offer(farm: Farm, ours: list[subprocess.Popen[bytes]]) -> Offer:
    return offer_near_rpc(f"{HOST}:{farm.port}", "ours", builders=1)


@pytest.fixture(scope="module")
def cluster(offer: Offer) -> Iterator[FleetCluster]:
    """A node near two RPC devices, and one that builds alone."""
    with FleetCluster() as cluster:
        cluster.add(offer)
        cluster.add(Offer(1, {}))
        yield cluster


@pytest.fixture(scope="module")
def measurer(cluster: FleetCluster) -> Iterator[Engine]:
    with measurer_on(cluster) as measurer:
        yield measurer


def test_the_label_is_the_hardware_of_the_device(offer: Offer, cluster: FleetCluster) -> None:
    assert offer.devices == {cpu_class(): 2}
    assert sorted(sum(view.node.devices.values()) for view in look(cluster.address)) == [0, 2]


def test_programs_built_on_any_node_get_the_verdicts_of_a_session_with_rpc(measurer: Engine) -> None:
    bad = {name: misbehaving.BAD[name] for name in ("segfault", "endless loop", "wrong result")}
    programs = [misbehaving.program(func, label) for label, (func, _) in bad.items()]
    programs += good_programs(1, 2, 4, 8)
    results = {m.program.label: m for m in measurer.measure(programs)}
    for label, (_, kinds) in bad.items():
        failure = results[label].failure
        assert failure is not None, label
        assert failure.kind in kinds, failure
    for step in (1, 2, 4, 8):
        good = results[f"good {step}"]
        assert good.failure is None, good.failure
        assert good.verified
        assert good.samples
    assert {name.rpartition("/")[2] for name in measurer.devices.drifts} <= {"rpc-0", "rpc-1"}
    assert measurer.devices.drifts


def test_finalists_are_compared_on_one_device(measurer: Engine) -> None:
    results = list(measurer.measure(good_programs(16, 32)))
    settled = measurer.settle(results, np.random.default_rng(0), Settling(near=1e6, least_rounds=3, most_rounds=4))
    assert settled is not None
    assert len(settled.finalists) == 2
    assert all(finalist.samples for finalist in settled.finalists)


def test_a_server_that_is_killed_costs_its_time_and_one_that_comes_back_is_used(
    farm: Farm, ours: list[subprocess.Popen[bytes]], measurer: Engine
) -> None:
    stream = measurer.measure(good_programs(64, 128, 256, 512))
    first = next(stream)
    kill_group(ours[0])
    results = [first, *stream]
    assert [m.failure for m in results] == [None] * 4
    ours[:1] = farm.serve("slipstream.measure.rpc_server", "ours", 1)
    wait_until(lambda: farm.servers("ours") == 2)


def test_no_server_left_is_said_in_one_line(farm: Farm, cluster: FleetCluster) -> None:
    (server,) = farm.serve("slipstream.measure.rpc_server", "alone", 1)
    wait_until(lambda: farm.servers("alone") == 1)
    with FleetCluster() as alone:
        alone.add(offer_near_rpc(f"{HOST}:{farm.port}", "alone", builders=1))
        with measurer_on(alone) as measurer:
            assert [m.failure for m in measurer.measure(good_programs(1))] == [None]
            kill_group(server)
            (lost,) = measurer.measure(good_programs(2))
    assert lost.failure is not None
    assert lost.failure.kind is FailureKind.DEVICE_LOST
    assert "\n" not in lost.failure.message


def test_a_server_of_tvm_does_not_say_its_hardware(farm: Farm) -> None:
    (server,) = farm.serve("tvm.exec.rpc_server", "stock", 1)
    wait_until(lambda: farm.servers("stock") == 1)
    with pytest.raises(DeviceError, match="TVM's own server, which does not say what hardware it is: start"):
        offer_near_rpc(f"{HOST}:{farm.port}", "stock")
    kill_group(server)
