"""What operators of earlier sessions lend."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.program.decisions import to_json
from slipstream.session.families import stored_relatives
from slipstream.session.operator_trials import OperatorTrials
from slipstream.store import ProgramRecord, Store, TrialRecord
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
