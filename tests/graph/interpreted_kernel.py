"""Runs a Triton kernel in Triton's interpreter, on the CPU. Arguments: kernel.py in.npz out.npy and the grid.

A process of its own, because Triton decides when it is imported whether it interprets. The arguments in the file are in
the order of their names; the last one is what the kernel writes.
"""

from __future__ import annotations

import importlib.util
import os
import sys

import numpy as np


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    source, inputs, output, *grid = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("kernel", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with np.load(inputs) as archive:
        tensors = [torch.from_numpy(archive[name]) for name in sorted(archive)]
    module.kernel[tuple(map(int, grid))](*tensors)
    np.save(output, tensors[-1].numpy())


if __name__ == "__main__":
    main()
