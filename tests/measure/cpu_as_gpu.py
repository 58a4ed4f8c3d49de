"""The worker that has a GPU, with the CPU as its GPU: everything about it is real but the device.

In the folder that `GPUS_SEEN` names it leaves a file called as its process, with the GPU it was told to use.
"""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.measure.devices import gpu_worker
from slipstream.tvm_bridge.imports import import_tvm_without_torch

if __name__ == "__main__":
    import_tvm_without_torch()  # as the worker itself does, which spares seconds
    import tvm

    tvm.cuda = tvm.cpu
    (Path(os.environ["GPUS_SEEN"]) / str(os.getpid())).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    gpu_worker.main()
