"""The design space of one operator of every sort in the zoo: programs as data against what TVM makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm.script
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te
from tvm.s_tir.meta_schedule.postproc import RewriteReductionBlock

from slipstream.diffusion.posterior import Centre, Posterior
from slipstream.graph.describe.key import operator_key
from slipstream.graph.forms import schedule_untuned
from slipstream.machine.target import resolve_target
from slipstream.program import decisions as d
from slipstream.program.decisions import IllegalDecisionError, Tile
from slipstream.program.metaschedule import from_metaschedule, to_metaschedule
from slipstream.program.sketch import Sketch, SketchError
from slipstream.program.space import MOST_WRITTEN_OUT, Program, Space, StockSpace
from slipstream.program.trace import apply, read_trace
from tests.program.zoo_operators import function, labels, space, spread

SPREAD = spread()
every_operator = pytest.mark.parametrize(
    "label", [label if label in SPREAD else pytest.param(label, marks=pytest.mark.slow) for label in labels()]
)
every_second_operator = pytest.mark.parametrize(
    "label", [label if label in SPREAD[1::2] else pytest.param(label, marks=pytest.mark.slow) for label in labels()]
)
some_operators = pytest.mark.parametrize("label", SPREAD[1::3])


def programs_of(operator: Space) -> tuple[Program, ...]:
    return (*operator.own, *operator.stock)


def same(a: Any, b: Any) -> bool:
    return bool(tvm_ffi.structural_equal(a, b, map_free_vars=True))


@every_operator
def test_the_default_program_is_the_one_an_untuned_model_has(label: str) -> None:
    operator = space(label)
    realized = operator.realize(operator.default)
    assert realized is not None
    assert realized.program == operator.default
    untuned = tvm.IRModule({"main": schedule_untuned(function(label), resolve_target())})
    # Post-processing moves the start of a sum out of its loop, which an untuned model leaves to TVM's lowering.
    schedule = tvm.s_tir.Schedule(untuned)
    assert RewriteReductionBlock().apply(schedule)
    assert same(realized.module["main"].without_attr("global_symbol"), schedule.mod["main"])


@every_second_operator
def test_programs_go_through_traces_and_back(label: str) -> None:
    """And what is scheduled stays as it was: TVM changes a function that it takes for its own."""
    operator = space(label)
    rng = np.random.default_rng(0)
    drawn = [operator.draw(rng) for _ in range(2)] if operator.sketches else []
    for program in (*programs_of(operator), *drawn):
        realized = operator.realize(program)
        if realized is None:
            assert program in drawn, "a sketch's own example must be a schedule"
            continue
        d.check(operator.points(program), realized.program.decisions)
        mod, names = operator.in_form(program.sketch.form)
        schedule = tvm.s_tir.Schedule(mod)
        apply(program.sketch, realized.program.decisions, schedule, names)
        again_read = read_trace(schedule.trace, names, program.sketch.form)
        assert again_read == (program.sketch, realized.program.decisions)
        again = operator.realize(realized.program)
        assert again is not None
        assert again.program == realized.program
        assert again.text == realized.text
        tiles = [n for n, point in enumerate(operator.points(program)) if isinstance(point, Tile)]
        assert [realized.program.decisions[n] for n in tiles] == [program.decisions[n] for n in tiles]
    assert operator_key(operator.func) == operator.key
    assert same(operator.func, function(label))
    assert same(operator.mod["main"].without_attr("global_symbol"), function(label))


@every_operator
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_drawn_and_moved_is_legal(label: str, seed: int) -> None:
    operator, rng = space(label), np.random.default_rng(seed)
    if not operator.sketches:
        return
    program = operator.draw(rng)
    points = operator.points(program)
    d.check(points, program.decisions)
    for moved, _ in Posterior(points, [Centre(program.decisions, 1.0, "")]).sample(4, rng):
        d.check(points, moved)
        assert program.sketch.points(moved) == points


@every_operator
def test_an_illegal_program_is_refused_without_tvm(label: str) -> None:
    operator = space(label)
    for program in programs_of(operator):
        points = operator.points(program)
        spoiled = [(n, _spoil(point, program.decisions[n])) for n, point in enumerate(points)]
        for n, value in spoiled:
            decisions = (*program.decisions[:n], value, *program.decisions[n + 1 :])
            with pytest.raises(IllegalDecisionError, match=f"decision {n}:"):
                operator.check(replace(program, decisions=decisions))
        with pytest.raises(IllegalDecisionError, match="decisions are needed"):
            operator.check(replace(program, decisions=(*program.decisions, 0)))
    with pytest.raises(SketchError, match="has no sketch"):
        operator.check(Program(operator.key, Sketch('[["EnterPostproc",[],[],[]]]'), ()))


def _spoil(point: d.Point, value: d.Value) -> Any:
    if isinstance(point, Tile):
        assert isinstance(value, tuple)
        return (value[0] + 1, *value[1:])
    return 1000


def test_a_bug_is_not_taken_for_an_illegal_schedule() -> None:
    program = next(p for p in programs_of(space(labels()[0])) if p.decisions)
    with pytest.raises(ValueError, match="zip"):
        space(labels()[0]).realize(replace(program, decisions=program.decisions[:-1]))


def test_a_program_that_would_be_written_out_without_end_is_refused() -> None:
    found = 0
    for label in SPREAD:
        default = space(label).default
        points = space(label).points(default)
        largest = tuple(_innermost(point) if isinstance(point, Tile) else v for point, v in _pairs(points, default))
        if default.sketch.body_size(largest) > MOST_WRITTEN_OUT:
            found += 1
            with pytest.raises(IllegalDecisionError, match="copies of the innermost statement"):
                space(label).check(replace(default, decisions=largest))
        space(label).check(default)
    assert found


def _pairs(points: d.Points, program: Program) -> Any:
    return zip(points, program.decisions, strict=True)


def _innermost(tile: Tile) -> d.Value:
    """As much as may be in the two innermost levels."""
    last = max(f for f in d.divisors(tile.extent) if f <= tile.most_innermost)
    return (*[1] * (tile.parts - 2), tile.extent // last, last) if tile.parts > 1 else (tile.extent,)


def renamed(func: Any) -> Any:
    """The function with other names for its blocks and buffers, chosen to be each other's prefixes."""
    text = func.script()
    blocks = [name for name in dict.fromkeys(re.findall(r'T\.sblock\("(\w+)"\)', text)) if name != "root"]
    for number, name in enumerate(blocks):
        text = re.sub(rf'T\.sblock\("{name}"\)', f'T.sblock("£{number}")', text)
    buffers = re.findall(r"^ *(\w+) = T\.sblock_alloc_buffer", text, re.MULTILINE)
    for number, name in enumerate(buffers):
        text = re.sub(rf"\b{name}\b", f"buffer{'_1' * number}", text)
    for number in range(len(blocks)):
        text = text.replace(f'"£{number}"', f'"block{"_1" * number}"')
    return tvm.script.from_source(text)


