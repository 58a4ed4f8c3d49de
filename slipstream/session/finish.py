"""The end of a run: the winners of its operators compiled into each model, which is verified and timed."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import BuildError, SlipstreamError, VerificationError, first_line
from slipstream.frontends import Model
from slipstream.machine.target import Target
from slipstream.program.decisions import to_json
from slipstream.program.space import Program
from slipstream.session.call_time import seconds_of_call
from slipstream.session.directory import SessionDirectory
from slipstream.session.events import OperatorProgress, Watcher, tell
from slipstream.session.models import SessionModel, are_several, errors_of
from slipstream.session.result import UNFINISHED, TunedModel, TunedOperator, TuningResult
from slipstream.session.shapes import Calls, ShapeLatency, modules_by_variant, shape_latencies
from slipstream.session.state_names import BANDWIDTH, WINNERS, save
from slipstream.session.untuned_model import times_of_untuned, worth_comparing
from slipstream.store import SessionRecord

if TYPE_CHECKING:
    from slipstream.artifact.manifest import Manifest
    from slipstream.session.loop import Session

    Write = Callable[..., Manifest]  # as `write_artifact` is called, with what depends on the model alone given


@dataclass(frozen=True)
class Finish:
    """What is done for `models` once `session` tunes no more. `before` is the session's record when this run began,
    `calls` are what each model's shapes call; `lock` is a file, of several models a folder of one each."""

    session: Session
    directory: SessionDirectory
    before: SessionRecord
    models: Sequence[SessionModel]
    calls: Sequence[Calls]
    target: Target
    watcher: Watcher
    lock: Path | None

    def run(self, reason: str, winners: dict[str, Program]) -> TuningResult:
        """Compile each model with the winners, verify and time it; one that fails does not keep the others from it."""
        session, snapshot = self.session, self.session.snapshot
        models, used, failed = list[TunedModel](), dict[str, Program](), list[SlipstreamError]()
        for one, calls in zip(self.models, self.calls, strict=True):
            own = {key: program for key, program in winners.items() if any(key in counts for counts in calls.values())}
            try:
                with errors_of(one.name):
                    models.append(self._complete(one, calls, own, reason))
            except SlipstreamError as error:
                failed.append(error)
            used |= {} if failed or models[-1].fallback else own
        if failed:
            raise failed[0]
        programs = {key: [p.sketch.digest, to_json(p.decisions)] for key, p in used.items()}
        save(session.store, self.before.id, WINNERS, programs)
        self._save_bandwidth()
        snapshot.phase, snapshot.doing, snapshot.current = "done", "", None
        result = TuningResult(
            directory=self.directory.path,
            model=snapshot.model,
            reason=reason,
            start_latency=snapshot.start_latency,
            latency=snapshot.latency,
            end_to_end=sum(one.weight * one.end_to_end for one in models),
            elapsed=session.elapsed,
            trials=session.history.trials,
            failures=dict(session.history.failures),
            operators=tuple(_tuned(row) for row in snapshot.operators if math.isfinite(row.best)),
            curve=tuple(snapshot.curve),
            split=dict(snapshot.split),
            snapshot=snapshot,
            shapes=tuple(row for one in models for row in one.shapes) if snapshot.calls else (),
            models=tuple(models),
        )
        status = "interrupted" if reason in UNFINISHED else "finished"
        session.store.update_session(self.before.id, status=status, elapsed=session.elapsed, result=result.to_json())
        session.note_time()
        tell(self.watcher, "finished", snapshot, **result.to_json())
        return result

    def _complete(self, one: SessionModel, calls: Calls, winners: dict[str, Program], reason: str) -> TunedModel:
        """A model compiled with its `winners`, verified, and each of its shapes timed."""
        snapshot = self.session.snapshot
        if one.model.finish is None:
            end_to_end, note = self._compile(one, calls, winners, reason)
        else:
            seconds, note = one.model.finish(winners)
            end_to_end = [seconds]
        if note:
            note = one.said(note)
            snapshot.fallback = "; ".join(filter(None, (snapshot.fallback, note)))
            tell(self.watcher, "message", snapshot, text=note)
        if self.lock is not None:
            self._write_lock(self.lock, one, calls, {} if note else winners)
        whole = dict(zip(calls, end_to_end, strict=True))
        rows = shape_latencies(calls, snapshot.operators, whole, dict.fromkeys(calls, one.weight))
        return TunedModel(
            name=one.name or one.model.name,
            directory=self.directory.artifact(one.name),
            weight=one.weight,
            start_latency=sum(row.start for row in rows),
            latency=sum(row.latency for row in rows),
            end_to_end=sum(end_to_end),
            fallback=note,
            shapes=rows,
        )

    def _compile(
        self, one: SessionModel, calls: Calls, winners: dict[str, Program], reason: str
    ) -> tuple[list[float], str]:
        """Seconds of a run of each shape of the compiled model, and why it has default programs if it has.

        Where tuning gained little, by the sum of operators, the untuned one is compiled too and stays if it is faster.
        """
        from slipstream.artifact.lock import programs_digest
        from slipstream.graph.build import keeping_objects
        from slipstream.program.scheduled import schedule_with

        session, note, started = self.session, "", time.monotonic()
        artifact, split, write = self.directory.artifact(one.name), session.snapshot.split, self._writer(one)
        rows = shape_latencies(calls, session.snapshot.operators)
        chosen = ((key, (p.sketch, to_json(p.decisions))) for key, p in winners.items())
        found = {"trials": session.history.trials, "sum_of_operators": sum(row.latency for row in rows)}
        with keeping_objects():
            try:
                tuned = {**found, "programs": programs_digest(chosen)}
                manifest = write(artifact, program=schedule_with(winners, self.target), tuned=tuned)
            except (VerificationError, BuildError) as error:
                what = "wrong" if isinstance(error, VerificationError) else "not to be built"
                note = f"the tuned model was {what} and the default one was compiled instead: {first_line(error)}"
                manifest = write(artifact)
            else:
                if all(program.origin == "default" for program in winners.values()):
                    self._note_gain(1.0)
                elif self._compares(rows, reason):
                    note = self._keep_faster(artifact, write)
        for text in manifest.verification.notes if manifest.verification else ():
            tell(self.watcher, "message", session.snapshot, text=one.said(text))
        split["compile"] = split.get("compile", 0.0) + time.monotonic() - started
        return _time_model(artifact, self.target.threads), note

    def _writer(self, one: SessionModel) -> Write:
        """Compiles the model into a folder, by default untuned, and verifies it."""
        from slipstream.artifact.write import FEW_THREADS, write_artifact
        from slipstream.graph.prepare import prepare_parts

        snapshot, modules = self.session.snapshot, modules_by_variant(one.model, one.prepared)

        def prepared(variant: Model, exact_functions: bool) -> Any:
            exact = exact_functions and prepare_parts(variant, self.target, exact_functions=True)[0]
            return exact or modules[variant.inputs]

        def write(
            output: Path, *, program: Any = None, tuned: Mapping[str, Any] | None = None, called: str = ""
        ) -> Any:
            def stage(name: str) -> None:
                snapshot.phase = "verify" if name == "verify" else "compile"
                snapshot.doing = one.said(called + name)
                self.session.note_time()
                tell(self.watcher, "phase", snapshot, phase=snapshot.phase, stage=name)

            return write_artifact(
                one.model,
                prepared,
                self.target,
                output,
                program=program,
                threads=self.target.threads,
                input_data=one.input_data,
                tuned=dict(tuned or {}),
                pad=one.pad,
                choose_threads=not self._is_remote and self.target.threads > FEW_THREADS,
                stage=stage,
            )

        return write

    @property
    def _is_remote(self) -> bool:
        return any(self.before.options.get("rpc") or ())

    def _compares(self, rows: Sequence[ShapeLatency], reason: str) -> bool:
        """Whether the untuned model is compiled as well, because the tuned one may be slower."""
        if reason in UNFINISHED or self._is_remote:
            return False
        seconds = self.session.budget.seconds
        total = self.session.elapsed if seconds is None else seconds
        start, latency = sum(row.start for row in rows), sum(row.latency for row in rows)
        return worth_comparing(start, latency, total)

    def _keep_faster(self, artifact: Path, write: Write) -> str:
        """Put the untuned model in the place of a tuned one that is slower; why, if so."""
        from slipstream.artifact.directory import replace_directory

        untuned = artifact.with_name(f".{artifact.name}-untuned")
        try:
            write(untuned, called="untuned model: ")
            ratio, interval = times_of_untuned(artifact, untuned, self.target.threads)
            if interval.low <= 1:
                self._note_gain(1 / ratio)
                return ""
            with replace_directory(artifact) as staging:
                shutil.copytree(untuned, staging, dirs_exist_ok=True)
            return f"the tuned model took {ratio:.2f} times as long as the untuned one, called in turns, which is kept"
        except (VerificationError, BuildError):
            return ""  # There is nothing that the tuned model could be slower than.
        finally:
            shutil.rmtree(untuned, ignore_errors=True)

    def _note_gain(self, gain: float) -> None:
        """How many times as fast as untuned the model is; of several models there is no single answer."""
        self.session.snapshot.whole_gain = None if are_several(self.models) else gain

    def _write_lock(self, lock: Path, one: SessionModel, calls: Calls, programs: Mapping[str, Program]) -> None:
        """Record what was compiled, and how fast that is next to another runtime."""
        from slipstream.artifact.lock import Lock, lock_of, locked_operators
        from slipstream.artifact.manifest import Manifest
        from slipstream.artifact.side_by_side import time_for_lock

        snapshot = self.session.snapshot
        snapshot.doing = one.said("timing it for the lock file")
        self.session.note_time()
        tell(self.watcher, "phase", snapshot, phase=snapshot.phase, stage="lock")
        artifact = self.directory.artifact(one.name)
        latency, note = time_for_lock(artifact)
        counts = {r.key: sum(own.get(r.key, 0) for own in calls.values()) for r in snapshot.operators}
        rows = [
            (r.key, r.name, counts[r.key], r.best if math.isfinite(r.best) else None)
            for r in snapshot.operators
            if counts[r.key]
        ]
        written = Lock.of(Manifest.read(artifact), self.target, locked_operators(rows, programs), latency)
        written.write(lock_of(lock, one.name))
        if note:
            tell(self.watcher, "message", snapshot, text=one.said(note))

    def _save_bandwidth(self) -> None:
        """For the report's roofline; once in a session, and at its end, when nothing is being timed."""
        from slipstream.machine.speed import measure_bandwidth

        store = self.session.store
        here = store.hardware(self.before.hardware).get("kind") == "cpu" and not self._is_remote
        if here and store.state(self.before.id, BANDWIDTH) is None:
            save(store, self.before.id, BANDWIDTH, measure_bandwidth(self.target, seconds=0.1))


def _tuned(row: OperatorProgress) -> TunedOperator:
    return TunedOperator(row.name, row.weight, row.start, row.best, row.trials)


def _time_model(directory: Path, threads: int) -> list[float]:
    """Seconds of one run of each shape of the compiled model."""
    from slipstream.artifact.loaded import example_inputs, load

    model = load(directory, threads=threads)
    return [seconds_of_call(model.on_device(example_inputs(directory, own))) for own in model.manifest.single_shapes]
