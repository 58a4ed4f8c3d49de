"""Running ONNX models in ONNX Runtime, and making inputs for them. Imported without TVM."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx

# Read when ONNX Runtime is imported: switches its telemetry off.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

from slipstream.errors import ModelError
from slipstream.frontends.archives import read_archive
from slipstream.frontends.output_files import write_outputs
from slipstream.machine.exact_onnx import cpu_session

Array = np.ndarray[Any, Any]
_QUIET = 4
# The newest versions of the file format and of the operators that ONNX Runtime reads.
NEWEST_IR, NEWEST_OPSET = 13, 26
# Merges a Pad by zeros into a MaxPool, which pads by minus infinity; `onnx_padding` does the correct cases.
_WRONG_FUSIONS = ["Pad_Fusion"]
_EXTERNAL = "session.optimized_model_external_initializers_"
# Turns a matmul and its bias into Reshape, Gemm, Reshape, which keeps TVM from fusing what follows.
_UNWANTED_FUSIONS = ["MatMulAddFusion"]
# What the basic level does beside folding constants.
_REWRITES = [
    *("CastChainElimination", "CastElimination", "ClipQuantRewrite", "CommonSubexpressionElimination"),
    *("ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "DivMulFusion", "DoubleQDQPairsRemover", "EliminateDropout"),
    *("EliminateSlice", "ExpandElimination", "FuseReluClip", "GemmSumFusion", "GemmTransposeFusion"),
    *("MatMul_BatchNormalization_Fusion", "NoopElimination", "NotWhereFusion", "Pad_Fusion", "PreShapeNodeElimination"),
    *("QDQPropagationTransformer", "ReluQuantRewrite", "ReshapeFusion", "TransposeOptimizer", "UnsqueezeElimination"),
]


class Folding(Enum):
    """How far a model is simplified, from far to not at all."""

    ALL = "all"
    CONSTANTS = "constants"
    NOTHING = "nothing"


def session(
    path: str | Path,
    *,
    threads: int | None = None,
    optimise: bool = True,
    save_to: Path | None = None,
    folding: Folding = Folding.ALL,
    spinning: bool = True,
    exact: bool = True,
) -> onnxruntime.InferenceSession:
    """A CPU session. `save_to` writes the model after basic optimisation (no fused contrib operators), or after as
    much of it as `folding` says.

    Without `spinning` its threads sleep as soon as they have nothing to do. On some CPUs sums of bytes are fast or
    `exact`.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _QUIET
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    if threads is not None:
        options.intra_op_num_threads = threads
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if save_to is not None:
        nothing = folding is Folding.NOTHING
        options.graph_optimization_level = levels.ORT_DISABLE_ALL if nothing else levels.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(save_to)
        options.add_session_config_entry(_EXTERNAL + "file_name", f"{save_to.name}.data")
        options.add_session_config_entry(_EXTERNAL + "min_size_in_bytes", "1024")
    try:
        return cpu_session(
            str(path),
            options,
            exact=exact,
            disabled_optimizers=_WRONG_FUSIONS
            + (_UNWANTED_FUSIONS if save_to else [])
            + (_REWRITES if save_to and folding is Folding.CONSTANTS else []),
        )
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot load the model: {first_line(error)}") from error


def run(model: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> list[Any]:
    """The outputs, in the model's order: arrays, or lists and dictionaries for sequences and maps."""
    names = {value.name for value in model.get_inputs()}
    try:
        outputs = model.run(None, {name: value for name, value in feeds.items() if name in names})
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime cannot run the model: {first_line(error)}; "
            "if its inputs depend on each other, give them with --input-data FILE.npz"
        ) from error
    return [output if isinstance(output, list | dict) else np.asarray(output) for output in outputs]


def run_files(model: str, feeds: Sequence[str], results: Sequence[str], optimise: bool = True) -> dict[str, Any]:
    """Job: run `model` on each `feeds` archive (.npz) and write the outputs by position to `results`."""
    loaded = session(model, optimise=optimise)
    for feed, result in zip(feeds, results, strict=True):
        write_outputs(result, run(loaded, read_archive(feed)))
    return {}


def dtype_of(elem_type: int) -> str:
    """NumPy's name of an ONNX element type."""
    return str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type)))


def first_line(error: BaseException) -> str:
    """The message of an ONNX Runtime exception, without its internal prefixes."""
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^Load model from \S+ failed:", "", text.rsplit(" : ", 1)[-1].strip()).rstrip(".")
