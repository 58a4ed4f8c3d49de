"""Every setting of measuring and its default, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_GIB = 1 << 30


def _default_memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(4 * _GIB, total // 4)


@dataclass(frozen=True)
class Racing:
    """When to stop timing a program.

    `slack[n - 1]`: after n samples that are all slower than the best so far by more than this fraction, the program
    is given up. If its median were as good as the best, n samples would all lie above with probability 2^-n; the
    slack covers what a median says nothing about: disturbances that last over several samples. More than
    `len(slack)` samples need no slack beyond `matters`. A first run, which pays for cold caches, page faults and
    new threads, gives a program up if it took `hopeless` times the best and more than 20 ms.
    A program that stays in the race is sampled until the 95 % interval of its median is within `precision`, or
    `most_samples` or `most_seconds` are used up.

    Other rules give no program up. `fixed` takes `most_samples`. `adatune` (AdaTune's adaptive evaluation, Li et al.,
    NeurIPS 2020) stops when the coefficient of variation of the samples' rates, without the lowest and the highest if
    there are more than four, is below `variation`.
    """

    rule: str = "racing"
    slack: tuple[float, ...] = (3.0, 1.2, 0.8, 0.5, 0.3, 0.2, 0.1)
    hopeless: float = 10.0
    matters: float = 0.01
    precision: float = 0.02
    least_samples: int = 6
    most_samples: int = 20
    most_seconds: float = 0.15
    sample_seconds: float = 0.002
    variation: float = 0.1


# How a session may time programs. The least samples and the variation are those of AdaTune's authors' code; a batch of
# theirs is 50 runs; a sample of ours takes 2 ms, and on a CPU at most the runs that `timing/in_model.py` says.
EVALUATIONS: Mapping[str, Racing] = MappingProxyType(
    {
        "racing": Racing(),
        "adatune": Racing(rule="adatune", least_samples=3, most_seconds=3.0),
        "fixed": Racing(rule="fixed", most_seconds=3.0),
    }
)


@dataclass(frozen=True)
class RemoteConfig:
    """Remote devices: how many are used at once, and for how long each step may take, in seconds.

    A run's limit (`MeasureConfig.run_seconds`) starts when the program starts on the device. Waiting for a device,
    uploading and allocating have the limits here.
    """

    devices: int = 2
    # For what takes no time on a working server: a handshake, an upload, allocating the inputs.
    device_seconds: float = 20.0
    # How long to go on without a single server under the key, and how long to queue when there are some.
    patience_seconds: float = 30.0
    queue_seconds: float = 600.0
    # A device goes back to the tracker after so long without programs or with them, so that others get their turn.
    idle_seconds: float = 2.0
    session_seconds: float = 30.0
    # How often a program is tried when devices fail while they run it.
    attempts: int = 4


@dataclass(frozen=True)
class MeasureConfig:
    """Limits are per program; `memory_bytes` is what a worker may use on top of what it shares with the others.

    A program is given up that takes `hopeless_build` times as long to build as the operator's fastest one and more
    than `least_build_seconds` of a core; any program, after `build_seconds`.

    `build_cpu_seconds` is what generating a GPU's program may take of a core: a limit by the clock would hit programs
    that share the machine with many others.

    `batch` is how many built programs may wait for their run on a CPU: building and running take turns, so a larger
    batch leaves fewer cores idle at the end of a building turn and holds more memory.

    `model_weights` is how many bytes of weights a call of the model reads, 0 if that is not known: between two runs
    of a program as much is read as in the model.

    `gpus` are named as in `CUDA_VISIBLE_DEVICES`; without any, the first and all that are equal to it are used.
    """

    build_seconds: float = 30.0
    least_build_seconds: float = 2.0
    hopeless_build: float = 10.0
    build_cpu_seconds: float = 6.0
    run_seconds: float = 10.0
    memory_bytes: int = field(default_factory=_default_memory)
    workers: int | None = None
    batch: int = 16
    model_weights: int = 0
    gpus: tuple[str, ...] = ()
    seed: int = 0
    tolerance: float = 1e-3
    racing: Racing = field(default_factory=Racing)
    remote: RemoteConfig = field(default_factory=RemoteConfig)
