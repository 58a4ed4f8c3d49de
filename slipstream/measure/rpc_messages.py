"""What the measurer and its worker processes say to each other. Plain data: no TVM in here."""

from __future__ import annotations

from dataclasses import dataclass

Arguments = tuple[tuple[str, tuple[int, ...]], ...]
"""(dtype, shape) of each argument of a program."""


@dataclass(frozen=True)
class RpcSettings:
    """Limits and effort of measuring on remote devices. Times are seconds.

    `run_timeout` starts when the program starts on the device: waiting for a device, uploading and allocating
    have limits of their own. `attempts` is how often a program is tried when devices fail under it.
    """

    build_timeout: float = 30.0
    run_timeout: float = 10.0
    # For what takes no time on a server that is well: a handshake, an upload, allocating the inputs.
    device_timeout: float = 20.0
    # How long to go on without a single server under the key, and how long to queue when there are some.
    patience: float = 30.0
    queue_timeout: float = 600.0
    # A device goes back to the tracker after this long without work or with it, so that others get their turn.
    # Servers end a session that outlives it by the limits above: that frees a stock one from a hanging program.
    idle_seconds: float = 2.0
    session_seconds: float = 30.0
    attempts: int = 4
    samples: int = 5
    sample_seconds: float = 0.02

    @property
    def longest_session(self) -> float:
        """When a server may take back its device by force."""
        return self.session_seconds + self.device_timeout + self.run_timeout


@dataclass(frozen=True)
class BuildJob:
    """Build `module` into the shared library `output`."""

    module: str
    output: str


@dataclass(frozen=True)
class Built:
    """Done; `arguments` is what `main` takes. Equal fingerprints mean equal code.

    Linking took `link_seconds` of the `seconds`.
    """

    arguments: Arguments
    fingerprint: str
    seconds: float
    link_seconds: float


@dataclass(frozen=True)
class BuildFailed:
    message: str
    seconds: float


@dataclass(frozen=True)
class DeviceOptions:
    """Which devices a device worker asks for, and how it measures on them."""

    host: str
    port: int
    key: str
    settings: RpcSettings


@dataclass(frozen=True)
class Acquire:
    """Ask the tracker for a device again, after `Released`."""


@dataclass(frozen=True)
class Acquiring:
    """Queueing at the tracker: no time limit applies."""


@dataclass(frozen=True)
class Connecting:
    """The tracker gave us the server at `address`; shaking hands."""

    address: str


@dataclass(frozen=True)
class Connected:
    """A session is open; the server runs code on `threads` threads."""

    address: str
    threads: int


@dataclass(frozen=True)
class Released:
    """The device went back to the tracker for want of work."""


@dataclass(frozen=True)
class RunJob:
    """Measure the library at `path` with the inputs of `operator`."""

    operator: str
    path: str
    arguments: Arguments


@dataclass(frozen=True)
class Returned:
    """A `RunJob` not begun, since there is no session now. The worker goes for another."""


@dataclass(frozen=True)
class Preparing:
    """Uploading, loading, allocating."""


@dataclass(frozen=True)
class Running:
    """The program runs from now on."""


@dataclass(frozen=True)
class Ran:
    """Timed. `seconds` is what running took; `upload_seconds` is sending and loading the program."""

    samples: tuple[float, ...]
    seconds: float
    upload_seconds: float
    allocate_seconds: float


@dataclass(frozen=True)
class RunFailed:
    """The program raised an error; the device is well."""

    message: str


@dataclass(frozen=True)
class Lost:
    """The session broke. The worker has ended."""

    message: str


DeviceMessage = Acquiring | Connecting | Connected | Released | Returned | Preparing | Running | Ran | RunFailed | Lost
