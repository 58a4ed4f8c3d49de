"""Indices of PyTorch, which may count from the end of an axis, for code that reads where they point."""

from __future__ import annotations

from typing import Any


def use_positive_indices(module: Any) -> None:
    """Count indices from the start of an axis: compiled code reads where they point, without a check."""
    import torch

    aten, graph = torch.ops.aten, module.graph
    reads = (aten.index.Tensor, aten._unsafe_index.Tensor)
    for node in list(graph.nodes):
        if node.target not in (*reads, aten.index_put.default):
            continue
        source, indices, *rest = node.args
        counted = []
        with graph.inserting_before(node):
            for axis, index in enumerate(indices):
                if index is not None and index.meta["val"].dtype in (torch.int64, torch.int32):
                    rows = source.meta["val"].shape[axis]
                    rows = rows if isinstance(rows, int) else graph.call_function(aten.sym_size.int, (source, axis))
                    meta, index = index.meta, graph.call_function(aten.remainder.Scalar, (index, rows))
                    index.meta = dict(meta)
                counted.append(index)
        node.target = aten.index.Tensor if node.target in reads else node.target
        node.args = (source, counted, *rest)
    module.recompile()
