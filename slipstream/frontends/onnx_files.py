"""Writing ONNX models."""

from __future__ import annotations

import math
from pathlib import Path

import onnx

# Models with more weights keep these beside the graph: written once, then mapped instead of parsed and copied.
_MOST_WEIGHTS = 4_000_000


def save(proto: onnx.ModelProto, path: Path) -> None:
    """Write the model; the weights of a large one go to a separate file, and are removed from `proto`."""
    # Not the size in bytes, for which the whole model would be serialised.
    large = sum(math.prod(tensor.dims) for tensor in proto.graph.initializer) > _MOST_WEIGHTS
    onnx.save(proto, str(path), save_as_external_data=large, location=f"{path.name}.data" if large else None)
