"""One run of a session, from the spaces of its operators to their winners; `finish.py` compiles these."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.machine.target import Target
from slipstream.plugins import Context, Plugins
from slipstream.session.budget import budget_of
from slipstream.session.context import context_of
from slipstream.session.directory import SessionDirectory
from slipstream.session.events import OperatorProgress, Snapshot, Watcher, tell
from slipstream.session.history import count_answered
from slipstream.session.interrupt import Interrupt
from slipstream.session.models import SessionModel, are_several, title_of
from slipstream.session.result import UNFINISHED, TuningResult
from slipstream.session.settings import Settings
from slipstream.session.shapes import Calls
from slipstream.session.state_names import FAMILIES, PEAK_FLOPS, SHAPES, WEIGHTS, save
from slipstream.session.untuned_model import LEAST_CALLS, worth_comparing
from slipstream.store import Store

if TYPE_CHECKING:
    from slipstream.graph.operators import Operator

_FIXED_RESERVE = 3.0
_LARGEST_RESERVE = 0.25
# Of each model that verifying and timing it makes.
_CALLS_AT_END = 6
# The comparison with another runtime that a lock file has.
_LOCK_SECONDS = 7.0
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
        from slipstream.session.finish import Finish
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
        told = {"model": snapshot.model, "operators": len(operators), "settings": settings.to_json()}
        tell(self.watcher, "started", snapshot, **told)
        peak = self._peak_flops()
        context = self._context(peak, {o.key: reference_text(o.func) for o in found}, weights_read(found))
        made = self.plugins

        def find_families() -> Families:
            stored = stored_relatives(operators, self.store, record.hardware)
            priors = priors_for(settings, self.store.hardware(record.hardware), peak)
            families = Families(operators, settings.families, stored, priors)
            if families.nothing_fits:
                text = "the priors fit no operator of this model and are not used: they were made for other sketches"
                tell(self.watcher, "message", snapshot, text=text)
            save(self.store, record.id, FAMILIES, [{"similarity": dict(f.similarity)} for f in families.families])
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
        finish = Finish(
            session=session,
            directory=self.directory,
            before=record,
            models=self.models,
            calls=self._calls,
            target=self.target,
            watcher=self.watcher,
            lock=self.lock,
        )
        return finish.run(reason, winners)

    def _note_calls(self, snapshot: Snapshot, operators: list[Any]) -> None:
        """Count what each shape of each model calls; the snapshot and the store have it if it is not all the same."""
        if not are_several(self.models) and not self.models[0].model.variants:
            self._calls = [{"": {o.key: o.weight for o in operators}}]
            return
        self._calls = [one.calls() for one in self.models]
        snapshot.calls = {label: own for calls in self._calls for label, own in calls.items()}
        save(self.store, self.directory.session, SHAPES, snapshot.calls)
        if are_several(self.models):
            pairs = zip(self.models, self._calls, strict=True)
            snapshot.weights = {label: one.weight for one, calls in pairs for label in calls}
            save(self.store, self.directory.session, WEIGHTS, snapshot.weights)

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
        save(self.store, self.directory.session, PEAK_FLOPS, peak)
        return peak

    def _reserve(self, session: Any) -> float:
        """Seconds to leave for the end: settling, and about what building each operator's best program took. Where the
        untuned model will be compiled as well, operators of which the default program is the best are built once.

        Shares are of what this run may use: those of a long session would leave nothing of a short time to go on.
        """
        if self.budget.seconds is None:
            return 0.0
        own = max(0.0, self.budget.seconds - self.record.elapsed)
        fastest = [o.fastest for o in session.history.operators.values() if o.fastest is not None]
        builds = [trial.build_seconds for trial in fastest]
        again = [trial.build_seconds for trial in fastest if self.target.gpu or trial.origin != "default"]
        settling = _SETTLE_SHARE * own
        shapes = sum(len(one.model.shape_variants) for one in self.models)
        start, latency = session.snapshot.start_latency, session.snapshot.latency
        twice = worth_comparing(start, latency, self.budget.seconds)
        compiling = _FIXED_RESERVE * shapes + self._side_by_side(builds)
        compiling += twice * (_FIXED_RESERVE * shapes + self._side_by_side(again))
        calling = (_CALLS_AT_END + LEAST_CALLS * twice) * latency if math.isfinite(latency) else 0.0
        locking = 0.0 if self.lock is None else _LOCK_SECONDS * shapes
        return float(min(_LARGEST_RESERVE * own, compiling + settling + calling + locking))

    def _side_by_side(self, builds: Sequence[float]) -> float:
        """Seconds in which the processes that compile do all these."""
        return max([sum(builds) / self._builders, *builds], default=0.0)

    def _snapshot(self, rows: list[OperatorProgress]) -> Snapshot:
        answered = count_answered(self.store.trials(session=self.directory.session))
        elapsed = self.record.elapsed + time.monotonic() - self.began
        return Snapshot(
            session=self.directory.session,
            model=title_of(self.models),
            target=str(self.target),
            phase="prepare",
            elapsed=elapsed,
            remaining=self.budget.remaining(elapsed, answered, math.inf, math.inf),
            start_latency=math.inf,
            latency=math.inf,
            curve=[],
            operators=rows,
        )


def _measure_peak(target: Target) -> float:
    """FLOP/s of the device that is tuned for, in the type that is tuned for."""
    if target.gpu is not None:
        from slipstream.machine.cuda_speed import measure_in_child

        speed = measure_in_child()
        return speed.tensor_flops if target.is_half else speed.flops
    from slipstream.machine.speed import measure_peak_flops

    return measure_peak_flops(target, seconds=0.2)
