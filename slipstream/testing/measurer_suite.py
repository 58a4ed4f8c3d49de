"""What every measurer must do, as tests that anybody's measurer can run.

    class TestMine(MeasurerSuite):
        def make(self, context):
            return MyMeasurer(context.target, context.references)

pytest collects the subclass and runs all of it on a small matrix product; nothing here needs pytest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

from slipstream.machine.target import resolve_target
from slipstream.measure.types import Candidate, FailureKind, Measurer
from slipstream.plugins import Context
from slipstream.testing.operators import references, scheduled

_MOST_AHEAD = 500


class MeasurerSuite:
    """Subclass it and say how the measurer is made.

    `runs_programs`: it builds and runs them, so that broken and wrong ones fail; one that simulates says False.
    `takes_none`: it asks again where a session with several slots at a time has no program yet.
    """

    runs_programs = True
    takes_none = True

    def make(self, context: Context) -> Measurer:
        """A new measurer for `context.target` and the operators in `context.references`."""
        raise NotImplementedError

    def test_there_is_one_measurement_for_every_program(self) -> None:
        programs = [scheduled(4), scheduled(16), scheduled(4, "the first again")]
        with self._made() as measurer:
            found = {m.program.label: m for m in measurer.measure(programs)}
            assert list(measurer.measure([])) == []
        assert {label: m.program for label, m in found.items()} == {program.label: program for program in programs}
        for label, measurement in found.items():
            assert measurement.failure is None, f"{label}: {measurement.failure}"
            assert measurement.samples
            assert all(0 < sample < math.inf for sample in measurement.samples)

    def test_results_stream_and_programs_are_taken_as_needed(self) -> None:
        taken = 0

        def endless() -> Iterator[Candidate]:
            nonlocal taken
            while True:
                taken += 1
                assert taken < _MOST_AHEAD, "programs are taken that nobody waits for"
                yield scheduled((2, 4, 8, 16)[taken % 4], str(taken))

        with self._made() as measurer:
            stream = measurer.measure(endless())
            next(stream)
            # A session that is interrupted stops listening, and may measure again later.
            close = getattr(stream, "close", None)
            if close is not None:
                close()
            assert [m.program.label for m in measurer.measure([scheduled(32, "after")])] == ["after"]

    def test_broken_and_wrong_programs_are_failures_and_the_next_is_measured(self) -> None:
        if not self.runs_programs:
            return
        programs = [Candidate("matmul", "this is no module", "broken"), scheduled(4, "wrong", wrong=True), scheduled(8)]
        with self._made() as measurer:
            found = {m.program.label: m for m in measurer.measure(programs)}
        broken, wrong = found["broken"], found["wrong"]
        assert broken.failure is not None
        assert wrong.failure is not None
        assert wrong.failure.kind is FailureKind.WRONG_RESULT
        for failed in (broken, wrong):
            assert failed.median == math.inf
            assert failed.failure is not None
            assert failed.failure.message
        assert found["tile 8"].failure is None

    def test_none_means_that_there_is_no_program_yet(self) -> None:
        if not self.takes_none:
            return
        with self._made() as measurer:
            found = [m.program.label for m in measurer.measure([scheduled(4, "a"), None, None, scheduled(8, "b")])]
        assert sorted(found) == ["a", "b"]

    def test_closing_twice_is_no_trouble(self) -> None:
        with self._made() as measurer:
            measurer.close()

    def _made(self) -> contextlib.closing[Measurer]:
        return contextlib.closing(self.make(Context(target=resolve_target(), references=references())))
