"""Measuring on the nodes of a real Ray cluster on this machine, some of which die, freeze or do not fit."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slipstream.machine.cuda import CudaDevice
from slipstream.machine.hardware import class_of, cpu_class
from slipstream.machine.target import resolve_target
from slipstream.measure import Engine, MeasureConfig, RemoteConfig, Settling, fleet_measurer, reference_text
from slipstream.measure.fleet.devices import FleetDevices
from slipstream.measure.fleet.look import check_nodes, look
from slipstream.measure.fleet.offer import GPUS, Offer, offer_of_this_machine, seen_nodes, versions
from slipstream.measure.fleet.ray_connection import FleetError
from slipstream.measure.fleet.standing import Standings
from slipstream.measure.roles import target_of
from slipstream.measure.timing.noise import Drift
from slipstream.measure.types import Candidate
from tests.measure import misbehaving
from tests.measure.fleet_cluster import HOST, FleetCluster

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="a fleet needs Ray: pip install 'slipstream[fleet]'"
)
CONFIG = MeasureConfig(run_seconds=2.0, remote=RemoteConfig(patience_seconds=3.0))


def node_row(**labels: str) -> dict[str, Any]:
    """A node as `ray.nodes()` lists it."""
    theirs = {f"slipstream-{name}": value for name, value in {**versions(), **labels}.items()}
    resources = {"CPU": 4.0, "memory": 1e9, "slipstream": 1.0, "slipstream-cpu-0123": 1.0}
    return {"NodeID": "ab" * 16, "Alive": True, "NodeManagerAddress": HOST, "Resources": resources, "Labels": theirs}


def test_a_node_says_what_it_offers() -> None:
    (node,) = seen_nodes([node_row()])
    assert (node.builders, node.devices, node.why_not) == (4, {"cpu-0123": 1}, "")
    assert node.resources("cpu-0123") == {"slipstream": 1, "slipstream-cpu-0123": 1}
    assert node.resources("cuda-4567") == {"slipstream": 1}
    foreign = {**node_row(), "Resources": {"CPU": 4.0}}
    assert seen_nodes([foreign, {**node_row(), "Alive": False}]) == []


@pytest.mark.parametrize(("name", "word"), [("tvm", "TVM"), ("python", "Python"), ("version", "Slipstream")])
def test_a_node_with_another_version_is_refused_in_one_line(name: str, word: str) -> None:
    (node,) = seen_nodes([node_row(**{name: "0.0"})])
    assert node.why_not == (
        f"node {HOST} has {word} 0.0, this machine has {word} {versions()[name]}: install the same there and join again"
    )


def test_the_class_is_that_of_the_machine_whatever_the_target_asks_of_it() -> None:
    target = resolve_target("cpu", threads=1)
    assert class_of(target) == cpu_class() == class_of(resolve_target("cpu"))


def test_a_described_gpu_has_the_label_that_a_session_for_it_asks_for_and_is_built_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No node with a GPU has ever run here: what is sent and compared is all that can be checked without one."""
    gpu = CudaDevice("NVIDIA H200", "sm_90", 232448, multiprocessors=132)
    other = replace(gpu, name="NVIDIA H100")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("slipstream.machine.hardware.find_devices", lambda: (gpu, other, gpu))
    target = replace(resolve_target("cpu"), gpu=gpu, dtype="float16")
    offer = offer_of_this_machine(builders=4)
    assert offer.devices == {cpu_class(): 1, class_of(target): 2}
    assert offer.environment()[GPUS] == "0,2"
    assert class_of(replace(target, gpu=other)) not in offer.devices
    seen = {**node_row(), "Resources": {"CPU": 4.0, **offer.resources()}}
    (node,) = seen_nodes([seen])
    assert node.resources(class_of(target)) == {"slipstream": 1, f"slipstream-{class_of(target)}": 2}
    sent = json.loads(json.dumps(FleetDevices("", target, CONFIG).options))
    assert sent["hardware"] == class_of(target)
    built_for = target_of(sent["target"])
    assert built_for == target
    assert built_for.tvm.attrs["arch"] == "sm_90"
    assert built_for.tvm.host.attrs["mcpu"] == target.cpu


