"""The worker that has a GPU, with the CPU as its GPU: everything about it is real but the device.

In the folder that `GPUS_SEEN` names it leaves a file called as its process, with the GPU it was told to use.
"""

from __future__ import annotations

import os
from pathlib import Path

import tvm

from slipstream.measure import gpu_worker

if __name__ == "__main__":
    tvm.cuda = tvm.cpu
    (Path(os.environ["GPUS_SEEN"]) / str(os.getpid())).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    gpu_worker.main()
