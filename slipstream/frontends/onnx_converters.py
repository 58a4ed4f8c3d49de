"""Our own translations for ONNX operators that TVM imports in a form later passes cannot see through.

TVM emits Clip as an opaque loop nest and stacks the inputs of Sum, Max, Min and Mean into one larger tensor;
both stop layout conversion and fusion. As plain element-wise operators they fuse into the convolution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import ir, relax
from tvm.relax.frontend.onnx import onnx_frontend


class _Clip(onnx_frontend.Clip):  # type: ignore[misc]
    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        dtype = str(inputs[0].ty.dtype)
        low, high = attr.get("min"), attr.get("max")
        return _clip(bb, inputs[0], *(None if b is None else relax.const(b, dtype) for b in (low, high)))

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return cls._impl_v13(bb, inputs, attr, params)

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        low, high = inputs[1], inputs[2]
        if any(b is not None and not _is_number(b) for b in (low, high)):
            return super()._impl_v13(bb, inputs, attr, params)
        return _clip(bb, inputs[0], low, high)


def _is_number(bound: Any) -> bool:
    return isinstance(bound, ir.GenericConst) and not np.isnan(bound.value.numpy()).any()


def _clip(bb: Any, x: Any, low: Any, high: Any) -> Any:
    if low is not None:
        x = bb.normalize(relax.op.maximum(x, low))
    return x if high is None else bb.normalize(relax.op.minimum(x, high))


def _pairwise(base: type, binary: Callable[[Any, Any], Any], mean: bool = False) -> type:
    class Pairwise(base):  # type: ignore[misc]
        @classmethod
        def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            operands = list(inputs)
            total = functools.reduce(lambda a, b: bb.normalize(binary(a, b)), operands)
            if not mean:
                return total
            return bb.normalize(relax.op.divide(total, relax.const(len(operands), str(total.ty.dtype))))

    return Pairwise


_CONVERTERS = {
    "Clip": _Clip,
    "Sum": _pairwise(onnx_frontend.Sum, relax.op.add),
    "Max": _pairwise(onnx_frontend.Max, relax.op.maximum),
    "Min": _pairwise(onnx_frontend.Min, relax.op.minimum),
    "Mean": _pairwise(onnx_frontend.Mean, relax.op.add, mean=True),
}


def convert_map() -> dict[str, Any]:
    """Every ONNX operator that can be imported, by name, with its converter."""
    return {**_stock_convert_map(), **_CONVERTERS}


_stock_convert_map = onnx_frontend._get_convert_map


@contextmanager
def our_converters() -> Iterator[None]:
    """Import with `convert_map()` in place of TVM's own table."""
    onnx_frontend._get_convert_map = convert_map
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = _stock_convert_map
