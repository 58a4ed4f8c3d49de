"""Which programs are the same: equal text is recognised before building, equal lowered code before generating."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slipstream.measure.trial import Stage, Trial
from slipstream.measure.types import Candidate, FailureKind, Measurement


class Duplicates:
    """Results and trials under way, by the text and by the lowered code of their programs."""

    def __init__(self) -> None:
        self._found: dict[str, Measurement | Trial] = {}

    def admit(self, program: Candidate) -> Trial | Measurement | None:
        """A new trial; or the result, if the same text has one; None if it gets that of a trial under way."""
        found = self._found.get(program.digest)
        if isinstance(found, Measurement):
            return replace(found, program=program, duplicate=True)
        if found is not None:
            found.duplicates.append(program)
            return None
        trial = self._found[program.digest] = Trial(program)
        return trial

    def lowered(self, trial: Trial, fingerprint: str) -> Measurement | None:
        """Note the code of a trial. If another has the same, the result; or the trial becomes that one's duplicate."""
        trial.fingerprint = f"{trial.operator}:{fingerprint}"
        same = self._found.setdefault(trial.fingerprint, trial)
        if same is trial:
            return None
        if isinstance(same, Measurement):
            return replace(same, program=trial.program, duplicate=True)
        same.duplicates += [trial.program, *trial.duplicates]
        self._found[trial.program.digest] = same
        trial.stage = Stage.DUPLICATE
        return None

    def finish(self, trial: Trial, measurement: Measurement) -> Iterator[Measurement]:
        """Remember a result: its measurement, and one for each duplicate. That a device was lost says nothing about
        the program and is forgotten."""
        is_result = measurement.failure is None or measurement.failure.kind is not FailureKind.DEVICE_LOST
        if is_result:
            digests = [program.digest for program in (trial.program, *trial.duplicates)]
            keys = [*digests, trial.fingerprint] if trial.fingerprint else digests
            self._found.update((key, without_module(measurement)) for key in keys)
        else:
            self.forget(trial)
        trial.stage = Stage.DONE
        yield measurement
        for program in trial.duplicates:
            yield replace(measurement, program=program, duplicate=True)

    def again(self, trial: Trial) -> Trial:
        """A new trial of the same program, in place of one that was under way in a lost server."""
        self.forget(trial)
        again = Trial(trial.program, attempts=trial.attempts, duplicates=trial.duplicates)
        self._found.update((program.digest, again) for program in (trial.program, *trial.duplicates))
        trial.stage = Stage.DONE
        return again

    def forget(self, trial: Trial) -> None:
        """Drop a trial that ended without a result, so that no later program waits for it."""
        for key in (trial.fingerprint, *(program.digest for program in (trial.program, *trial.duplicates))):
            if self._found.get(key) is trial:
                del self._found[key]


def without_module(measurement: Measurement) -> Measurement:
    """What is remembered of thousands of programs must not hold their text."""
    return replace(measurement, program=replace(measurement.program, module=""))
