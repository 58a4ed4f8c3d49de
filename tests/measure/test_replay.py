"""Replaying recorded measurements against a simulated clock."""

from __future__ import annotations

import gzip
import itertools
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.measure.replay import (
    Recording,
    RecordingError,
    ReplayMeasurer,
    SimulatedClock,
    program_digest,
    record,
)
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement, Measurer

seconds = st.floats(min_value=0, max_value=1e4)
programs = st.builds(
    Candidate, operator=st.sampled_from(["conv", "matmul"]), module=st.text(max_size=8), label=st.text(max_size=3)
)
failures = st.builds(Failure, kind=st.sampled_from(FailureKind), message=st.text(), stderr=st.text())
measurements = st.builds(
    Measurement,
    program=programs,
    samples=st.lists(seconds, max_size=4).map(tuple),
    failure=st.none() | failures,
    stopped_early=st.booleans(),
    noisy=st.booleans(),
    verified=st.booleans(),
    build_seconds=seconds,
    run_seconds=seconds,
    started_at=seconds,
    load_seconds=seconds,
    allocate_seconds=seconds,
    overhead_seconds=seconds,
    duplicate=st.booleans(),
)
distinct = st.lists(measurements, unique_by=lambda m: (m.program.operator, m.program.module))


def what_was_learned(measurement: Measurement) -> Measurement:
    """Everything but when it happened, which a replay decides anew."""
    return replace(measurement, started_at=0.0)


def conv(module: str = "m", **measured: object) -> Measurement:
    return Measurement(Candidate("conv", module), **measured)  # type: ignore[arg-type]


@given(distinct, st.booleans())
def test_a_file_answers_as_the_measurements_it_was_written_from(recorded: list[Measurement], zipped: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ("trials.jsonl.gz" if zipped else "trials.jsonl")
        assert record(path, recorded) == len(recorded)
        assert [entry.name for entry in Path(directory).iterdir()] == [path.name]
        measurer: Measurer = ReplayMeasurer(Recording.load(path), SimulatedClock())
        answers = list(measurer.measure(m.program for m in recorded))
        measurer.close()
    assert [what_was_learned(m) for m in answers] == [what_was_learned(m) for m in recorded]


@given(st.lists(measurements, min_size=1), st.data())
def test_every_program_is_answered_once_whatever_is_asked_in_whatever_order(
    recorded: list[Measurement], data: st.DataObject
) -> None:
    asked = data.draw(st.lists(st.sampled_from([m.program for m in recorded])))
    answers = list(ReplayMeasurer(Recording.of(recorded), SimulatedClock()).measure(asked))
    assert Counter(m.program for m in answers) == Counter(asked)


@given(st.lists(measurements), seconds)
def test_the_clock_never_goes_back_and_counts_what_was_recorded(recorded: list[Measurement], overhead: float) -> None:
    clock = SimulatedClock(start=5.0)
    measurer = ReplayMeasurer(Recording.of(recorded), clock, overhead_seconds=overhead)
    times = [clock.now()]
    for _ in measurer.measure(m.program for m in recorded):
        times.append(clock.now())
    assert all(before <= after for before, after in itertools.pairwise(times))
    # Each recorded trial is asked for exactly once: repeated programs answer with each of theirs in turn.
    total = sum(overhead + m.build_seconds + m.allocate_seconds + m.run_seconds + m.overhead_seconds for m in recorded)
    assert clock.now() == pytest.approx(5.0 + total)


@given(st.lists(measurements), st.integers(min_value=0, max_value=2**32))
def test_resampling_draws_from_the_recorded_samples_and_repeats_with_its_seed(
    recorded: list[Measurement], seed: int
) -> None:
    asked = [m.program for m in recorded]

    def replay() -> list[Measurement]:
        generator = np.random.default_rng(seed)
        return list(ReplayMeasurer(Recording.of(recorded), SimulatedClock(), resample=generator).measure(asked))

    first = replay()
    assert first == replay()
    pool = {m.program.module: set[float]() for m in recorded}
    for m in recorded:
        pool[m.program.module] |= set(m.samples)
    assert all(set(m.samples) <= pool[m.program.module] for m in first)


def test_results_stream_so_time_passes_only_for_what_was_taken() -> None:
    clock = SimulatedClock()
    recording = Recording.of([conv("a", build_seconds=1.0), conv("b", run_seconds=2.0)])
    results = ReplayMeasurer(recording, clock).measure([Candidate("conv", "a"), Candidate("conv", "b")])
    assert (next(results).started_at, clock.now()) == (0.0, 1.0)
    assert (next(results).started_at, clock.now()) == (1.0, 3.0)


def test_a_program_never_recorded_is_an_error_that_says_so() -> None:
    measurer = ReplayMeasurer(Recording.of([conv()]), SimulatedClock())
    with pytest.raises(RecordingError, match=r"this is a replay.*'matmul'.*record it first"):
        list(measurer.measure([Candidate("matmul", "m")]))


def test_or_a_failure_if_asked_for() -> None:
    clock = SimulatedClock()
    measurer = ReplayMeasurer(Recording.of([conv()]), clock, overhead_seconds=0.5, unknown="fail")
    (answer,) = measurer.measure([Candidate("conv", "another")])
    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.DEVICE_LOST
    assert "this is a replay" in answer.failure.message
    assert clock.now() == 0.5


def test_it_says_that_it_replays(tmp_path: Path) -> None:
    record(tmp_path / "r.jsonl", [conv("a"), conv("b")])
    text = repr(ReplayMeasurer(Recording.load(tmp_path / "r.jsonl"), SimulatedClock()))
    assert "replay of 2 recorded measurements" in text
    assert "no hardware" in text


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_clock_refuses_to_go_anywhere_but_forward(seconds: float) -> None:
    with pytest.raises(ValueError, match="clock advances"):
        SimulatedClock().advance(seconds)


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    failed = conv(failure=Failure(FailureKind.CRASH, "died", "tail"), build_seconds=0.25)
    record(path, [failed])
    header, line = (json.loads(text) for text in path.read_text().splitlines())
    assert header == {"format": "slipstream-recording", "version": 1}
    assert line["operator"] == "conv"
    assert line["program"] == program_digest(failed.program)
    assert line["failure"] == {"kind": "crash", "message": "died", "stderr": "tail"}
    assert line["build_seconds"] == 0.25


def test_a_recording_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> object:
        yield conv()
        raise RuntimeError("the machine went away")

    with pytest.raises(RuntimeError, match="went away"):
        record(tmp_path / "r.jsonl", broken())  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "", "first line is foreign"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "version 1"),
        (lambda text: text.replace('"samples"', '"simples"'), "line 2 is damaged"),
        (lambda text: text[:-20], "line 3 is damaged"),
        (lambda text: text.replace('"build_seconds": 0.0', '"build_seconds": -1'), "line 2.*cannot take -1"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "r.jsonl"
    record(path, [conv("a"), conv("b")])
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with pytest.raises(RecordingError, match=message):
        Recording.load(path)


def test_a_missing_or_truncated_file_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read"):
        Recording.load(tmp_path / "nothing.jsonl")
    path = tmp_path / "r.jsonl.gz"
    record(path, [conv(str(n)) for n in range(100)])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RecordingError):
        Recording.load(path)
    path.write_bytes(gzip.compress(b"\xff\xfe"))
    with pytest.raises(RecordingError):
        Recording.load(path)


def test_replaying_needs_no_tvm() -> None:
    code = "import slipstream.measure.replay, sys; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
