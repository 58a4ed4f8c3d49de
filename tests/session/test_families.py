"""What the operators of a family and those of earlier sessions lend."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slipstream
from slipstream.diffusion.distilled import ClassPriors, Priors, TunedOperator, TunedProgram
from slipstream.diffusion.signature import signature
from slipstream.program.decisions import to_json
from slipstream.program.space import Space
from slipstream.search.diffusion import Diffusion
from slipstream.search.types import Measured, Question
from slipstream.session.directory import SessionDirectory
from slipstream.session.families import Families, stored_relatives
from slipstream.session.history import History
from slipstream.session.operator_trials import OperatorTrials
from slipstream.session.records import is_default
from slipstream.store import ProgramRecord, SlotRecord, Store, TrialRecord
from slipstream.testing.measurer import SyntheticMeasurer
from tests.gpu import operators as gpu_operators
from tests.gpu import some_gpu
from tests.session.synthetic import HARDWARE, operators, space
from tests.store.samples import operator


def test_an_operator_of_an_earlier_session_lends_its_slow_and_failed_programs_too(tmp_path: Path) -> None:
    key = max(operators(), key=lambda key: operators()[key].flops)
    example = space(key).default
    rng = np.random.default_rng(0)
    drawn = list({space(key).draw_decisions(example, rng) for _ in range(400)} - {example.decisions})[:60]
    assert len(drawn) == 60, "more than an operator lends"
    with Store.open(tmp_path / "store.db") as store:
        hardware = store.add_hardware(HARDWARE)
        store.add_operators([operator("aa00")])
        store.add_sketch(example.sketch.digest, example.sketch.text)
        for number, decisions in enumerate(drawn):
            program = ProgramRecord(example.sketch.digest, to_json(decisions), "diffusion:keep")
            ended: Any = {"samples": (1e-3 * (1 + number),)} if number % 10 else {"failure": "crash"}
            store.append_trial(TrialRecord("aa00", hardware, program, **ended))
        lost = ProgramRecord(example.sketch.digest, to_json(example.decisions), "default")
        store.append_trial(TrialRecord("aa00", hardware, lost, failure="device lost"))
        trials = {key: OperatorTrials(operators()[key], space(key))}
        (relative,) = stored_relatives(trials, store, hardware)[key]
    seconds = [measured.seconds for measured in relative.measured]
    assert relative.operator == "aa00"
    assert relative.similarity == 1.0
    assert seconds == sorted(seconds)
    assert seconds[:20] == [1e-3 * (1 + n) for n in range(60) if n % 10][:20], "the fastest"
    assert max(s for s in seconds if math.isfinite(s)) > 50e-3, "slow ones"
    assert math.isinf(seconds[-1]), "failures"
    assert example.decisions not in {measured.program.decisions for measured in relative.measured}


@pytest.mark.parametrize("without", [[], ["short_firsts"], ["relatives"]])
def test_the_first_slot_is_short_once_a_relative_has_something_to_lend(without: list[str], tmp_path: Path) -> None:
    slipstream.tune(
        three_layers(tmp_path),
        tmp_path / "session",
        trials=60,
        scheduler="round_robin",
        priors=None,
        settings={"in_flight": 1, "without": without},
        measurer=lambda context: SyntheticMeasurer(lambda candidate: 1e-3 + 1e-5 * (len(candidate.module) % 97)),
    )
    directory = SessionDirectory.read(tmp_path / "session")
    with Store.open(directory.store, read_only=True) as store:
        slots = [slot for slot in store.slots(directory.session) if not is_default(slot)]
    firsts = {slot.operator: slot for slot in reversed(slots)}
    prior, *followers = sorted(firsts.values(), key=lambda slot: slot.slot)
    assert len(followers) == 2
    assert len(prior.programs) == 8
    assert not carried(prior), "the others have nothing but their default programs"
    for follower in followers:
        assert len(follower.programs) == (8 if without else 2)
        assert bool(carried(follower)) == (without != ["relatives"])


def carried(slot: SlotRecord) -> list[ProgramRecord]:
    return [program for program in slot.programs if program.origin in ("diffusion:keep", "diffusion:scale")]


def three_layers(folder: Path) -> str:
    """Matmuls of one family, each of another shape."""
    sizes = [48, 96, 64, 32]
    weights = [
        numpy_helper.from_array(np.ones((rows, columns), np.float32), f"w{n}")
        for n, (rows, columns) in enumerate(pairwise(sizes))
    ]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(3)]
    ends = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [32, sizes[n]]) for n in (0, 3)]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    path = folder / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return str(path)


def test_priors_of_a_gpu_are_found_although_its_default_programs_decide_nothing() -> None:
    one = max((o for o in gpu_operators() if "conv2d" in o.kinds), key=lambda o: o.flops)
    own = Space(one.key, one.func, some_gpu())
    assert not own.default.decisions
    example, rng = own.sketches[0], np.random.default_rng(0)
    name = signature(example.sketch)
    programs = [TunedProgram(name, own.draw_decisions(example, rng), 1e-3 * n) for n in range(1, 7)]
    tuned = TunedOperator("other", one.name, "float32", "a GPU", tuple(programs))
    known = ClassPriors({"a GPU": {}}, {name: example.sketch}, (tuned,))
    trials = {one.key: OperatorTrials(one, own)}
    families = Families(trials, "anchor", priors=lambda dtype: Priors(known, dtype))
    assert not families.nothing_fits
    assert families.has_lenders(one.key, History())
    default = [Measured(own.default, 2e-3)]
    asked = Question(own, 2, 0, default, lambda rows: np.zeros(len(rows)), priors=families.priors(one.key))
    first, second = Diffusion().propose(asked)
    assert first.program.origin == "diffusion:distilled"
    assert signature(first.program.sketch) == signature(second.program.sketch) == name