@pytest.mark.parametrize("label", SPREAD[1::2])
def test_an_equal_operator_under_other_names_has_the_same_sketches(label: str) -> None:
    operator = space(label)
    other = renamed(operator.func)
    assert operator_key(other) == operator.key
    twin = Space(operator.key, other, operator.target)
    assert not set(twin.names) & set(operator.names)
    assert twin.default == operator.default
    for program in programs_of(operator):
        realized, expected = twin.realize(program), operator.realize(program)
        assert realized is not None
        assert expected is not None
        assert realized.program == expected.program
        assert same(realized.module, expected.module)


@some_operators
def test_the_stock_sketches_do_not_depend_on_names_or_on_the_seed(label: str) -> None:
    operator = space(label)
    twin = Space(operator.key, renamed(operator.func), operator.target, seed=7)
    assert {p.sketch for p in twin.stock} == {p.sketch for p in operator.stock}


@some_operators
def test_metaschedules_traces_of_our_programs(label: str) -> None:
    operator = space(label)
    module = tvm.ir.save_json(operator.mod)
    for program in programs_of(operator):
        decisions = d.to_json(program.decisions)
        if program.sketch.form:
            with pytest.raises(SketchError, match="MetaSchedule has no programs in the form"):
                to_metaschedule(module, program.sketch.text, decisions)
            continue
        written = to_metaschedule(module, program.sketch.text, decisions)
        assert from_metaschedule(module, written) == (program.sketch.text, decisions)


@some_operators
def test_from_scratch_a_random_stock_program_is_the_default(label: str) -> None:
    plain = space(label)
    scratch = StockSpace(plain.key, plain.func, plain.target)
    stock = {example.sketch for example in plain.stock if any(point.is_open for point in plain.points(example))}
    assert scratch.realize(scratch.default) is not None
    assert scratch.default == StockSpace(plain.key, plain.func, plain.target).default
    assert {example.sketch for example in scratch.sketches} <= stock | ({scratch.default.sketch} - stock)
    if stock:
        assert scratch.default.sketch in stock
        assert scratch.own == ()


def test_a_layout_too_large_for_tvm_is_refused() -> None:
    """Weights packed in pairs of rows: with tiles of three rows TVM's postprocessor multiplies beyond 32 bits."""
    a, w, k = te.placeholder((1, 1, 768)), te.placeholder((24, 384, 64)), te.reduce_axis((0, 768))
    packed = te.compute(
        (1, 1, 768), lambda b, i, j: te.sum(a[b, i, k] * w[j // 32, k // 2, j % 32 * 2 + k % 2], axis=k)
    )
    func = te.create_prim_func([a, w, packed]).with_attr({"global_symbol": "main", "layout_free_buffers": [1]})
    space = StockSpace("packed", func, resolve_target())
    rng = np.random.default_rng(0)
    drawn = [space.draw(rng) for _ in range(80)]
    assert 0 < sum(space.realize(program) is not None for program in drawn) < len(drawn)
