"""`slipstream fleet` as a user types it: a head and a node on loopback, a session on them, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from slipstream.artifact.manifest import Manifest
from slipstream.machine.hardware import cpu_class
from slipstream.measure.fleet.look import look
from slipstream.measure.fleet.ray_connection import FleetError
from slipstream.measure.fleet.start import check_token

HOST = "127.0.0.1"
SLIPSTREAM = [sys.executable, "-c", "from slipstream.cli import main; main()"]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="a fleet needs Ray: pip install 'slipstream[fleet]'"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(*words: str, until: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that stays; it is asked to end at the end, and must."""
    process = subprocess.Popen([*SLIPSTREAM, *words], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        assert until in next(line for line in process.stdout if until in line)
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert psutil.wait_procs(children, timeout=30)[1] == []


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("ordinary_signals")
def test_a_session_on_a_fleet_from_the_command_line(tmp_path: Path) -> None:
    address = f"{HOST}:{free_port()}"
    port = address.rpartition(":")[2]
    with (
        running("fleet", "start", "--port", port, until="the fleet is at") as head,
        running("fleet", "join", address, "--builders", "2", until="joined") as node,
    ):
        ours = {child.pid for process in (head, node) for child in psutil.Process(process.pid).children(recursive=True)}
        listening = {c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in ours}
        assert {address.removeprefix("::ffff:") for address in listening} == {HOST}
        done = subprocess.run([*SLIPSTREAM, "fleet", "status", address, "--json"], capture_output=True, check=True)
        (view,) = json.loads(done.stdout)
        assert view["node"]["devices"] == {cpu_class(): 1}
        assert view["node"]["builders"] == 2
        tune = ["tune", "zoo:tiny_cnn", "-o", str(tmp_path / "out"), "--trials", "12", "--quiet", "--fleet", address]
        subprocess.run([*SLIPSTREAM, *tune], check=True)
        table = subprocess.run([*SLIPSTREAM, "fleet", "status", address], capture_output=True, text=True, check=True)
        assert "1 node, 2 builders, 1 device, " in table.stdout
    assert Manifest.read(tmp_path / "out" / "model").verification is not None


def outer_address() -> str:
    """This machine's address on a network; loopback if it is on none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return HOST
        address: str = probe.getsockname()[0]
        return address


@needs_ray
@pytest.mark.slow
@pytest.mark.usefixtures("ordinary_signals")
def test_a_fleet_with_a_token_lets_in_who_has_it_and_its_clients_need_not_be_nodes(tmp_path: Path) -> None:
    """The token alone, as docs/fleet.md says: without RAY_AUTH_MODE, Ray's own commands do not all use it."""
    host = outer_address()
    if host == HOST:
        pytest.skip("this machine is on no network")
    port = str(free_port())
    address, tokens = f"{host}:{port}", {name: tmp_path / name for name in ("right", "wrong")}
    for token in tokens.values():
        token.write_text(secrets.token_hex(32))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ours, theirs = ({**environment, "RAY_AUTH_TOKEN_PATH": str(token)} for token in tokens.values())

    def slipstream(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*SLIPSTREAM, *words], env=env, capture_output=True, text=True, timeout=200)

    with (
        running("fleet", "start", "--host", host, "--port", port, until="the fleet is at", env=ours),
        running("fleet", "join", address, "--host", host, "--builders", "1", until="joined", env=ours),
    ):
        assert "1 node, 1 builder, 1 device, " in slipstream("fleet", "status", address, env=ours).stdout
        for stranger in (theirs, {**environment, "HOME": str(tmp_path)}):
            refused = slipstream("fleet", "status", address, env=stranger)
            assert refused.returncode != 0
            assert "if it is a cluster with a token, copy that to" in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        assert slipstream("fleet", "join", address, "--builders", "1", env=theirs).returncode != 0
        if importlib.util.find_spec("grpc") is not None:
            client, out = f"ray://{host}:10001", tmp_path / "out"
            tune = slipstream("tune", "zoo:tiny_cnn", "-o", str(out), "--trials", "12", "--fleet", client, env=ours)
            assert tune.returncode == 0, tune.stderr
            assert Manifest.read(out / "model").verification is not None


@needs_ray
@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Ray's client needs grpcio")
def test_a_client_of_a_cluster_on_loopback_is_refused_at_once() -> None:
    with pytest.raises(FleetError, match="does not reach a cluster on loopback"):
        look("ray://127.0.0.1:10001")


def test_other_machines_are_not_let_in_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("slipstream.measure.fleet.ray_connection.TOKEN", Path(os.devnull, "none"))
    check_token("127.0.0.1")
    with pytest.raises(FleetError, match=r"whoever reaches 192\.0\.2\.7 could run any code here"):
        check_token("192.0.2.7")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    check_token("192.0.2.7")


def test_ray_is_not_imported_for_help() -> None:
    code = "import sys; from slipstream.cli import main; main(['fleet', '--help'], standalone_mode=False)"
    found = subprocess.run(
        [sys.executable, "-c", f"{code}; print([m for m in ('ray', 'tvm', 'numpy') if m in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines()[-1] == "[]"
