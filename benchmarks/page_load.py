"""How much clients of the live page slow down a tuning run (half a minute).

Trials are appended and a kernel is timed, with and without clients, in turns. Clients request the whole session as fast
as they get it; some never read the answer. They run at idle priority like the server, so that only the server's effect
is measured and not the processor time of a browser.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from benchmarks.runner import run
from benchmarks.spread import with_range
from slipstream.report.live_process import serving
from slipstream.report.server import stay_in_the_background
from slipstream.session.directory import SessionDirectory
from slipstream.store import Store
from tests.report.made_up import made_up_session, made_up_trial

CLIENTS, STUCK = 20, 4
OPERATORS, SLOTS = 50, 1250
SIDE = 192
QUICK = {"rounds": 2, "seconds": 0.5}
NAMES = {
    "append_median_ms": "append, median",
    "append_p95_ms": "append, 95th percentile",
    "kernel_median_ms": "kernel, median",
    "kernel_p95_ms": "kernel, 95th percentile",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round, with clients and without")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.work) as directory:
        folder = made_up_session(Path(directory) / "s", operators=OPERATORS, slots=SLOTS, status="running")
        return take_turns(folder, options.rounds, options.seconds)


def take_turns(folder: SessionDirectory, rounds: int, seconds: float) -> dict[str, Any]:
    quiet: list[dict[str, float]] = []
    loaded: list[dict[str, float]] = []
    with serving(folder.path) as url, Store.open(folder.store) as store:
        asked = multiprocessing.Value("i", 0)
        firing = multiprocessing.Event()
        clients = multiprocessing.Process(target=fire, args=(url, folder.session, firing, asked), daemon=True)
        clients.start()
        work(store, folder.session, 0.5)
        for _ in range(rounds):
            quiet.append(work(store, folder.session, seconds))
            firing.set()
            time.sleep(0.3)
            loaded.append(work(store, folder.session, seconds))
            firing.clear()
            time.sleep(0.3)
        clients.terminate()
        clients.join()
    return {
        "clients": CLIENTS,
        "stuck_clients": STUCK,
        "answers": asked.value,
        "quiet": quiet,
        "loaded": loaded,
    }


def ratios(data: Mapping[str, Any], name: str) -> list[float]:
    """What a figure was with clients, relative to the round before without them."""
    return [loaded[name] / quiet[name] for quiet, loaded in zip(data["quiet"], data["loaded"], strict=True)]


def markdown(data: Mapping[str, Any]) -> str:
    lines = ["| | without clients, ms | with clients | times as long (single rounds) |", "| --- | --- | --- | --- |"]
    for name, text in NAMES.items():
        alone, fire = (median([one[name] for one in data[side]]) for side in ("quiet", "loaded"))
        longer = ratios(data, name)
        lines.append(f"| {text} | {alone:.3f} | {fire:.3f} | {with_range(longer, 2)} |")
    clients = f"{data['clients']} clients that send requests continuously, {data['stuck_clients']} that never read"
    return "\n".join([*lines, "", f"{clients}; {data['answers']} answers.", ""])


def numbers(data: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{median(ratios(data, name)):.2f}" for name in NAMES}


def work(store: Store, session: str, seconds: float) -> dict[str, float]:
    """Append trials and time a kernel in turns; medians and the worst of twenty, in milliseconds."""
    hardware = store.session(session).hardware
    key = next(iter(store.session_operators(session)))
    matrix = np.random.default_rng(0).random((SIDE, SIDE), dtype=np.float32)
    appends, kernels = [], []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        store.append_trial(made_up_trial(session, hardware, key, OPERATORS + SLOTS - 1, len(appends), 1e-3, 0.0))
        appends.append(time.perf_counter() - started)
        for _ in range(5):
            started = time.perf_counter()
            matrix @ matrix
            kernels.append(time.perf_counter() - started)
    return {
        "append_median_ms": 1e3 * median(appends),
        "append_p95_ms": 1e3 * quantiles(appends, n=20)[-1],
        "kernel_median_ms": 1e3 * median(kernels),
        "kernel_p95_ms": 1e3 * quantiles(kernels, n=20)[-1],
    }


def fire(url: str, session: str, firing: Any, asked: Any) -> None:
    stay_in_the_background()
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    stuck = []

    def ask() -> None:
        while True:
            firing.wait()
            try:
                with urllib.request.urlopen(f"{url}api/session/{session}", timeout=60) as answer:
                    answer.read()
                with asked.get_lock():
                    asked.value += 1
            except OSError:
                time.sleep(0.01)

    for _ in range(STUCK):
        client = socket.create_connection((host, int(port)))
        client.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
        stuck.append(client)
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    run(__name__)
