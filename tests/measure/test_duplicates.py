"""Which programs are run once for several."""

from __future__ import annotations

from slipstream.measure.duplicates import Duplicates
from slipstream.measure.trial import Trial
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement


def test_programs_that_become_the_same_code_are_run_once() -> None:
    first, same, again, later = (Candidate("add", module, str(n)) for n, module in enumerate("abbb"))
    duplicates = Duplicates()
    trial, twin = duplicates.admit(first), duplicates.admit(same)
    assert isinstance(trial, Trial)
    assert isinstance(twin, Trial)
    assert duplicates.admit(again) is None
    assert duplicates.lowered(trial, "f") is None
    assert duplicates.lowered(twin, "f") is None
    assert (trial.is_duplicate, twin.is_duplicate) == (False, True)
    results = list(duplicates.finish(trial, Measurement(first, (1.0,))))
    result = duplicates.admit(later)
    assert isinstance(result, Measurement)
    assert [(m.program.label, m.samples, m.duplicate) for m in [*results, result]] == [
        ("0", (1.0,), False),
        ("1", (1.0,), True),
        ("2", (1.0,), True),
        ("3", (1.0,), True),
    ]


def test_a_program_lost_with_its_server_is_tried_again_and_answers_its_duplicates() -> None:
    program, same = (Candidate("add", "a", label) for label in ("first", "second"))
    duplicates = Duplicates()
    trial = duplicates.admit(program)
    assert isinstance(trial, Trial)
    duplicates.lowered(trial, "f")
    again = duplicates.again(trial)
    assert duplicates.admit(same) is None
    duplicates.lowered(again, "f")
    assert not again.is_duplicate
    assert [m.program.label for m in duplicates.finish(again, Measurement(program, (1.0,)))] == ["first", "second"]


def test_a_lost_device_is_not_remembered_as_the_result_of_a_program() -> None:
    program = Candidate("add", "a")
    duplicates = Duplicates()
    trial = duplicates.admit(program)
    assert isinstance(trial, Trial)
    duplicates.lowered(trial, "f")
    lost = Measurement(program, failure=Failure(FailureKind.DEVICE_LOST, "away"))
    assert list(duplicates.finish(trial, lost)) == [lost]
    assert isinstance(duplicates.admit(program), Trial)