def test_a_device_slower_than_its_equals_is_set_aside_until_it_has_recovered() -> None:
    drifts: dict[str, Drift] = {}
    standings = Standings(drifts)
    for _ in range(4):
        for device in "abc":
            standings.timed(device, [1.0, 1.1, 1.0])
    assert standings.aside("abc") == frozenset()
    standings.timed("b", [2.0, 2.0])
    assert standings.aside("abc") == frozenset()  # once can be chance
    for _ in range(2):
        standings.timed("b", [2.0, 2.0])
    assert standings.aside("abc") == {"b"}
    assert set(drifts) == {"a", "b", "c"}
    for _ in range(3):
        standings.timed("b", [1.0, 1.0])
    assert standings.aside("abc") == frozenset()


def test_one_device_is_always_left_when_all_are_slow() -> None:
    standings = Standings({})
    for seconds in (1.0, 1.0, 3.0, 3.0, 3.0):
        for device in "ab":
            standings.timed(device, [seconds + (device == "a")])
    assert standings.aside("ab") == {"a"}


def test_a_device_that_computes_wrongly_twice_is_set_aside_for_good() -> None:
    standings = Standings({})
    standings.was_wrong("a")
    assert standings.aside("ab") == frozenset()
    standings.was_wrong("a")
    assert standings.aside("ab") == {"a"}
    standings.timed("a", [1.0])
    assert standings.aside("ab") == {"a"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[FleetCluster]:
    with FleetCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def node(cluster: FleetCluster) -> int:
    return cluster.add(Offer(2, {cpu_class(): 1}))


@pytest.fixture(scope="module")
def measurer(cluster: FleetCluster, node: int) -> Iterator[Engine]:
    with measurer_on(cluster) as measurer:
        yield measurer


def measurer_on(cluster: FleetCluster, config: MeasureConfig = CONFIG) -> Engine:
    references = {misbehaving.KEY: reference_text(misbehaving.good(1))}
    return fleet_measurer(cluster.address, resolve_target(), references, config)


def good_programs(*steps: int) -> list[Candidate]:
    return [misbehaving.program(misbehaving.good(step), f"good {step}") for step in steps]


@needs_ray
@pytest.mark.slow
def test_programs_get_the_verdicts_of_one_machine(measurer: Engine) -> None:
    bad = {
        name: misbehaving.BAD[name] for name in ("segfault", "abort", "endless loop", "wrong result", "unknown symbol")
    }
    programs = [misbehaving.program(func, label) for label, (func, _) in bad.items()]
    programs += good_programs(1, 2, 4)
    results = {m.program.label: m for m in measurer.measure(programs)}
    assert set(results) == {program.label for program in programs}
    for label, (_, kinds) in bad.items():
        failure = results[label].failure
        assert failure is not None, label
        assert failure.kind in kinds, failure
    abort = results["abort"].failure
    assert abort is not None
    assert "last words" in abort.stderr
    for label in ("good 1", "good 2", "good 4"):
        assert results[label].failure is None, results[label].failure
        assert results[label].verified
        assert results[label].samples
        assert results[label].run_seconds < CONFIG.run_seconds


@needs_ray
@pytest.mark.slow
def test_equal_code_is_measured_once_and_finalists_are_compared(measurer: Engine) -> None:
    results = list(measurer.measure([*good_programs(8, 16), *good_programs(8)]))
    assert sorted(m.duplicate for m in results) == [False, False, True]
    settled = measurer.settle(results, np.random.default_rng(0), Settling(near=1e6, least_rounds=3, most_rounds=4))
    assert settled is not None
    assert len(settled.finalists) == 2
    assert settled.winner.program.label in ("good 8", "good 16")


@needs_ray
@pytest.mark.slow
def test_a_fleet_without_such_a_device_is_refused(cluster: FleetCluster, node: int) -> None:
    check_nodes(cluster.address, cpu_class())
    with pytest.raises(FleetError, match="has a device like this machine's, class cuda-0"):
        check_nodes(cluster.address, "cuda-0")
    (view,) = look(cluster.address)
    assert view.node.devices == {cpu_class(): 1}


@needs_ray
def test_no_cluster_is_one_line() -> None:
    with pytest.raises(FleetError, match=r"no Ray cluster at 127\.0\.0\.1:1 "):
        look("127.0.0.1:1")
