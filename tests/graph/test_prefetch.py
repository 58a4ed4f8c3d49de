import numpy as np
import pytest
import tvm
from tvm import te

from slipstream.graph.cpu.default_schedule import schedule_default
from slipstream.machine.target import resolve_target
from slipstream.measure.lowering import generate, lower

TARGET = resolve_target()


def matmul(rows: int, inner: int, columns: int) -> tvm.tirx.PrimFunc:
    a, b = te.placeholder((rows, inner), name="a"), te.placeholder((inner, columns), name="b")
    k = te.reduce_axis((0, inner), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


@pytest.mark.parametrize(("inner", "columns", "wanted"), [(512, 512, True), (64, 64, False)])
def test_weights_too_large_for_the_caches_are_fetched_ahead(inner: int, columns: int, wanted: bool) -> None:
    scheduled = tvm.IRModule({"main": schedule_default(matmul(32, inner, columns), TARGET)})
    lowered = lower(scheduled, TARGET, prepack=False)
    assert ("llvm.prefetch" in generate(lowered, TARGET).inspect_source()) is wanted


def test_the_last_vectors_fetch_nothing_that_matters() -> None:
    """A prefetch reaches beyond the end of the weight; the result is that of NumPy all the same."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((32, 512), (512, 512)))
    scheduled = tvm.IRModule({"main": schedule_default(matmul(32, 512, 512), TARGET)})
    function = generate(lower(scheduled, TARGET, prepack=False), TARGET)["main"]
    c = tvm.runtime.tensor(np.zeros((32, 512), np.float32))
    function(tvm.runtime.tensor(a), tvm.runtime.tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-4, atol=1e-3)
