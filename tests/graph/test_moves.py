"""What is moved by NumPy is what the compiled function moves; what computes anything is left to the compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from slipstream.graph.fold import fold_constants
from slipstream.graph.moves import moves_of
from slipstream.graph.relax_walk import is_constant
from slipstream.machine.target import resolve_target


def made(shape: tuple[int, ...], result: tuple[int, ...], place: Any, dtype: str = "float32") -> tirx.PrimFunc:
    source = te.placeholder(shape, dtype, name="source")
    return te.create_prim_func([source, te.compute(result, lambda *at: source[place(*at)], name="moved")])


MOVES = {
    "transpose": made((2, 3, 4, 5), (2, 4, 5, 3), lambda n, h, w, c: (n, c, h, w)),
    "packed": made((24, 3, 8), (3, 3, 8, 2, 4), lambda o, k, c, v, lane: (o * 8 + v * 4 + lane, k, c)),
    "unpacked": made((3, 5, 2, 4), (24, 5), lambda f, c: (f // 8, c, f % 8 // 4, f % 4)),
    "part": made((9, 7), (3, 5), lambda y, x: (2 * y + 1, x + 2)),
    "reversed": made((6, 4), (6, 4), lambda y, x: (5 - y, x)),
    "repeated": made((4,), (3, 4), lambda y, x: (x,)),
    "one row": made((32,), (1, 32, 1, 1), lambda n, c, y, x: ((c + y + x) % 32,)),
    "one element": made((1,), (1, 1), lambda y, x: (y,)),
    "large": made((700, 3, 600), (3, 1, 600, 700), lambda y, n, x, c: (c, y, x)),
    "bytes": made((8, 6), (6, 8), lambda y, x: (x, y), "int8"),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_are_those_of_the_compiled_function(name: str) -> None:
    func = MOVES[name]
    moves = moves_of(func)
    assert moves is not None
    rng = np.random.default_rng(0)
    arrays = [(rng.random(tuple(map(int, p.shape))) * 100).astype(str(p.dtype)) for p in func.params]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    for move in moves:
        move.apply(arrays)
    tvm.compile(func, target="llvm")(*tensors)
    np.testing.assert_array_equal(arrays[-1], tensors[-1].numpy())


def _padded(y: Any, x: Any, source: Any) -> Any:
    return tirx.if_then_else(y < 3, source[y, x], tirx.const(0, "float32"))


def _summed(source: Any, k: Any) -> Any:
    return te.compute((3,), lambda y: te.sum(source[y, k], axis=k))


@pytest.mark.parametrize(
    "compute",
    [
        lambda source: te.compute((3, 4), lambda y, x: source[y, x] + source[y, x]),
        lambda source: te.compute((3, 4), lambda y, x: source[y, x].astype("float16")),
        lambda source: te.compute((5, 4), lambda y, x: _padded(y, x, source)),
        lambda source: _summed(source, te.reduce_axis((0, 4), name="k")),
        lambda source: te.compute((12,), lambda i: source[i // 4, i % 4] * 2.0),
        lambda source: te.compute((2, 6), lambda y, x: source[(y * 6 + x) // 4, (y * 6 + x) % 4]),
    ],
    ids=["sum of two", "cast", "padding", "reduction", "product", "counters that act together"],
)
def test_anything_else_is_not_a_move(compute: Any) -> None:
    source = te.placeholder((3, 4), "float32", name="source")
    assert moves_of(te.create_prim_func([source, compute(source)])) is None


def test_bfloat16_and_nothing_at_all_are_left_to_the_compiler() -> None:
    assert moves_of(made((4, 6), (6, 4), lambda y, x: (x, y), "bfloat16")) is None
    assert moves_of(made((4, 0), (0, 4), lambda y, x: (x, y))) is None


def test_a_model_is_folded_by_moves_and_by_compiled_functions_alike() -> None:
    """A transposed weight of which the sine is taken: one is a move, the other is not."""
    weight = np.arange(24, dtype=np.float32).reshape(4, 6)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(relax.const(weight)))
            result = builder.emit_output(relax.op.add(x, relax.op.sin(turned)))
        builder.emit_func_output(result)
    mod = relax.transform.LegalizeOps()(builder.get())
    folded = fold_constants(mod, resolve_target("cpu"))
    constants: list[Any] = []
    relax.analysis.post_order_visit(
        folded["main"], lambda e: constants.append(e.value.numpy()) if is_constant(e) else None
    )
    assert len(constants) == 1
    np.testing.assert_allclose(constants[0], np.sin(weight.T), rtol=1e-5, atol=1e-6)
