"""Connecting to a Ray cluster, with one line when that fails. Imports Ray: only for processes of their own."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from slipstream.errors import MissingDependencyError, SlipstreamError

NAMESPACE = "slipstream"
LOOPBACK = "127.0.0.1"
CLIENT = "ray://"
TOKEN = Path.home() / ".ray" / "auth_token"
_KNOCK_SECONDS = 3.0


def has_token() -> bool:
    """Whether Ray finds a token that is shared with the nodes of a cluster."""
    return TOKEN.exists() or any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))


def ray_environment() -> dict[str, str]:
    """For every process with Ray: no reports to its makers, and where there is a token, it is used and asked for.

    gRPC is told to do nothing when it is forked: the server for Ray's clients starts others by a fork, and gRPC's own
    handlers have crashed it there (1.85).
    """
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    if "RAY_AUTH_MODE" not in os.environ and has_token():
        environment["RAY_AUTH_MODE"] = "token"
    return environment


class FleetError(SlipstreamError):
    """There is no cluster, it has no node that can be used, or Ray is not installed."""


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def connect(address: str) -> None:
    """Make this process a client of the cluster at `address`: `auto`, HOST:PORT, or ray://HOST:PORT."""
    import ray
    from ray._private import services

    if ray.is_initialized():
        return
    remedy = "start one with 'slipstream fleet start', and 'slipstream fleet join' on each node"
    try:
        found = services.get_ray_address_from_environment(address, None) if address == "auto" else address
        if found is None:
            raise ConnectionError("none runs on this machine")
        _check_client(found)
        knock(found.removeprefix(CLIENT))
        remedy = f"something listens there; if it is a cluster with a token, copy that to {TOKEN}"
        if not found.startswith(CLIENT):
            _stay_on_loopback(found)
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except SlipstreamError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        raise FleetError(f"no Ray cluster at {address} ({why}): {remedy}") from error


def _check_client(address: str) -> None:
    """Refuse what Ray's client cannot do, where it would wait for minutes."""
    if not address.startswith(CLIENT):
        return
    if importlib.util.find_spec("grpc") is None:
        raise MissingDependencyError(f"{address} needs Ray's client: pip install grpcio")
    if is_loopback(address.removeprefix(CLIENT).rpartition(":")[0]):
        # Its server calls the cluster at this machine's outer address, where one on loopback does not listen.
        raise FleetError(f"Ray's client does not reach a cluster on loopback, {address}: use auto or HOST:PORT there")


def knock(address: str) -> None:
    """Raise `OSError` if nobody listens at HOST:PORT: Ray would try for a minute, and then end the process."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise OSError("not of the form HOST:PORT")
    socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), _KNOCK_SECONDS).close()


def _stay_on_loopback(address: str) -> None:
    """Ray takes a loopback address for one at which others are to reach this machine, and replaces it."""
    from ray._private import services

    if is_loopback(address.rpartition(":")[0]):
        services.get_node_ip_address = lambda address=None: LOOPBACK


def main() -> None:
    """`python -m slipstream.measure.fleet.ray_connection start ...`: the command `ray`, on loopback if told so."""
    from ray.scripts import scripts

    for word in sys.argv:
        name, _, value = word.partition("=")
        if name == "--node-ip-address":
            _stay_on_loopback(f"{value}:0")
    sys.exit(scripts.main())


if __name__ == "__main__":
    main()
