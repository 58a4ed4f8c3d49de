"""Starting Ray on this machine: the head of a fleet, or a node that joins one. Ray runs as children of this process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from slipstream.measure.fleet.look import NodeView, look, require_ray
from slipstream.measure.fleet.offer import Offer
from slipstream.measure.fleet.ray_connection import (
    LOOPBACK,
    TOKEN,
    FleetError,
    has_token,
    is_loopback,
    knock,
    ray_environment,
)

_START_SECONDS = 60.0
_RAY = "slipstream.measure.fleet.ray_connection"


def check_token(host: str) -> None:
    """Refuse to listen to other machines without a token that they have to have, unless that was asked for."""
    if not is_loopback(host) and os.environ.get("RAY_AUTH_MODE") is None and not has_token():
        raise FleetError(
            f"whoever reaches {host} could run any code here: make a token with 'ray get-auth-token --generate' and "
            f"copy {TOKEN} to every node, or set RAY_AUTH_MODE=disabled on a network you trust"
        )


@contextmanager
def head(host: str, port: int, offer: Offer | None) -> Iterator[list[NodeView]]:
    """A cluster while the context lasts; gives its nodes: none, or this machine with what it offers."""
    with _ray(["--head", f"--port={port}", "--include-dashboard=false"], host, offer, f"{host}:{port}") as nodes:
        yield nodes


@contextmanager
def joined(address: str, host: str | None, offer: Offer) -> Iterator[list[NodeView]]:
    """This machine as a node of the cluster at `address` while the context lasts; gives all its nodes."""
    host = host or (LOOPBACK if is_loopback(address.rpartition(":")[0]) else None)
    with _ray([f"--address={address}"], host, offer, address) as nodes:
        others = [view.node.why_not for view in nodes if view.node.why_not]
        if others and len(others) == len(nodes) - 1:
            raise FleetError(f"this node fits none of the fleet's: {others[0]}")
        yield nodes


@contextmanager
def _ray(options: list[str], host: str | None, offer: Offer | None, address: str) -> Iterator[list[NodeView]]:
    require_ray()
    resources, labels = (offer.resources(), offer.labels()) if offer is not None else ({}, {})
    command = [sys.executable, "-m", _RAY, "start", *options, "--block", "--disable-usage-stats"]
    command += [f"--num-cpus={offer.builders if offer is not None else 0}", "--num-gpus=0"]
    command += [f"--resources={json.dumps(resources)}", f"--labels={','.join(f'{k}={v}' for k, v in labels.items())}"]
    command += [f"--node-ip-address={host}"] if host is not None else []
    name = f"{socket.gethostname()}-{os.getpid()}"
    command.append(f"--node-name={name}")
    environment = {**os.environ, **(offer.environment() if offer is not None else {}), **ray_environment()}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield _wait(process, address, log, "" if offer is None else name)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: object, name: str) -> list[NodeView]:
    """The cluster's nodes once Ray runs here and, if this is a node with a name, has it among them."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None:
            raise FleetError(f"Ray could not be started: {_last_words(log)}")
        with suppress(OSError, FleetError):
            knock(address)
            nodes = look(address)
            if not name or any(view.node.name == name for view in nodes):
                return nodes
        if time.monotonic() > deadline:
            raise FleetError(f"Ray did not start in {_START_SECONDS:.0f} s: {_last_words(log)}")
        time.sleep(0.5)


def _last_words(log: object) -> str:
    assert hasattr(log, "seek")
    assert hasattr(log, "read")
    log.seek(0)
    lines = [line.strip() for line in str(log.read()).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "mismatch" in line]
    return (errors or lines or ["it printed nothing"])[-1]
