"""The code on the page does to an operator what the program did."""

from __future__ import annotations

import re

import pytest
import tvm_ffi
from tvm import s_tir

from slipstream.program.decisions import from_json
from slipstream.program.sketch import Sketch
from slipstream.program.trace import apply
from slipstream.report.schedule_code import fill_in, write_code
from tests.report.made_up import SKETCH
from tests.session.synthetic import operators, space


@pytest.mark.parametrize("number", range(6))
def test_it_runs_and_makes_the_same_module(number: int) -> None:
    """Every sketch of an operator of tiny_cnn, ours and MetaSchedule's, with the operator's own block names put in."""
    own = space(list(operators())[number])
    for example in own.sketches:
        code = fill_in(write_code(example.sketch), example.decisions)
        named = re.sub(r"'#(\d+)([^']*)'", lambda match: repr(own.names[int(match[1])] + match[2]), code)
        ours, theirs = (s_tir.Schedule(own.mod, seed=1, debug_mask=0, error_render_level="none") for _ in range(2))
        exec(named, {"sch": ours})
        apply(example.sketch, example.decisions, theirs, own.names)
        assert tvm_ffi.structural_equal(ours.mod, theirs.mod), code


def test_how_it_reads() -> None:
    code = write_code(Sketch(SKETCH))
    assert [d.label for d in code.decided] == ["loop 0 of block 0", "choice"]
    assert fill_in(code, from_json("[[4,2,16],2]")).splitlines() == [
        "# '#0' stands for the name of the operator's first block",
        "b0 = sch.get_sblock('#0', 'main')",
        "l1, l2 = sch.get_loops(b0)",
        "l6, l7, l8 = sch.split(l1, factors=[4, 2, 16])",
        "sch.annotate(b0, 'unroll', 64)",
        "sch.vectorize(l8)",
    ]
