"""One run of a session, from the spaces of its operators to compiled, verified models."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import BuildError, SlipstreamError, VerificationError
from slipstream.frontends import Model
from slipstream.machine.target import Target
from slipstream.plugins import Context, Plugins
from slipstream.program.decisions import to_json
from slipstream.session.budget import budget_of
from slipstream.session.call_time import seconds_of_call
from slipstream.session.context import context_of
from slipstream.session.directory import SessionDirectory
from slipstream.session.events import Event, OperatorProgress, Snapshot, Watcher
from slipstream.session.history import count_answered
from slipstream.session.interrupt import Interrupt
from slipstream.session.models import SessionModel, errors_of, title_of
from slipstream.session.result import UNFINISHED, TunedModel, TunedOperator, TuningResult
from slipstream.session.settings import Settings
from slipstream.session.shapes import Calls, ShapeLatency, modules_by_variant, shape_latencies
from slipstream.session.state_names import BANDWIDTH, FAMILIES, PEAK_FLOPS, SHAPES, WEIGHTS, WINNERS
from slipstream.session.untuned_model import times_of_untuned, worth_comparing
from slipstream.store import Store

if TYPE_CHECKING:
    from slipstream.artifact.manifest import Manifest
    from slipstream.graph.operators import Operator

_FIXED_RESERVE = 3.0
_LARGEST_RESERVE = 0.25
_SETTLE_SHARE = 0.1


@dataclass
class SessionRun:
    """One run of a session, from spaces to the artifacts: what a new and a resumed one have in common is in the store.

    `lock` is a file, of several models a folder of one each.
    """

    directory: SessionDirectory
    store: Store
    models: tuple[SessionModel, ...]
    operators: list[Operator]
    target: Target
    plugins: Plugins
    watcher: Watcher
    began: float
    lock: Path | None = None
    fleet: str | None = None
    _calls: list[Calls] = field(init=False)  # of each model
    _builders: int = field(init=False)  # processes that compile the tuned model

    def __post_init__(self) -> None:
        self.record = self.store.session(self.directory.session)
        self.settings = Settings.from_json(self.record.options["settings"])
        self.budget = budget_of(self.store, self.record)
        self.rpc, self.rpc_key = self.record.options.get("rpc", (None, None))

    def run(self) -> TuningResult:
        from slipstream.graph.build import build_processes
        from slipstream.graph.operators import weights_read
        from slipstream.measure import reference_text
        from slipstream.program.space import Space, StockSpace
        from slipstream.session.families import Families, stored_relatives
        from slipstream.session.loop import Session
        from slipstream.session.operator_trials import OperatorTrials
        from slipstream.session.priors import priors_for
        from slipstream.session.winners import best_programs, settle_near_ties

        settings, self._builders = self.settings, build_processes() if self.target.gpu is None else 1
        make_space = Space if settings.parts.own_sketches else StockSpace
        found = self.operators
        operators = {o.key: OperatorTrials(o, make_space(o.key, o.func, self.target)) for o in found}
        record = self.record
        snapshot = self._snapshot([OperatorProgress(o.key, o.name, o.weight, math.inf, math.inf) for o in found])
        self._note_calls(snapshot, found)
        self._tell("started", snapshot, model=snapshot.model, operators=len(operators), settings=settings.to_json())
        peak = self._peak_flops()
        context = self._context(peak, {o.key: reference_text(o.func) for o in found}, weights_read(found))
        made = self.plugins

        def find_families() -> Families:
            stored = stored_relatives(operators, self.store, record.hardware)
            priors = priors_for(settings, self.store.hardware(record.hardware), peak)
            families = Families(operators, settings.families, stored, priors)
            if families.nothing_fits:
                text = "the priors fit no operator of this model and are not used: they were made for other sketches"
                self._tell("message", snapshot, text=text)
            self._save(FAMILIES, [{"similarity": dict(f.similarity)} for f in families.families])
            return families

        with Interrupt() as interrupt, contextlib.closing(made.measurer.make(context)) as measurer:
            session = Session(
                store=self.store,
                session=record.id,
                hardware=record.hardware,
                operators=operators,
                find_families=find_families,
                measurer=measurer,
                scheduler=made.scheduler.make(context, **settings.scheduler_options()),
                search=made.search.make(context),
                cost=made.cost.make(replace(context, threads=1)),
                settings=settings,
                budget=self.budget,
                snapshot=snapshot,
                watcher=self.watcher,
                stop=interrupt.asked,
                elapsed=self.record.elapsed + time.monotonic() - self.began,
                reserve=self._reserve,
                peak_flops=peak,
            )
            reason = session.run()
            self.store.update_session(record.id, elapsed=session.elapsed, status="interrupted")
            winners = best_programs(session)
            if reason not in UNFINISHED:
                session.phase("settle")
            own = session.elapsed - record.elapsed
            seconds = 0.0 if reason in UNFINISHED else _SETTLE_SHARE * own
            settle_near_ties(session, measurer, winners, seconds, interrupt.asked)
        return self._finish(session, reason, winners)

    @property
    def several(self) -> bool:
        """Whether several models were asked for; a list of one counts."""
        return bool(self.models[0].name)

    def _note_calls(self, snapshot: Snapshot, operators: list[Any]) -> None:
        """Count what each shape of each model calls; the snapshot and the store have it if it is not all the same."""
        if not self.several and not self.models[0].model.variants:
            self._calls = [{"": {o.key: o.weight for o in operators}}]
            return
        self._calls = [one.calls() for one in self.models]
        snapshot.calls = {label: own for calls in self._calls for label, own in calls.items()}
        self._save(SHAPES, snapshot.calls)
        if self.several:
            pairs = zip(self.models, self._calls, strict=True)
            snapshot.weights = {label: one.weight for one, calls in pairs for label in calls}
            self._save(WEIGHTS, snapshot.weights)

    def _context(self, peak_flops: float, references: Mapping[str, str], model_weights: int) -> Context:
        """What the session's parts are made from."""
        return context_of(
            self.settings,
            peak_flops,
            threads=1 if self.settings.deterministic else self.target.threads,
            target=self.target,
            references=references,
            rpc=self.rpc,
            rpc_key=self.rpc_key,
            fleet=self.fleet,
            model_weights=model_weights,
        )

    def _peak_flops(self) -> float:
        """Measured once in a session: what a scheduler decides must not change when the session is resumed."""
        saved = self.store.state(self.directory.session, PEAK_FLOPS)
        if saved is not None:
            return float(saved[1])
        peak = _measure_peak(self.target)
        self.store.put_state(self.directory.session, PEAK_FLOPS, 0, repr(peak).encode())
        return peak

    def _save_bandwidth(self) -> None:
        """For the report's roofline; once in a session, and at its end, when nothing is being timed."""
        from slipstream.machine.speed import measure_bandwidth

        record = self.record
        here = self.store.hardware(record.hardware).get("kind") == "cpu" and not any(record.options.get("rpc") or ())
        if here and self.store.state(self.directory.session, BANDWIDTH) is None:
            self._save(BANDWIDTH, measure_bandwidth(self.target, seconds=0.1))

    def _save(self, name: str, value: Any) -> None:
        """Store something that only those who look at the session later will ask for."""
        self.store.put_state(self.directory.session, name, 0, json.dumps(value).encode())

    def _reserve(self, session: Any) -> float:
        """Seconds to leave for the end: settling, and about what building each operator's best program took, twice
        where the untuned model will be compiled as well.

        Shares are of what this run may use: those of a long session would leave nothing of a short time to go on.
        """
        if self.budget.seconds is None:
            return 0.0
        own = max(0.0, self.budget.seconds - self.record.elapsed)
        fastest = (operator.fastest for operator in session.history.operators.values())
        builds = sum(trial.build_seconds for trial in fastest if trial is not None)
        settling = _SETTLE_SHARE * own
        fixed = _FIXED_RESERVE * sum(len(one.model.shape_variants) for one in self.models)
        twice = worth_comparing(session.snapshot.start_latency, session.snapshot.latency, own)
        compiling = (1 + twice) * (fixed + builds / self._builders)
        return float(min(_LARGEST_RESERVE * own, compiling + settling))

    def _finish(self, session: Any, reason: str, winners: dict[str, Any]) -> TuningResult:
        """Compile each model with the winners, verify and time it; one that fails does not keep the others from it."""
        snapshot = session.snapshot
        models, used, failed = list[TunedModel](), dict[str, Any](), list[SlipstreamError]()
        for one, calls in zip(self.models, self._calls, strict=True):
            own = {key: program for key, program in winners.items() if any(key in counts for counts in calls.values())}
            try:
                with errors_of(one.name):
                    models.append(self._complete(session, one, calls, own, reason))
            except SlipstreamError as error:
                failed.append(error)
            used |= {} if failed or models[-1].fallback else own
        if failed:
            raise failed[0]
        self._save(WINNERS, {key: [p.sketch.digest, to_json(p.decisions)] for key, p in used.items()})
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
        self.store.update_session(
            self.directory.session, status=status, elapsed=session.elapsed, result=result.to_json()
        )
        snapshot.elapsed = session.elapsed
        self._tell("finished", snapshot, **result.to_json())
        return result

    def _complete(
        self, session: Any, one: SessionModel, calls: Calls, winners: dict[str, Any], reason: str
    ) -> TunedModel:
        """Compile a model with its `winners`, verify it and time each of its shapes."""
        snapshot = session.snapshot
        if one.model.finish is None:
            end_to_end, note = self._compile(session, one, calls, winners, reason)
        else:
            seconds, note = one.model.finish(winners)
            end_to_end = [seconds]
        if note:
            note = one.said(note)
            snapshot.fallback = "; ".join(filter(None, (snapshot.fallback, note)))
            self._tell("message", snapshot, text=note)
        if self.lock is not None:
            self._write_lock(session, one, calls, {} if note else winners)
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
        self, session: Any, one: SessionModel, calls: Calls, winners: dict[str, Any], reason: str
    ) -> tuple[list[float], str]:
        """Seconds of a run of each shape of the compiled model, and why it has default programs if it has.

        Where tuning gained little, by the sum of operators, the untuned one is compiled too and stays if it is faster.
        """
        from slipstream.artifact.lock import programs_digest
        from slipstream.artifact.write import FEW_THREADS, write_artifact
        from slipstream.graph.prepare import prepare_parts
        from slipstream.program.scheduled import schedule_with

        def stage(name: str, model: str = "") -> None:
            session.snapshot.phase = "verify" if name == "verify" else "compile"
            session.snapshot.doing = one.said(model + name)
            session.snapshot.elapsed = session.elapsed
            self._tell("phase", session.snapshot, phase=session.snapshot.phase, stage=name)

        note, started = "", time.monotonic()
        artifact, split = self.directory.artifact(one.name), session.snapshot.split
        modules = modules_by_variant(one.model, one.prepared)

        def prepared(variant: Model, exact_functions: bool) -> Any:
            exact = exact_functions and prepare_parts(variant, self.target, exact_functions=True)[0]
            return exact or modules[variant.inputs]

        def write(program: Any, tuned: dict[str, Any], output: Path = artifact, called: str = "") -> Manifest:
            return write_artifact(
                one.model,
                prepared,
                self.target,
                output,
                program=program,
                threads=self.target.threads,
                input_data=one.input_data,
                tuned=tuned,
                pad=one.pad,
                choose_threads=self.rpc is None and self.target.threads > FEW_THREADS,
                stage=partial(stage, model=called),
            )

        try:
            rows = shape_latencies(calls, session.snapshot.operators)
            found = {"trials": session.history.trials, "sum_of_operators": sum(row.latency for row in rows)}
            chosen = ((key, (p.sketch, to_json(p.decisions))) for key, p in winners.items())
            manifest = write(schedule_with(winners, self.target), {**found, "programs": programs_digest(chosen)})
        except (VerificationError, BuildError) as error:
            what = "wrong" if isinstance(error, VerificationError) else "not to be built"
            note = f"the tuned model was {what} and the default one was compiled instead: {str(error).splitlines()[0]}"
            manifest = write(None, {})
        else:
            if all(program.origin == "default" for program in winners.values()):
                session.snapshot.whole_gain = None if self.several else 1.0
            elif self._compares(session, rows, reason):
                compile_untuned = partial(write, None, {}, called="untuned model: ")
                note = self._keep_faster(session.snapshot, artifact, compile_untuned)
        for text in manifest.verification.notes if manifest.verification else ():
            self._tell("message", session.snapshot, text=one.said(text))
        split["compile"] = split.get("compile", 0.0) + time.monotonic() - started
        return _time_model(artifact, self.target.threads), note

    def _compares(self, session: Any, rows: Sequence[ShapeLatency], reason: str) -> bool:
        """Whether the untuned model is compiled as well, because the tuned one may be slower."""
        if reason in UNFINISHED or self.rpc is not None:
            return False
        total = session.elapsed if self.budget.seconds is None else self.budget.seconds
        start, latency = sum(row.start for row in rows), sum(row.latency for row in rows)
        return worth_comparing(start, latency, total - self.record.elapsed)

    def _keep_faster(self, snapshot: Snapshot, artifact: Path, compile_untuned: Callable[[Path], Manifest]) -> str:
        """Put the untuned model in the place of a tuned one that is slower; why, if so."""
        from slipstream.artifact.directory import replace_directory

        untuned = artifact.with_name(f".{artifact.name}-untuned")
        try:
            compile_untuned(untuned)
            ratio, interval = times_of_untuned(artifact, untuned, self.target.threads)
            if interval.low <= 1:
                snapshot.whole_gain = None if self.several else 1 / ratio
                return ""
            with replace_directory(artifact) as staging:
                shutil.copytree(untuned, staging, dirs_exist_ok=True)
            return f"the tuned model took {ratio:.2f} times as long as the untuned one, called in turns, which is kept"
        except (VerificationError, BuildError):
            return ""  # There is nothing that the tuned model could be slower than.
        finally:
            shutil.rmtree(untuned, ignore_errors=True)

    def _write_lock(self, session: Any, one: SessionModel, calls: Calls, programs: dict[str, Any]) -> None:
        """Record what was compiled, and how fast that is next to another runtime."""
        from slipstream.artifact.lock import Lock, lock_of, locked_operators
        from slipstream.artifact.manifest import Manifest
        from slipstream.artifact.side_by_side import time_for_lock

        assert self.lock is not None
        snapshot = session.snapshot
        snapshot.doing, snapshot.elapsed = one.said("timing it for the lock file"), session.elapsed
        self._tell("phase", snapshot, phase=snapshot.phase, stage="lock")
        artifact = self.directory.artifact(one.name)
        latency, note = time_for_lock(artifact)
        counts = {r.key: sum(own.get(r.key, 0) for own in calls.values()) for r in snapshot.operators}
        rows = [
            (r.key, r.name, counts[r.key], r.best if math.isfinite(r.best) else None)
            for r in snapshot.operators
            if counts[r.key]
        ]
        lock = Lock.of(Manifest.read(artifact), self.target, locked_operators(rows, programs), latency)
        lock.write(lock_of(self.lock, one.name))
        if note:
            self._tell("message", snapshot, text=one.said(note))

    def _snapshot(self, rows: list[OperatorProgress]) -> Snapshot:
        answered = count_answered(self.store.trials(session=self.directory.session))
        return Snapshot(
            session=self.directory.session,
            model=title_of(self.models),
            target=str(self.target),
            phase="prepare",
            elapsed=self.record.elapsed + time.monotonic() - self.began,
            remaining=self.budget.remaining(self.record.elapsed, answered, math.inf, math.inf),
            start_latency=math.inf,
            latency=math.inf,
            curve=[],
            operators=rows,
        )

    def _tell(self, kind: str, snapshot: Snapshot, **data: Any) -> None:
        self.watcher(Event(kind, snapshot.elapsed, data), snapshot)


def _tuned(row: OperatorProgress) -> TunedOperator:
    return TunedOperator(row.name, row.weight, row.start, row.best, row.trials)


def _measure_peak(target: Target) -> float:
    """FLOP/s of the device that is tuned for, in the type that is tuned for."""
    if target.gpu is not None:
        from slipstream.machine.cuda_speed import measure_in_child

        speed = measure_in_child()
        return speed.tensor_flops if target.is_half else speed.flops
    from slipstream.machine.speed import measure_peak_flops

    return measure_peak_flops(target, seconds=0.2)


def _time_model(directory: Path, threads: int) -> list[float]:
    """Seconds of one run of each shape of the compiled model."""
    from slipstream.artifact.loaded import example_inputs, load

    model = load(directory, threads=threads)
    return [seconds_of_call(model.on_device(example_inputs(directory, own))) for own in model.manifest.single_shapes]
