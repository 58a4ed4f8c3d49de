"""Arguments of programs as files: raw bytes, since NumPy's own format does not know every type TVM has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.measure.arena import Array, numpy_type
from slipstream.measure.devices.rpc_messages import Arguments


def write_values(path: str, arrays: dict[int, Array]) -> None:
    """Write arrays by their position; whoever sees the file sees all of it."""
    unfinished = Path(f"{path}.{os.getpid()}")
    with unfinished.open("wb") as file:
        raw: dict[str, Any] = {str(index): np.frombuffer(a.tobytes(), np.uint8) for index, a in arrays.items()}
        np.savez(file, **raw)
    unfinished.rename(path)


def read_values(path: str, arguments: Arguments) -> dict[int, Array]:
    """The arrays in the file at `path`, which have the types and shapes of `arguments`, if their sizes fit."""
    with np.load(path) as content:
        raw = {int(name): content[name] for name in content.files}
    values = {}
    for index, data in raw.items():
        dtype, shape = arguments[index]
        if data.nbytes == numpy_type(dtype).itemsize * int(np.prod(shape)):
            values[index] = data.view(numpy_type(dtype)).reshape(shape)
    return values
