"""How many threads each operator of a compiled model gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.artifact import compile as compiling
from slipstream.artifact.manifest import WEIGHTS, Manifest
from slipstream.artifact.step_threads import choose_step_threads
from slipstream.artifact.verify import verification_inputs
from slipstream.frontends import load_model
from slipstream.frontends.inputs import Array, random_inputs
from slipstream.graph.prepare import prepare
from slipstream.machine.target import available_cores, resolve_target
from slipstream.runtime.library import ModelLibrary

WORKERS = """
import sys, ctypes, numpy as np, slipstream
from slipstream.frontends.inputs import random_inputs
model = slipstream.load(sys.argv[1], threads=2)
model(random_inputs(model.inputs, np.random.default_rng(0)))
print(ctypes.CDLL("libslipstream_pool.so.1").slipstream_pool_workers())
"""


def opened(directory: Path, threads: int) -> tuple[ModelLibrary, list[Array]]:
    manifest = Manifest.read(directory)
    feed = random_inputs(manifest.inputs, np.random.default_rng(0))
    library = ModelLibrary(
        directory / manifest.library, manifest.prefix, directory / WEIGHTS, manifest.outputs, threads
    )
    return library, [np.asarray(feed[spec.name], order="C") for spec in manifest.inputs]


def test_a_profile_has_the_time_of_every_step(tiny_artifact: Path) -> None:
    library, inputs = opened(tiny_artifact, 1)
    assert len(library.steps) == len(set(library.steps)) > 3
    assert (library.profile(inputs) > 0).all()
    with pytest.raises(ValueError, match="1 limits for"):
        library.profile(inputs, [1])
    library.close()


def test_threads_are_chosen_from_those_there_are(tiny_artifact: Path) -> None:
    library, inputs = opened(tiny_artifact, 3)
    chosen = choose_step_threads(library, inputs, 3)
    assert chosen is None or (len(chosen) == len(library.steps) and set(chosen) <= {1, 2, 3})
    assert choose_step_threads(library, inputs, 1) is None
    library.close()


@pytest.mark.parametrize(("threads", "workers"), [(1, 0), (2, 1)])
def test_what_was_chosen_is_in_the_library(
    threads: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if workers >= available_cores():
        pytest.skip("needs two cores")
    monkeypatch.setattr(compiling, "choose_step_threads", lambda library, *_: [threads] * len(library.steps))
    model, target = load_model("zoo:tiny_cnn"), resolve_target("cpu", 2)
    manifest = compiling.write_artifact(
        model, lambda: prepare(model.module, target)[0], target, tmp_path / "out", choose_threads=True,
        feeds=verification_inputs(model, None)[:1],
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "out").glob("model-*")] == [manifest.library]
    done = subprocess.run([sys.executable, "-c", WORKERS, tmp_path / "out"], capture_output=True, text=True, check=True)
    assert int(done.stdout) == workers
