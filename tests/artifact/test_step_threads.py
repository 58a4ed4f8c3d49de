"""How many threads each operator of a compiled model gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.artifact.manifest import WEIGHTS, Manifest
from slipstream.artifact.step_threads import choose_step_threads
from slipstream.frontends.inputs import Array, random_inputs
from slipstream.machine.target import available_cores
from slipstream.runtime.library import ModelLibrary

# In a process of its own, which has loaded no other model: the pool's library is then the one beside the model.
COMPILED = """
import ctypes, pathlib, sys
from slipstream.tvm_bridge.imports import import_tvm_without_torch
import_tvm_without_torch()
import numpy as np
import slipstream
from slipstream.artifact import write as writing
from slipstream.frontends import load_model
from slipstream.frontends.inputs import random_inputs
from slipstream.graph.prepare import prepare_parts
from slipstream.machine.target import resolve_target

out = pathlib.Path(sys.argv[1])
choose = writing.choose_step_threads
def chosen(library, inputs, threads):
    choose(library, inputs, threads)
    return [count] * len(library.steps)
writing.choose_step_threads = chosen
loaded, target = load_model("zoo:tiny_cnn"), resolve_target("cpu", 2)
pool = None
for count in 1, 2:
    manifest = writing.write_artifact(
        loaded, lambda *_: prepare_parts(loaded, target)[0], target, out, choose_threads=True
    )
    assert [path.name for path in out.glob("model-*")] == [manifest.library]
    pool = pool or ctypes.CDLL("libslipstream_pool.so.2")
    assert pool.slipstream_pool_workers() == 0
    with slipstream.load(out, threads=2) as model:
        model(random_inputs(model.inputs, np.random.default_rng(0)))
        print(pool.slipstream_pool_workers())
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


@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_what_was_chosen_is_in_the_library(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILED, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n1\n"), done.stderr
