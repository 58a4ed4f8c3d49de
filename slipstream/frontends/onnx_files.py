"""Writing ONNX models."""

from __future__ import annotations

from pathlib import Path

import onnx

# Larger models keep their weights beside the graph: written once, then mapped instead of parsed and copied.
_LARGEST_MESSAGE = 16_000_000


def save(proto: onnx.ModelProto, path: Path) -> None:
    """Write the model; the weights of a large one go to a separate file, and are removed from `proto`."""
    large = proto.ByteSize() > _LARGEST_MESSAGE
    onnx.save(proto, str(path), save_as_external_data=large, location=f"{path.name}.data" if large else None)
