"""What the measurer and its worker processes say to each other. Plain data: no TVM in here."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.machine.target import Target
from slipstream.measure.config import MeasureConfig, Racing
from slipstream.measure.types import FailureKind

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
    racing: Racing = field(default_factory=Racing)
    # Of the largest value of a result; and what a builder may use on top of what it shares with the others.
    tolerance: float = MeasureConfig.tolerance
    memory_bytes: int = field(default_factory=lambda: MeasureConfig().memory_bytes)

    @property
    def longest_session(self) -> float:
        """When a server may take back its device by force."""
        return self.session_seconds + self.device_timeout + self.run_timeout


@dataclass(frozen=True)
class BuildJob:
    """Build `module` into the shared library `output`, its weights packed beside it (`packed_path`).

    `values` is the file for the operator's inputs and expected results, made from its `reference` if it is not
    there yet. Without a reference nothing is compared.
    """

    module: str
    output: str
    reference: str
    values: str


@dataclass(frozen=True)
class Built:
    """Done; `arguments` is what `main` takes; those at `written` are results, those at `packed` packed weights.

    Equal fingerprints mean equal code. Linking took `link_seconds` of the `seconds`.
    """

    arguments: Arguments
    written: tuple[int, ...]
    packed: tuple[int, ...]
    fingerprint: str
    seconds: float
    link_seconds: float


@dataclass(frozen=True)
class BuildFailed:
    kind: FailureKind
    message: str
    seconds: float


@dataclass(frozen=True)
class BuilderOptions:
    """For what and with how much memory a builder builds."""

    target: Target
    memory_bytes: int


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
    """Measure the library at `path` with the inputs of `operator` against `best`, the median of its best program.

    `values` is the file with inputs and expected results; without one, nothing is compared.
    """

    operator: str
    path: str
    values: str
    arguments: Arguments
    written: tuple[int, ...]
    packed: tuple[int, ...]
    best: float


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
    stopped_early: bool
    verified: bool
    seconds: float
    upload_seconds: float
    allocate_seconds: float


@dataclass(frozen=True)
class Wrong:
    """The program does not compute what it should; the device is well."""

    message: str


@dataclass(frozen=True)
class RunFailed:
    """The program raised an error; the device is well."""

    message: str


@dataclass(frozen=True)
class Lost:
    """The session broke. The worker has ended."""

    message: str


def packed_path(library: str) -> str:
    """Where the packed weights of a program lie."""
    return f"{library}.packed"


DeviceMessage = (
    Acquiring | Connecting | Connected | Released | Returned | Preparing | Running | Ran | Wrong | RunFailed | Lost
)
