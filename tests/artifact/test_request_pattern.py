"""Blocks of requests, on functions whose time, threads and failures are known."""

from __future__ import annotations

import threading
import time

import pytest

from slipstream.artifact.request_pattern import RequestPattern, _arrival_times, run_block
from slipstream.errors import InputError

pytestmark = pytest.mark.timing
SERVICE = 0.004


def serve() -> None:
    time.sleep(SERVICE)


def test_pauses_are_no_part_of_a_latency() -> None:
    block = run_block(serve, RequestPattern(pause=0.02), 0.15)
    assert len(block.latencies) <= 0.15 / (0.02 + SERVICE) + 1
    assert SERVICE <= min(block.latencies) < 0.02
    assert block.seconds >= len(block.latencies) * (0.02 + SERVICE)


def test_callers_are_threads_that_call_at_the_same_time() -> None:
    lock, inside, most = threading.Lock(), 0, 0
    threads = set()

    def run() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            threads.add(threading.get_ident())
        serve()
        with lock:
            inside -= 1

    block = run_block(run, RequestPattern(callers=3), 0.1)
    assert (most, len(threads)) == (3, 3)
    # Sleeping callers do not disturb each other: three times the requests of one.
    assert len(block.latencies) / block.seconds > 1 / SERVICE


def test_requests_a_second_do_not_count_the_wait_for_the_last_caller() -> None:
    slow: list[int] = []

    def run() -> None:
        if not slow:
            slow.append(threading.get_ident())
        time.sleep(0.4 if threading.get_ident() == slow[0] else 0.01)

    block = run_block(run, RequestPattern(callers=2), 0.1)
    # One call of 0.4 s, and 0.01 s each until 0.1 s are over.
    assert 0.25 <= block.seconds < max(block.latencies)


def test_latency_counts_from_the_arrival() -> None:
    """One server that always takes as long: Lindley's recursion gives the least that each request can take."""
    rate, seconds, seed = 150.0, 0.3, 3
    block = run_block(serve, RequestPattern(rate=rate), seconds, seed)
    arrivals = _arrival_times(rate, seconds, seed)
    free, least = 0.0, []
    for arrival in arrivals:
        free = max(free, arrival) + SERVICE
        least.append(free - arrival)
    assert max(least) > 1.5 * SERVICE  # some had to wait
    assert len(block.latencies) == len(least)
    assert all(taken >= bound - 1e-6 for taken, bound in zip(block.latencies, least, strict=True))
    assert block.seconds >= seconds


def test_arrivals_have_the_rate_asked_for() -> None:
    counts = [len(_arrival_times(40.0, 2.0, seed)) for seed in range(200)]
    # 80 expected, variance 80 / 200 of the mean: five standard deviations.
    assert abs(sum(counts) / 200 - 80) < 5 * (80 / 200) ** 0.5
    assert _arrival_times(40.0, 2.0, 1) == _arrival_times(40.0, 2.0, 1)


def test_a_block_ends_although_more_arrives_than_can_be_served() -> None:
    block = run_block(serve, RequestPattern(rate=20 / SERVICE), 0.1)
    assert block.unserved > len(block.latencies) / 2
    assert block.seconds < 2.0


def test_processor_time_is_that_of_all_threads() -> None:
    def burn() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.002:
            pass

    block = run_block(burn, RequestPattern(callers=2), 0.05)
    assert block.processor_seconds >= 0.0019 * len(block.latencies)
    idle = run_block(serve, RequestPattern(), 0.1)
    assert idle.processor_seconds < 0.5 * idle.seconds


def test_a_caller_that_fails_ends_the_block() -> None:
    lock, calls = threading.Lock(), 0

    def run() -> None:
        nonlocal calls
        with lock:
            calls += 1
            if calls == 2:
                raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        run_block(run, RequestPattern(callers=3), 0.1)


@pytest.mark.parametrize(
    "wrong", [{"pause": -1.0}, {"pause": float("nan")}, {"rate": 0.0}, {"rate": 5.0, "pause": 1.0}, {"callers": 0}]
)
def test_patterns_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="give"):
        RequestPattern(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (RequestPattern(), "back to back"),
        (RequestPattern(pause=0.02, callers=4), "after a pause of 20 ms, 4 callers"),
        (RequestPattern(rate=50), "50 requests a second"),
    ],
)
def test_a_pattern_in_words(pattern: RequestPattern, text: str) -> None:
    assert str(pattern) == text
