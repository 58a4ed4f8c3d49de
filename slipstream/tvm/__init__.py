"""For users of TVM: MetaSchedule's `tune_relax` by Slipstream, and passes for a pipeline of one's own.

| name | what it is |
| --- | --- |
| `tune_relax` | tunes a Relax module in a session folder; the database it returns is one of MetaSchedule's |
| `Tuned` | a pass: gives operators the best programs of such a folder, also those no database can hold |
| `Prepare` | a pass: legalises and fuses as Slipstream does, with convolutions in NHWC and weights to be packed |
| `this_cpu` | TVM's target for this machine |
| `TIR_PIPELINE` | for `tvm.compile(..., tir_pipeline=...)`: keeps register tiles on the stack and prefetches weights |
"""

from __future__ import annotations

from slipstream.graph.cpu.pipeline import NAME as TIR_PIPELINE
from slipstream.tvm.passes import Prepare, Tuned
from slipstream.tvm.target import this_cpu
from slipstream.tvm.tune import tune_relax

__all__ = ["TIR_PIPELINE", "Prepare", "Tuned", "this_cpu", "tune_relax"]
