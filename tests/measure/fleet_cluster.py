"""A Ray cluster of several nodes on this machine, in a process of its own: Ray's threads stay out of the tests'.

As a program it takes commands from standard input, as JSON, and answers each with a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Any

import psutil

from slipstream.measure.fleet.offer import Offer
from slipstream.processes.child import child_environment

HOST = "127.0.0.1"


class FleetCluster:
    """A head that offers nothing, and nodes by their numbers."""

    def __init__(self) -> None:
        # Of sessions too, whether this user has a token or not.
        self._mode_before = os.environ.get("RAY_AUTH_MODE")
        os.environ["RAY_AUTH_MODE"] = "disabled"
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(RAY_USAGE_STATS_ENABLED="0"),
        )
        self.address: str = self._ask({"head": {}})["address"]

    def __enter__(self) -> FleetCluster:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60.0)
        if self._mode_before is None:
            os.environ.pop("RAY_AUTH_MODE", None)
        else:
            os.environ["RAY_AUTH_MODE"] = self._mode_before

    def add(self, offer: Offer, labels: dict[str, str] | None = None, environment: dict[str, str] | None = None) -> int:
        """A node that offers this; its number."""
        variables = {**offer.environment(), **(environment or {})}
        offered = {"num_cpus": offer.builders, "resources": offer.resources(), "env_vars": variables}
        number: int = self._ask({"add": {**offered, "labels": offer.labels() if labels is None else labels}})["node"]
        return number

    def kill(self, number: int) -> None:
        """End all processes of a node without warning."""
        self._ask({"kill": number})

    def processes(self) -> list[psutil.Process]:
        """All of them: the head's, the nodes', and what those have started."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def named(self, beginning: str) -> list[psutil.Process]:
        """Those whose names begin so. Workers come and go while they are listed."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith(beginning):
                    found.append(process)
        return found

    def head(self) -> psutil.Process:
        """What membership, actors and addresses are kept in."""
        return self.named("gcs_server")[0]

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes: dict[int, Any] = {}
    try:
        for line in sys.stdin:
            command = json.loads(line)
            answer: dict[str, Any] = {}
            if "head" in command:
                cluster.add_node(node_ip_address=HOST, num_cpus=0, include_dashboard=False)
                answer = {"address": cluster.address}
            elif "add" in command:
                number = len(nodes)
                nodes[number] = cluster.add_node(node_ip_address=HOST, **command["add"])
                answer = {"node": number}
            else:
                cluster.remove_node(nodes[command["kill"]], allow_graceful=False)
            print(json.dumps(answer), flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
