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
from dataclasses import dataclass
from typing import IO

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


@dataclass(frozen=True)
class RunningRay:
    """Ray on this machine, and the nodes that the cluster had when it began: of a head that offers nothing, none."""

    nodes: list[NodeView]
    _process: subprocess.Popen[bytes]
    _log: IO[str]

    def wait(self) -> str:
        """What it printed last, when it has ended: without the head it goes on for a minute."""
        self._process.wait()
        return _last_words(self._log)


@contextmanager
def head(host: str, port: int, offer: Offer | None) -> Iterator[RunningRay]:
    """A cluster while the context lasts, with this machine as a node if it offers something."""
    with _ray(["--head", f"--port={port}", "--include-dashboard=false"], host, offer, f"{host}:{port}") as running:
        yield running


@contextmanager
def joined(address: str, host: str | None, offer: Offer) -> Iterator[RunningRay]:
    """This machine as a node of the cluster at `address` while the context lasts."""
    host = host or (LOOPBACK if is_loopback(address.rpartition(":")[0]) else None)
    with _ray([f"--address={address}"], host, offer, address) as running:
        others = [view.node.why_not for view in running.nodes if view.node.why_not]
        if others and len(others) == len(running.nodes) - 1:
            raise FleetError(f"this node fits none of the fleet's: {others[0]}")
        yield running


@contextmanager
def _ray(options: list[str], host: str | None, offer: Offer | None, address: str) -> Iterator[RunningRay]:
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
            yield RunningRay(_wait(process, address, log, "" if offer is None else name), process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with suppress(ProcessLookupError):  # Ray's agents may outlive the node they belong to
                os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], address: str, log: IO[str], name: str) -> list[NodeView]:
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


def _last_words(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "mismatch" in line]
    return (errors or lines or ["it printed nothing"])[-1]
