"""How the state of a cost model is written: named arrays in one compressed block, without pickling."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.cost.types import CostModelError


def write_state(model: str, **arrays: NDArray[Any]) -> bytes:
    """The arrays and the name of the model they belong to."""
    block = io.BytesIO()
    np.savez_compressed(block, allow_pickle=False, model=np.array(model), **arrays)
    return block.getvalue()


def read_state(model: str, state: bytes) -> Mapping[str, NDArray[Any]]:
    """The arrays again, if it was this model that wrote them."""
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as block:
            arrays = {name: block[name] for name in block.files}
        wrote = str(arrays.pop("model"))
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise CostModelError(
            f"the saved state of the cost model {model!r} is damaged ({error}): start it afresh from the trials"
        ) from error
    if wrote != model:
        raise CostModelError(f"this is the state of the cost model {wrote!r}, not of {model!r}: choose {wrote!r}")
    return arrays
