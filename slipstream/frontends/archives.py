"""Arrays by name in a file, as NumPy's archives (.npz): with any names, and with bfloat16."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from slipstream.frontends.inputs import Array


def write_archive(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """What `numpy.savez` writes, which takes names as its arguments and so cannot have its own, `file` for example."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array))


def read_archive(path: str | Path) -> dict[str, Array]:
    """The arrays of an archive, also of one that `numpy.savez` wrote; raises OSError or ValueError."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: with_short_floats(archive[name]) for name in archive.files}
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(str(error) or "it ends too early") from error


def with_short_floats(array: Array) -> Array:
    """NumPy writes bfloat16, which is not its own type, as two bytes that mean nothing to it."""
    if array.dtype.type is not np.void or array.dtype.itemsize != 2 or array.dtype.fields is not None:
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)
