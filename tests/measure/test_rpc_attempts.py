"""What is concluded from failing devices, which programs are the same, and mistakes made before any device is asked."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from slipstream.measure.devices.rpc_server import main as server_main
from slipstream.measure.devices.rpc_trials import Attempt, Mishap, Round, Trial, conclude

from slipstream.errors import TargetError
from slipstream.machine.target import Target, resolve_target
from slipstream.measure.devices.rpc import DeviceError, RpcMeasurer
from slipstream.measure.devices.rpc_tracker import Tracker
from slipstream.measure.types import Candidate, FailureKind

HOST = "127.0.0.1"


def test_programs_that_become_the_same_code_are_run_once(tmp_path: Path) -> None:
    first, same, again, later = (Candidate("add", module) for module in ("a", "b", "b", "b"))
    work = Round(iter([]))
    assert [work.is_new(p) for p in (first, same, again)] == [True, True, False]
    trial, twin = (Trial(p, tmp_path / p.module, 0.0, fingerprint="f") for p in (first, same))
    work.built(trial)
    work.built(twin)
    assert list(work.waiting) == [trial]
    work.finish(trial, trial.measurement((1.0,)))
    assert not work.is_new(later)
    assert [(m.program, m.samples, m.duplicate) for m in work.done] == [
        (first, (1.0,), False),
        (same, (1.0,), True),
        (again, (1.0,), True),
        (later, (1.0,), True),
    ]


def test_no_tracker_is_an_error_that_says_how_to_start_one() -> None:
    with socket.create_server((HOST, 0)) as probe:
        unused = probe.getsockname()[1]
    with pytest.raises(DeviceError, match=r"no RPC tracker at .* start one with 'python -m tvm.exec.rpc_tracker"):
        RpcMeasurer(HOST, unused, "any", resolve_target("cpu"))


def test_a_port_that_speaks_something_else_is_not_taken_for_a_tracker() -> None:
    with socket.create_server((HOST, 0)) as other, pytest.raises(DeviceError, match="no RPC tracker"):
        Tracker(HOST, other.getsockname()[1], timeout=0.2)


def test_another_architecture_is_refused() -> None:
    with pytest.raises(TargetError, match="cannot link for riscv64"):
        RpcMeasurer(HOST, 1, "any", Target("riscv64", "any", (), (), 1))


def test_our_server_wants_a_tracker_it_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        server_main(["--key", "x", "--tracker", "nonsense"])
    assert "is not HOST:PORT" in capsys.readouterr().err


BROKE, LONG, STALL = (Attempt(mishap, "device") for mishap in (Mishap.BROKE, Mishap.TOO_LONG, Mishap.STALLED))


@pytest.mark.parametrize(
    ("attempts", "verdict"),
    [
        ([BROKE], None),
        ([LONG], None),
        ([STALL, BROKE, LONG], None),
        ([BROKE, BROKE], FailureKind.CRASH),
        ([LONG, BROKE, LONG], FailureKind.RUN_TIMEOUT),
        ([STALL, STALL, STALL, STALL], FailureKind.DEVICE_LOST),
        ([STALL, STALL, BROKE, LONG], FailureKind.DEVICE_LOST),
    ],
)
def test_what_happens_to_a_program_twice_is_its_own_doing(attempts: list[Attempt], verdict: FailureKind | None) -> None:
    failure = conclude(attempts, limit=4)
    assert (failure.kind if failure else None) is verdict
