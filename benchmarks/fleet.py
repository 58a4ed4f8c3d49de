"""What one driver can feed: trials a second and time to quality, with up to 1,000 builders and 100 devices (8 minutes).

`driver` is real: a session proposes, admits, sends, records and learns as always, with the gateway of a fleet whose
nodes are simulated: each build and run takes the recorded mean time, and nothing is built or run. Counted is the
processor time of the session's own process, of the searches that it forks, and of the gateway, which has no Ray here.
`ray` is real too, on this machine: the processor time of the gateway with Ray, whose nodes answer at once.
`fleet` replays recorded tuning curves on a simulated clock: every slot is searched for, its programs built, run and
recorded, each step by as many servers as there are, with the costs measured by `ray` and the times of
`benchmarks.trial_rate`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
import socket
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `slipstream tune` does, before NumPy is imported

import psutil

from benchmarks.dynatune.curves import CURVES, Recording
from benchmarks.dynatune.replays import policy
from benchmarks.fleet_nodes import ENVIRONMENT
from benchmarks.runner import data_of, read, run
from benchmarks.spread import table
from slipstream.machine.hardware import cpu_class
from slipstream.measure.fleet.offer import Offer
from slipstream.measure.fleet.ray_connection import LOOPBACK
from slipstream.measure.fleet.start import head
from slipstream.schedulers.replay import _Track
from slipstream.tvm_bridge.imports import import_tvm_without_torch

SIZES = ((1, 1), (4, 1), (16, 4), (64, 8), (250, 25), (1000, 100))
SLOT_TRIALS = 8
IN_FLIGHT, SEARCHES = 64, 16
BAR_MS = 5.0
_BEGINNING = 20  # trials in which modules are imported and caches filled
_WITHIN = 0.05
QUICK = {"model": "tiny_cnn", "trials": 60, "sizes": [(16, 4), (1000, 100)], "replayed": ["squeezenet1_1-0"]}
_NODES = "benchmarks.fleet_nodes"
_NAMES = {"driver": "simulated: 1,000 builders, 100 devices", "ray": "Ray's, that answer at once"}
_WHO = ("driver", "gateway", "search")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="squeezenet1_1", help="whose operators the driver tunes")
    parser.add_argument("--trials", type=int, default=400, help="that the driver gets through")
    parser.add_argument("--replayed", nargs="+", default=["resnet18-0"], help="recordings")
    parser.add_argument("--replay-only", action="store_true", help="with the costs of an earlier run")
    parser.set_defaults(sizes=list(SIZES))


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    times = recorded_times()
    if not options.replay_only:
        simulated = {**times, "builders": 1000, "devices": 100}
        yield "driver", drive(options.model, options.trials, simulated, "", options)
        port = free_port()
        with head(LOOPBACK, port, Offer(64, {cpu_class(): 8})):
            yield "ray", drive(options.model, options.trials, {"ray": 1}, f"{LOOPBACK}:{port}", options)
    raw = read("fleet", options.out)
    assert raw is not None
    driven = data_of(raw)["ray"]  # a real fleet has Ray
    cost = {part: 1e-3 * driven[f"{part} ms"] for part in _WHO}
    found = {}
    for name in options.replayed:
        recording = Recording.read(CURVES / f"{name}.json.gz")
        found[name] = [simulate(recording, *size, times, cost, options.seed) for size in options.sizes]
    yield "fleet", {"times": times, "runs": found}


def recorded_times() -> dict[str, float]:
    """Mean seconds of a trial's parts on two cores, all operators of `benchmarks.trial_rate` together."""
    raw = read("trial_rate")
    assert raw is not None
    ours = data_of(raw)["2"]["measured"]["ours"].values()
    means = {part: statistics.mean(run["parts"][part] for run in ours) for part in ("build", "allocate", "run")}
    return {part: round(seconds, 4) for part, seconds in means.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


# The real driver


@dataclass
class _Costs:
    """Processor seconds and trials when tuning has got going, with everything imported, and at its end."""

    marks: dict[str, dict[str, float]] = field(default_factory=dict)

    def __call__(self, event: Any, snapshot: Any) -> None:
        has_begun = event.kind == "trial" and snapshot.slots > 0 and "begun" not in self.marks
        if has_begun and snapshot.trials - snapshot.default_trials >= _BEGINNING:
            self.mark("begun", snapshot)
        if event.kind == "phase":
            self.mark(event.data["phase"], snapshot)

    def mark(self, name: str, snapshot: Any) -> None:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.marks[name] = {
            "driver": time.process_time(),
            "wall": time.monotonic(),
            "search": children.ru_utime + children.ru_stime,
            "gateway": _gateway_seconds(),
            "trials": float(snapshot.trials),
            "slots": float(snapshot.slots),
        }

    def of(self, what: str) -> float:
        return self.marks["settle"][what] - self.marks["begun"][what]


def _gateway_seconds() -> float:
    for child in psutil.Process().children():
        if _NODES in " ".join(child.cmdline()):
            times = child.cpu_times()
            return float(times.user + times.system)
    return 0.0


def drive(
    name: str, trials: int, times: Mapping[str, float], address: str, options: argparse.Namespace
) -> dict[str, Any]:
    """A real session on simulated nodes, or on those at `address`; what each of its trials costs this machine."""
    import_tvm_without_torch()
    from slipstream.measure import fleet_measurer
    from slipstream.measure.fleet import connection
    from slipstream.session.finish import Finish
    from slipstream.session.tune import tune

    os.environ[ENVIRONMENT] = json.dumps(dict(times))
    connection.GATEWAY = _NODES
    # The model is not compiled in the end: no figure here is about that.
    Finish._compile = lambda self, *_: ([0.0], "")  # type: ignore[method-assign]
    costs = _Costs()
    folder = Path(options.work, f"session-{time.time_ns()}")
    result = tune(
        f"zoo:{name}",
        folder,
        trials=trials,
        seed=options.seed,
        priors=None,
        callbacks=[costs],
        settings={"in_flight": IN_FLIGHT, "searches": SEARCHES, "slot_trials": SLOT_TRIALS},
        measurer=lambda context: fleet_measurer(address, context.target, context.references),
    )
    tuned = costs.of("trials")
    each = {f"{part} ms": 1e3 * costs.of(part) / tuned for part in _WHO}
    rate = tuned / costs.of("wall")
    return {"model": name, "trials": tuned, "slots": costs.of("slots"), "rate": rate, **each, "split": result.split}


# The simulated fleet


class _Servers:
    """Equal servers of one queue: the time at which a job that comes at `now` is done."""

    def __init__(self, number: int) -> None:
        self._free = [0.0] * number
        self.busy = 0.0

    def done(self, now: float, seconds: float) -> float:
        begin = max(now, self._free[0])
        heapq.heapreplace(self._free, begin + seconds)
        self.busy += seconds
        return begin + seconds

    def load(self, until: float) -> float:
        return self.busy / (until * len(self._free))


def simulate(
    recording: Recording,
    builders: int,
    devices: int,
    times: Mapping[str, float],
    cost: Mapping[str, float],
    seed: int,
    searches: int = SEARCHES,
) -> dict[str, Any]:
    """Tune a recorded model on a fleet of that size, until it is within 5 % of its lowest latency."""
    curves = recording.replayable()
    scheduler = policy("dynatune", curves, recording.peak_flops, seed, SLOT_TRIALS)
    tracks = {curve.key: _Track(curve, SLOT_TRIALS, 10**9) for curve in curves}
    servers = {
        "search": _Servers(searches),
        "build": _Servers(builders),
        "run": _Servers(devices),
        "driver": _Servers(1),
        "gateway": _Servers(1),
    }
    events: list[tuple[float, int, str]] = []
    order, busy, now, slots = count(), set[str](), 0.0, 0
    lowest = sum(curve.weight * curve.best[-1] for curve in curves)
    while busy or not slots:
        # The next search begins when the one before it is done and a slot may be opened.
        while len(busy) < IN_FLIGHT:
            states = [track.state() for track in tracks.values()]
            states = [replace(state, finished=True) if state.key in busy else state for state in states]
            key = scheduler.pick(states, slots)
            if key is None:
                break
            size = min(SLOT_TRIALS, tracks[key].curve.trials - tracks[key].trials)
            heapq.heappush(events, (_slot_end(servers, now, size, times, cost), next(order), key))
            busy.add(key)
            slots += 1
        now, _, key = heapq.heappop(events)
        busy.remove(key)
        tracks[key].advance()
        latency = sum(track.curve.weight * track.curve.best[track.trials] for track in tracks.values())
        if latency <= (1 + _WITHIN) * lowest:
            break
    loads = {name: server.load(now) for name, server in servers.items()}
    return {
        "builders": builders,
        "devices": devices,
        "rate": sum(track.trials for track in tracks.values()) / now,
        "within": now,
        "loads": loads,
    }


def _slot_end(
    servers: Mapping[str, _Servers], now: float, size: int, times: Mapping[str, float], cost: Mapping[str, float]
) -> float:
    """When the last of a slot's programs is recorded, given when it may be searched for."""
    found = servers["search"].done(now, size * cost["search"])
    ends = []
    for _ in range(size):
        sent = servers["gateway"].done(servers["driver"].done(found, cost["driver"]), cost["gateway"])
        built = servers["build"].done(sent, times["build"])
        ends.append(servers["run"].done(built, times["run"] + times["allocate"]))
    return max(ends)


def markdown(data: Mapping[str, Any]) -> str:
    rows = [
        [_NAMES[part], f"{one['trials']:.0f}", *(f"{one[f'{who} ms']:.2f}" for who in _WHO), f"{one['rate']:.0f}"]
        for part, one in data.items()
        if part in _NAMES
    ]
    lines = table(["nodes", "trials", *(f"{who}, ms a trial" for who in _WHO), "trials a second here"], rows)
    for name, runs in data.get("fleet", {"runs": {}})["runs"].items():
        rows = [[f"{r['builders']:,}", f"{r['devices']}", *_cells(r, runs[0])] for r in runs]
        heads = ["builders", "devices", "trials a second", "to within 5 %, s", "times sooner", "busiest"]
        lines += ["", f"### {name}", "", *table(heads, rows)]
    return "\n".join(lines) + "\n"


def _cells(run: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    busiest = max(run["loads"], key=run["loads"].__getitem__)
    load = min(1.0, run["loads"][busiest])  # what is under way at the end counts whole
    sooner = f"{first['within'] / run['within']:.1f}"
    return [f"{run['rate']:.1f}", f"{run['within']:.0f}", sooner, f"{busiest}, {100 * load:.0f} %"]


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    one = data["driver"]
    found = {f"{part} ms": f"{one[f'{part} ms']:.1f}" for part in _WHO}
    found["gateway with ray ms"] = f"{data['ray']['gateway ms']:.1f}"
    worst = max(data[part]["driver ms"] for part in _NAMES)
    found["driver with ray ms"] = f"{data['ray']['driver ms']:.1f}"
    found["bar"] = "reached" if worst < BAR_MS else "**not reached** with Ray's"
    found["most trials a second"] = f"{1e3 / max(worst, data['ray']['gateway ms']):.0f}"
    for name, runs in data["fleet"]["runs"].items():
        last = runs[-1]
        found[f"{name} sooner"] = f"{runs[0]['within'] / last['within']:.0f}"
        found[f"{name} rate"] = f"{last['rate']:.0f}"
    return found


if __name__ == "__main__":
    run(__name__)
