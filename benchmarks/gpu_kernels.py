"""The kernels of one run of a model on a GPU, by CUDA's profiler: `python -m benchmarks.gpu_kernels ARTIFACT NAME`.

NAME is `slipstream` or a runtime to compare with, such as `torch.compile`. Printed is JSON: names and seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WARM_UP = 3
_LIMIT_SECONDS = 900
_COPIES = ("Memcpy", "Memset")

Kernel = tuple[str, float]


def kernels_in_child(artifact: Path, name: str) -> list[Kernel]:
    """Name and seconds of each kernel, in the order they start; none if the profiler could not be used."""
    command = [sys.executable, "-m", "benchmarks.gpu_kernels", str(artifact), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=True)
        return [(str(kernel), float(seconds)) for kernel, seconds in json.loads(done.stdout.splitlines()[-1])]
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        print(f"the kernels of {name} could not be counted: {error}", flush=True)
        return []


def kernels_of(run: Callable[[], Any]) -> list[Kernel]:
    """The kernels that one call launches."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(_WARM_UP):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    on_device = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    started = sorted(on_device, key=lambda event: event.time_range.start)
    return [(e.name, e.time_range.elapsed_us() / 1e6) for e in started if not e.name.startswith(_COPIES)]


def open_side(artifact: Path, name: str) -> Callable[[], Any]:
    """One side of the comparison on random inputs that are on the device."""
    import numpy as np

    from slipstream.artifact.baselines import model_files, open_baseline
    from slipstream.artifact.loaded import load
    from slipstream.frontends.inputs import random_inputs

    compiled = load(artifact)
    feeds = random_inputs(compiled.manifest.inputs, np.random.default_rng(0))
    if name == "slipstream":
        return compiled.on_device(feeds)
    files, kept = model_files(compiled.manifest, None)
    run = open_baseline(name, files, feeds, compiled.manifest.threads)
    return lambda: (run(), kept)[0]


if __name__ == "__main__":
    print(json.dumps(kernels_of(open_side(Path(sys.argv[1]), sys.argv[2]))))
