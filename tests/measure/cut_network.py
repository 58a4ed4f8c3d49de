"""Two networks on this machine, joined by a cable that can be cut: packets are dropped, nobody is told."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType

NEAR, FAR = "10.213.0.1", "10.213.0.2"
_TOOLS = ("unshare", "nsenter", "ip")
# Ray takes what is in this folder for processes of the same machine.
_OWN_FILES = "mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray"


def is_possible() -> bool:
    """Whether this user may make networks here."""
    if any(shutil.which(tool) is None for tool in _TOOLS):
        return False
    probe = f"{_OWN_FILES} && ip link add cable type veth peer name other"
    return subprocess.run(["unshare", "-rnm", "sh", "-c", probe], capture_output=True).returncode == 0


class Cable:
    """`near` and `far` are what to put before a command that is to run in one of the networks, at `NEAR` or `FAR`."""

    def __init__(self) -> None:
        self._networks: list[subprocess.Popen[bytes]] = []
        self.near = self._network("unshare", "-rnm")
        self.far = self._network(*self.near, "unshare", "-nm")
        other = str(self._networks[1].pid)
        _run(*self.near, *f"ip link add cable type veth peer name cable netns {other}".split())
        for side, address in ((self.near, NEAR), (self.far, FAR)):
            for command in (f"address add {address}/24 dev cable", "link set cable up", "link set lo up"):
                _run(*side, "ip", *command.split())

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for network in self._networks:
            network.kill()
            network.wait()

    def cut(self) -> None:
        """Drop what one side sends to the other from now on."""
        _run(*self.far, *f"ip route add blackhole {NEAR}/32".split())

    def mend(self) -> None:
        _run(*self.far, *f"ip route delete blackhole {NEAR}/32".split())

    def _network(self, *command: str) -> list[str]:
        """A process that keeps a network of its own; what to put before a command there."""
        keeper = subprocess.Popen(
            [*command, "sh", "-c", f"{_OWN_FILES} && echo && exec sleep infinity"], stdout=subprocess.PIPE
        )
        self._networks.append(keeper)
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"\n"
        return ["nsenter", "-t", str(keeper.pid), "-U", "-n", "-m", f"--wd={os.getcwd()}", "--preserve-credentials"]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=10.0)
