"""`slipstream measure`, here and through a real tracker on loopback."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import onnx
import pytest

from slipstream.measure.devices.rpc_tracker import DeviceError, Tracker
from tests.cli.forked_commands import ForkedCommands
from tests.cli.test_bad_input import slipstream_command
from tests.conftest import small_model

CONVOLUTION = "conv2d 1x1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rpc", "localhost:abc", "--rpc-key", "k"], "write it as HOST:PORT"),
        (["--rpc", "localhost", "--rpc-key", "k"], "write it as HOST:PORT"),
        (["--rpc", "127.0.0.1:99999", "--rpc-key", "k"], "write it as HOST:PORT"),
        (["--rpc", "127.0.0.1:1", "--rpc-key", "k"], "no RPC tracker at 127.0.0.1:1"),
        (["--rpc", "127.0.0.1:1"], "--rpc needs --rpc-key NAME with it"),
        (["--rpc-key", "k"], "--rpc-key needs --rpc HOST:PORT with it"),
        (["--operator", "zzz"], "no operator's name or key begins with 'zzz'"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(
    options: list[str], said: str, tmp_path: Path, forked_command: ForkedCommands
) -> None:
    done = forked_command("measure", "zoo:tiny_cnn", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_something_else_than_a_tracker_is_told_from_one(tmp_path: Path, forked_command: ForkedCommands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        where = f"127.0.0.1:{nobody.getsockname()[1]}"
        done = forked_command("measure", "zoo:tiny_cnn", "--rpc", where, "--rpc-key", "k", cwd=tmp_path)
    assert done.returncode == 2
    assert "is no RPC tracker" in done.stderr


def test_every_operator_is_measured_and_checked(tmp_path: Path, forked_command: ForkedCommands) -> None:
    onnx.save(small_model(batch=1), tmp_path / "m.onnx")
    done = forked_command("measure", "m.onnx", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    listed = json.loads(forked_command("operators", "m.onnx", "--json", cwd=tmp_path).stdout)
    assert {row["key"] for row in rows} == {operator["key"] for operator in listed}
    assert all(row["verified"] and row["failure"] is None for row in rows), rows
    assert all(0 < row["low"] <= row["seconds"] <= row["high"] for row in rows)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    flops = {operator["key"]: operator["flops"] for operator in listed}
    assert all(row["gflops"] == pytest.approx(flops[row["key"]] / row["seconds"] / 1e9) for row in rows)


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a tracker with one of our servers, under the key "here"."""
    if not all(importlib.util.find_spec(name) for name in ("tornado", "cloudpickle")):
        pytest.skip("TVM's tracker needs tornado and cloudpickle: pip install 'apache-tvm[rpc]'")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    where = f"127.0.0.1:{port}"
    at_port = ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    commands = [
        ["tvm.exec.rpc_tracker", *at_port],
        ["slipstream.measure.rpc_server", "--tracker", where, "--key", "here"],
    ]
    with (tmp_path_factory.mktemp("rpc") / "log.txt").open("wb") as log:
        processes = [
            subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log, start_new_session=True)
            for command in commands
        ]
        try:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                with suppress(DeviceError), Tracker("127.0.0.1", port) as known:
                    if known.servers("here"):
                        break
                time.sleep(0.2)
            yield where
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(20)
                with suppress(ProcessLookupError):  # TVM's tracker leaves a child of its own behind
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_an_operator_is_measured_through_a_tracker(tracker: str, tmp_path: Path) -> None:
    options = ["--operator", CONVOLUTION, "--rpc", tracker, "--rpc-key", "here"]
    done = slipstream_command("measure", "zoo:tiny_cnn", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert CONVOLUTION in done.stdout
    assert "right" in done.stdout
    assert "GFLOP/s" in done.stdout


@pytest.mark.slow
def test_an_unknown_key_is_answered_with_those_there_are(tracker: str, tmp_path: Path) -> None:
    done = slipstream_command("measure", "zoo:tiny_cnn", "--rpc", tracker, "--rpc-key", "there", cwd=tmp_path)
    assert done.returncode == 2
    assert "no device with the key 'there' (it has here)" in done.stderr
