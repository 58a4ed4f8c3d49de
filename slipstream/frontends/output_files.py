"""Outputs of a model as archives (.npz): arrays, and what ONNX has besides, sequences and maps of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.frontends.archives import read_archive, write_archive
from slipstream.frontends.inputs import Array


def arrays_of(output: Any) -> list[Array]:
    """All arrays of an output: itself, or those of a sequence's items, or of a map's keys and values."""
    if isinstance(output, dict):
        return [np.array(list(output)), *arrays_of(list(output.values()))]
    if isinstance(output, list | tuple):
        if output and not any(isinstance(item, list | tuple | dict | np.ndarray) for item in output):
            return [np.array(output)]
        return [array for item in output for array in arrays_of(item)]
    array = np.asarray(output)
    # Text is an object to ONNX Runtime, which an archive could hold only as a pickle.
    return [array.astype(np.str_) if array.dtype == np.object_ else array]


def write_outputs(path: str | Path, outputs: Iterable[Any]) -> None:
    """Write outputs by position."""
    named = {f"{place}.{number}": array for place, output in enumerate(outputs) for number, array in _numbered(output)}
    write_archive(path, named)


def _numbered(output: Any) -> list[tuple[int, Array]]:
    # -1 stands for an output that has no arrays.
    return list(enumerate(arrays_of(output))) or [(-1, np.empty(0))]


def read_outputs(path: str | Path) -> list[Any]:
    """The outputs by position: an array, or the list of all arrays of what is none."""
    found: dict[int, list[Array]] = {}
    for name, array in read_archive(path).items():
        place, number = map(int, name.split("."))
        found.setdefault(place, []).extend([] if number < 0 else [array])
    return [_single(found[place]) for place in sorted(found)]


def _single(arrays: Sequence[Array]) -> Any:
    return arrays[0] if len(arrays) == 1 else list(arrays)
