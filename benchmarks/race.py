"""Compiled models that run in turns, each in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np


def race(artifacts: Mapping[str, Path], rounds: int) -> dict[str, list[float]]:
    """The median latency of each side in each round; the first artifact has one shape, at which all run."""
    from slipstream.artifact.bench import BACK_TO_BACK
    from slipstream.artifact.contender import OURS, Contender, Job
    from slipstream.artifact.manifest import Manifest
    from slipstream.frontends.inputs import random_inputs
    from slipstream.machine.target import available_cores

    inputs = Manifest.read(next(iter(artifacts.values()))).inputs
    rng = np.random.default_rng(0)
    contenders: dict[str, Contender] = {}
    with TemporaryDirectory() as folder:
        feeds = f"{folder}/feeds.npz"
        np.savez(feeds, **random_inputs(inputs, rng))  # type: ignore[arg-type]
        try:
            for side, path in artifacts.items():
                contenders[side] = Contender(Job(OURS, "", str(path), None, feeds, available_cores()))
                contenders[side].ready()
            found: dict[str, list[float]] = {side: [] for side in artifacts}
            for _ in range(rounds):
                for side in rng.permutation(list(artifacts)).tolist():
                    block = contenders[side].block(BACK_TO_BACK, BACK_TO_BACK.block_seconds, 0)
                    found[side].append(float(np.median(block.latencies)))
            return found
        finally:
            for contender in contenders.values():
                contender.close()
