"""One run of a session, from the spaces of its operators to a compiled, verified model."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipstream.errors import BuildError, VerificationError
from slipstream.frontends import Model
from slipstream.machine.target import Target
from slipstream.plugins import Context, Plugins
from slipstream.program.decisions import to_json
from slipstream.session.budget import Budget
from slipstream.session.directory import SessionDirectory
from slipstream.session.events import Event, OperatorProgress, Snapshot, Watcher
from slipstream.session.interrupt import Interrupt
from slipstream.session.result import TunedOperator, TuningResult
from slipstream.session.settings import Settings
from slipstream.session.state_names import BANDWIDTH, FAMILIES, PEAK_FLOPS, WINNERS
from slipstream.store import Store

_END_TO_END_SECONDS = 1.5
_FIXED_RESERVE = 3.0
_LARGEST_RESERVE = 0.25
_SETTLE_SHARE = 0.1


@dataclass
class Work:
    """One run of a session, from spaces to the artifact."""

    directory: SessionDirectory
    store: Store
    model: Model
    prepared: Any
    target: Target
    settings: Settings
    budget: Budget
    watcher: Watcher
    began: float
    elapsed_before: float
    plugins: Plugins
    rpc: str | None = None
    rpc_key: str | None = None

    def run(self) -> TuningResult:
        from slipstream.graph.operators import extract_operators
        from slipstream.measure import reference_text
        from slipstream.program.space import Space, StockSpace
        from slipstream.session.families import Kinship
        from slipstream.session.history import make_tracks
        from slipstream.session.loop import Session
        from slipstream.session.operator_trials import Room
        from slipstream.session.winners import best_programs, settle_near_ties

        settings = self.settings
        operators = {o.key: o for o in extract_operators(self.prepared)}
        space = StockSpace if "own_sketches" in settings.without else Space
        rooms = {key: Room(o, space(key, o.func, self.target)) for key, o in operators.items()}
        kinship = Kinship(rooms, settings.families)
        tracks = make_tracks(
            {k: o.weight for k, o in operators.items()},
            {k: o.name for k, o in operators.items()},
            {k: o.flops for k, o in operators.items()},
            {key: kinship.similar(key) for key in rooms},
        )
        record = self.store.session(self.directory.session)
        snapshot = self._snapshot([track.row for track in tracks.by_key.values()])
        self._tell("started", snapshot, model=self.model.name, operators=len(operators), settings=settings.to_json())
        peak = self._peak_flops()
        self._keep(FAMILIES, [{"prior": f.prior, "similarity": dict(f.similarity)} for f in kinship.families])
        references = {key: reference_text(o.func) for key, o in operators.items()}
        context = self._context(peak, references)
        made = self.plugins
        with Interrupt() as interrupt, contextlib.closing(made.measurer.make(context)) as measurer:
            kinship.find_elders(self.store, record.hardware)
            session = Session(
                store=self.store,
                session=record.id,
                hardware=record.hardware,
                rooms=rooms,
                kinship=kinship,
                tracks=tracks,
                measurer=measurer,
                scheduler=made.scheduler.make(context, **settings.scheduler_options()),
                search=made.search.make(context),
                cost=made.cost.make(replace(context, threads=1)),
                settings=settings,
                budget=self.budget,
                snapshot=snapshot,
                watcher=self.watcher,
                stop=interrupt.asked,
                elapsed=self.elapsed_before + time.monotonic() - self.began,
            )
            session.reserve = self._reserve(session)
            reason = session.run()
            self.store.update_session(record.id, elapsed=session.elapsed, status="interrupted")
            winners = best_programs(session)
            interrupted = reason == "interrupted"
            if not interrupted:
                session.phase("settle")
            settle_near_ties(session, measurer, winners, 0.0 if interrupted else _SETTLE_SHARE * session.elapsed)
        return self._finish(session, reason, winners)

    def _context(self, peak_flops: float, references: Mapping[str, str]) -> Context:
        """What the session's parts are made from."""
        settings = self.settings
        return Context(
            seed=settings.seed,
            slot_trials=settings.slot_trials,
            peak_flops=peak_flops,
            threads=1 if settings.deterministic else self.target.threads,
            without=settings.without,
            population=settings.population,
            generations=settings.generations,
            target=self.target,
            references=references,
            rpc=self.rpc,
            rpc_key=self.rpc_key,
        )

    def _peak_flops(self) -> float:
        """Measured once in a session: what a scheduler decides must not change when the session is resumed."""
        saved = self.store.state(self.directory.session, PEAK_FLOPS)
        if saved is not None:
            return float(saved[1])
        peak = _measure_peak(self.target)
        self.store.put_state(self.directory.session, PEAK_FLOPS, 0, repr(peak).encode())
        return peak

    def _keep_bandwidth(self) -> None:
        """For the report's roofline; once in a session, and at its end, when nothing is being timed."""
        from slipstream.machine.cpu import measure_bandwidth

        record = self.store.session(self.directory.session)
        here = self.store.hardware(record.hardware).get("kind") == "cpu" and not any(record.options.get("rpc") or ())
        if here and self.store.state(self.directory.session, BANDWIDTH) is None:
            self._keep(BANDWIDTH, measure_bandwidth(self.target, seconds=0.1))

    def _keep(self, name: str, value: Any) -> None:
        """Write down something that only those who look at the session later will ask for."""
        self.store.put_state(self.directory.session, name, 0, json.dumps(value).encode())

    def _reserve(self, session: Any) -> Callable[[], float]:
        """Seconds to keep for the end: settling, and about what building each operator's best program took."""

        def reserve() -> float:
            if self.budget.seconds is None:
                return 0.0
            builds = sum(t.best.build_seconds for t in session.tracks.by_key.values() if t.best is not None)
            settling = _SETTLE_SHARE * self.budget.seconds
            return float(min(_LARGEST_RESERVE * self.budget.seconds, _FIXED_RESERVE + builds + settling))

        return reserve

    def _finish(self, session: Any, reason: str, winners: dict[str, Any]) -> TuningResult:
        """Compile the winners, verify, and time the whole model."""
        snapshot = session.snapshot
        end_to_end, note = self._compile(session, winners)
        used = {} if note else winners
        self._keep(WINNERS, {key: [p.sketch.digest, to_json(p.decisions)] for key, p in used.items()})
        self._keep_bandwidth()
        if note:
            self._tell("message", snapshot, text=note)
        snapshot.phase, snapshot.doing, snapshot.current = "done", "", None
        result = TuningResult(
            directory=self.directory.path,
            model=self.model.name,
            reason=reason,
            start_latency=snapshot.start_latency,
            latency=snapshot.latency,
            end_to_end=end_to_end,
            elapsed=session.elapsed,
            trials=session.tracks.trials,
            failures=dict(session.tracks.failures),
            operators=tuple(_tuned(row) for row in snapshot.operators if math.isfinite(row.best)),
            curve=tuple(snapshot.curve),
            split=dict(snapshot.split),
            snapshot=snapshot,
        )
        status = "interrupted" if reason == "interrupted" else "finished"
        self.store.update_session(
            self.directory.session, status=status, elapsed=session.elapsed, result=result.to_json()
        )
        snapshot.elapsed = session.elapsed
        self._tell("finished", snapshot, **result.to_json())
        return result

    def _compile(self, session: Any, winners: dict[str, Any]) -> tuple[float, str]:
        from slipstream.artifact.compile import write_artifact
        from slipstream.session.winners import schedule_with

        def stage(name: str) -> None:
            session.snapshot.phase = "verify" if name == "verify" else "compile"
            session.snapshot.doing = name
            session.snapshot.elapsed = session.elapsed
            self._tell("phase", session.snapshot, phase=session.snapshot.phase, stage=name)

        tuned = {"trials": session.tracks.trials, "sum_of_operators": session.snapshot.latency}
        note, started = "", time.monotonic()

        def write(program: Any) -> None:
            write_artifact(
                self.model,
                lambda: self.prepared,
                self.target,
                self.directory.model,
                program=program,
                threads=self.target.threads,
                tuned=tuned,
                stage=stage,
            )

        try:
            write(schedule_with(winners, self.target))
        except (VerificationError, BuildError) as error:
            what = "wrong" if isinstance(error, VerificationError) else "not to be built"
            note = f"the tuned model was {what} and the default one was compiled instead: {str(error).splitlines()[0]}"
            write(None)
        session.snapshot.split["compile"] = time.monotonic() - started
        return _time_model(self.directory.model, self.target.threads), note

    def _snapshot(self, rows: list[OperatorProgress]) -> Snapshot:
        measured = sum(1 for _ in self.store.trials(session=self.directory.session))
        return Snapshot(
            session=self.directory.session,
            model=self.model.name,
            target=str(self.target),
            phase="prepare",
            elapsed=self.elapsed_before + time.monotonic() - self.began,
            remaining=self.budget.remaining(self.elapsed_before, measured, math.inf, math.inf),
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
    from slipstream.machine.cpu import measure_peak_flops

    return measure_peak_flops(target, seconds=0.2)


def _time_model(directory: Path, threads: int) -> float:
    """Seconds of one run of the compiled model: the median over a second or two."""
    import numpy as np

    from slipstream.artifact.loaded import load
    from slipstream.frontends.inputs import random_inputs
    from slipstream.statistics import median

    model = load(directory, threads=threads)
    feed = random_inputs(model.inputs, np.random.default_rng(0))
    run = model.on_device(feed)
    samples: list[float] = []
    deadline = time.monotonic() + _END_TO_END_SECONDS
    while len(samples) < 5 or time.monotonic() < deadline:
        started = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started)
    return median(samples[1:])
