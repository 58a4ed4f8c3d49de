"""What is concluded from failing devices, and mistakes made before any device is asked."""

from __future__ import annotations

import socket

import pytest

from slipstream.errors import TargetError
from slipstream.machine.target import Target, resolve_target
from slipstream.measure import FailureKind, rpc_measurer
from slipstream.measure.devices.rpc_attempts import Attempt, Mishap, conclude
from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker
from slipstream.measure.rpc_server import main as server_main

HOST = "127.0.0.1"


def test_no_tracker_is_an_error_that_says_how_to_start_one() -> None:
    with socket.create_server((HOST, 0)) as probe:
        unused = probe.getsockname()[1]
    with pytest.raises(DeviceError, match=r"no RPC tracker at .* start one with 'python -m tvm.exec.rpc_tracker"):
        rpc_measurer(HOST, unused, "any", resolve_target("cpu"), {})


def test_a_port_that_speaks_something_else_is_not_taken_for_a_tracker() -> None:
    with socket.create_server((HOST, 0)) as other, pytest.raises(DeviceError, match="no RPC tracker"):
        Tracker(HOST, other.getsockname()[1], timeout=0.2)


def test_another_architecture_is_refused() -> None:
    with pytest.raises(TargetError, match="cannot link for riscv64"):
        rpc_measurer(HOST, 1, "any", Target("riscv64", "any", (), (), 1), {})


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
