"""The loop: pick an operator, propose programs for it, measure them, learn, and again.

Whatever the loop decides follows from the store: what a slot is going to measure is written down before it is
measured, a trial before it counts, and every random number comes from the session's seed and the slot's number.
So a session that was killed goes on where it was, as if nothing had happened.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipstream.cost.types import CostModel, Example
from slipstream.measure.types import Candidate, Measurement, Measurer
from slipstream.program.space import Program, Realized
from slipstream.schedulers.types import OperatorState, Scheduler
from slipstream.search.types import Question, Search
from slipstream.session.budget import Budget
from slipstream.session.events import Event, Snapshot, Watcher
from slipstream.session.families import Kinship
from slipstream.session.history import Track, Tracks
from slipstream.session.in_flight import run_in_flight
from slipstream.session.operator_trials import Room
from slipstream.session.records import DEFAULTS, finite, is_default, record_of, slot_seed, trial_of
from slipstream.session.settings import Settings
from slipstream.session.stored_programs import StoredPrograms
from slipstream.store import SlotRecord, Store, TrialRecord

Clock = Callable[[], float]
_NOTHING_IMPROVES = "nothing improves any more"
_SAVE_SHARE = 0.05  # of the time between two savings of the cost model, what one may take


class Session:
    """One session on one store; `run` tunes until the budget is spent, nothing improves, or `stop` says so."""

    def __init__(
        self,
        *,
        store: Store,
        session: str,
        hardware: str,
        rooms: Mapping[str, Room],
        kinship: Kinship,
        tracks: Tracks,
        measurer: Measurer,
        scheduler: Scheduler,
        search: Search,
        cost: CostModel,
        settings: Settings,
        budget: Budget,
        snapshot: Snapshot,
        watcher: Watcher,
        stop: Callable[[], bool] = lambda: False,
        clock: Clock = time.monotonic,
        elapsed: float = 0.0,
    ) -> None:
        self.store, self.session, self.hardware = store, session, hardware
        self.rooms, self.kinship, self.tracks, self.measurer = rooms, kinship, tracks, measurer
        self.scheduler, self.search, self.cost = scheduler, search, cost
        self.settings, self.budget, self.snapshot = settings, budget, snapshot
        self._watcher, self._stop, self._clock = watcher, stop, clock
        self._began = clock() - elapsed
        self._next_slot = 0
        self._saved_at, self._save_seconds = clock(), 0.0
        self._programs = StoredPrograms(store)
        self._default_slots: dict[int, str] = {}
        self._with_defaults: set[str] = set()
        self._open: dict[tuple[int, int], Program] = {}
        self._measured: set[tuple[int, int]] = set()
        self.reserve: Callable[[], float] = lambda: 0.0

    # The way through

    def run(self) -> str:
        """Tune; the reason it ended, in words."""
        self.phase("defaults")
        unfinished = self._recall()
        self._measure_defaults([slot for slot in unfinished if is_default(slot)])
        self.phase("tune")
        for slot in unfinished:
            if not is_default(slot):
                self._go_on(slot)
        if self.settings.in_flight > 1:
            run_in_flight(self)
            return self.over() or _NOTHING_IMPROVES
        while (reason := self.over()) is None:
            picked = self.pick()
            if picked is None:
                return _NOTHING_IMPROVES
            self._slot(picked)
        return reason

    def pick(self, busy: Collection[str] = ()) -> str | None:
        """The operator that gets the next slot, none of the `busy` ones; None if there is none left to tune."""
        started = self._clock()
        states = [self._state(track) for track in self.tracks.by_key.values()]
        # The busy ones cannot be picked, but what they have reached tells something about their relatives.
        states = [replace(state, finished=True) if state.key in busy else state for state in states]
        picked = self.scheduler.pick(states, self._next_slot)
        self._spent("schedule", started)
        return picked

    def _state(self, track: Track) -> OperatorState:
        """An operator as the scheduler sees it, its place in the family included."""
        state = track.state(self.settings.patience_trials, self.settings.most_trials)
        if state.finished:
            return state
        without = self.settings.without
        followers = {} if "followers" in without else self.kinship.followers(track.key, self.tracks)
        news = 0.0 if "news" in without else self.kinship.news(track.key, self.tracks)
        return replace(state, followers=followers, news=news) if followers or news else state

    def over(self) -> str | None:
        if self._stop():
            return "interrupted"
        return self.budget.spent(self.elapsed + self.reserve(), self.tracks.trials, self.snapshot.latency)

    @property
    def elapsed(self) -> float:
        return self._clock() - self._began

    def _slot(self, key: str) -> None:
        """Give one slot to one operator."""
        slot, realized = self.propose(key)
        self._measure(slot, list(enumerate(realized)))
        if len(self._open) == 0:
            self.finish(slot, key, realized)

    def propose(self, key: str) -> tuple[int, list[Realized]]:
        """Open a slot for an operator: its number, and the programs it is going to measure."""
        slot, question = self.ask(key)
        started = self._clock()
        realized = self.search.propose(question)
        self.open(slot, key, realized, self._spent("search", started))
        return slot, realized

    def ask(self, key: str) -> tuple[int, Question]:
        """The number of an operator's next slot, and all that its search has to know."""
        room, slot = self.rooms[key], self._next_slot
        self.kinship.hear(key, self.tracks)
        self.snapshot.current = key
        self.snapshot.doing = "searching"
        self._tell("slot", operator=key, name=room.operator.name, slot=slot)
        seed = slot_seed(self.settings.seed, key, slot)
        relatives = self.kinship.relatives(key)
        return slot, Question(room.space, self.slot_size(), seed, room.known(), self.cost.score, relatives)

    def open(self, slot: int, key: str, realized: Sequence[Realized], searched: float) -> None:
        """Write down what the slot is going to measure, which took `searched` seconds to find."""
        self._begin(slot, key, [r.program for r in realized], searched, {})

    def slot_size(self) -> int:
        """As many trials as a slot has, or as are left."""
        size = self.settings.slot_trials
        if self.budget.trials is not None:
            size = min(size, self.budget.trials - self.tracks.trials - len(self._open))
        return size

    def _begin(self, slot: int, key: str, programs: Sequence[Program], searched: float, note: dict[str, Any]) -> None:
        for program in programs:
            self._programs.keep(program.sketch)
        started = self._clock()
        self.store.begin_slot(self.session, slot, key, [record_of(p) for p in programs], searched, note)
        self._spent("store", started)
        self.tracks.by_key[key].spend(searched)
        self._next_slot = slot + 1
        if note == DEFAULTS:
            self._default_slots[slot] = key
        self._open.update({(slot, position): program for position, program in enumerate(programs)})

    def finish(self, slot: int, key: str, realized: Sequence[Realized]) -> None:
        """Everything proposed has been measured: learn from it and close the slot."""
        started = self._clock()
        room, track = self.rooms[key], self.tracks.by_key[key]
        self._learn(room, realized)
        self._spent("train", started)
        track.end_slot(exhausted=not realized)
        gained = self._gain(track)
        started = self._clock()
        self.store.finish_slot(self.session, slot, {"best": finite(track.history[-1]), "elapsed": self.elapsed})
        self.store.update_session(self.session, elapsed=self.elapsed)
        self._save_cost(slot)
        self._spent("store", started)
        self.snapshot.current, self.snapshot.doing = None, ""
        self._tell(
            "slot_done",
            operator=key,
            name=room.operator.name,
            slot=slot,
            trials=len(realized),
            best=finite(track.history[-1]),
            gain=gained,
        )

    def _gain(self, track: Track) -> float:
        """What the slot took off the model's latency, in seconds."""
        ends = track.slot_ends
        before = track.history[ends[-2] if len(ends) > 1 else 0]
        gain = track.weight * (before - track.history[-1])
        return gain if math.isfinite(gain) else 0.0

    # Before tuning: the default programs, and the best that the store knows

    def _measure_defaults(self, begun: Sequence[SlotRecord]) -> None:
        """Measure every operator's default program, so that tuned is never slower than untuned.

        Slots that were `begun` before go on. All are closed together, in their order: what the cost model learns
        must not depend on when the session was interrupted.
        """
        waiting = [(slot.slot, slot.operator, self._realized(slot)) for slot in begun]
        known = set(self._default_slots.values())
        for key, room in self.rooms.items():
            if key in known:
                continue
            if self.over() is not None:
                break
            realized = [r for r in map(room.space.realize, self._known_before(room)) if r is not None]
            waiting.append((self._next_slot, key, list(enumerate(realized))))
            self._begin(self._next_slot, key, [r.program for r in realized], 0.0, DEFAULTS)
        programs = [(slot, n, realized) for slot, _, numbered in waiting for n, realized in numbered]
        self._open = {(slot, n): r.program for slot, n, r in programs if (slot, n) not in self._measured}
        self._stream(programs)
        if not self._open:
            for slot, key, numbered in waiting:
                self._close_defaults(slot, key, [realized for _, realized in numbered])
        self.snapshot.start_latency = self.tracks.start_latency
        self._latency_changed()

    def _close_defaults(self, slot: int, key: str, realized: Sequence[Realized]) -> None:
        room, track = self.rooms[key], self.tracks.by_key[key]
        self._learn(room, realized)
        self.store.finish_slot(self.session, slot, {"best": finite(track.history[-1]), "elapsed": self.elapsed})
        self._settle_default(track)

    def _settle_default(self, track: Track) -> None:
        """An operator that cannot be measured, or of which there is only one program, is not tuned."""
        self._with_defaults.add(track.key)
        room = self.rooms[track.key]
        if not math.isfinite(track.history[-1]):
            track.exhausted = True
            self._tell("message", text=f"{room.operator.name} cannot be measured and keeps its default program")
        elif not room.space.sketches:
            track.exhausted = True

    def _known_before(self, room: Room) -> list[Program]:
        """The default program and, from earlier sessions on this hardware, the best ones."""
        programs = [room.space.default]
        for trial in self.store.top(room.operator.key, self.hardware, 2):
            program = self._programs.get(room.operator.key, trial.program)
            if program is not None and program.identity != programs[0].identity:
                programs.append(program)
        return programs

    # Measuring

    def _measure(self, slot: int, numbered: Sequence[tuple[int, Realized]]) -> None:
        self._stream((slot, position, realized) for position, realized in numbered)

    def _stream(self, programs: Iterable[tuple[int, int, Realized]]) -> None:
        """Measure programs; each result is on disk before anybody hears of it. Stops early if it has to."""
        total, done = len(self._open), 0
        self.snapshot.doing = f"building {total} programs" if total else ""
        started, ran = self._clock(), 0.0
        results = self.measurer.measure(self._candidates(programs))
        try:
            for measurement in results:
                done += 1
                ran += measurement.run_seconds
                self.snapshot.doing = f"measured {done} of {total}"
                self.take(measurement)
                if self.over() is not None:
                    break
        finally:
            close = getattr(results, "close", None)
            if close is not None:
                close()
        spent = self._clock() - started
        split = self.snapshot.split
        split["run"] = split.get("run", 0.0) + ran
        split["build"] = split.get("build", 0.0) + max(0.0, spent - ran)

    def _candidates(self, programs: Iterable[tuple[int, int, Realized]]) -> Iterator[Candidate]:
        for slot, position, realized in programs:
            if (slot, position) in self._open and self.over() is None:
                yield Candidate(realized.program.operator, realized.text, f"{slot}:{position}")

    def take(self, measurement: Measurement) -> int:
        """Write one result down, then let it count; the number of its slot."""
        slot, position = map(int, measurement.program.label.split(":"))
        program = self._open.pop((slot, position))
        trial = trial_of(measurement, program, self.hardware, self.session, slot, position)
        self.store.append_trial(trial)
        before = self.snapshot.latency
        improved = self._count(trial, program)
        if improved or not math.isfinite(before):
            self._latency_changed()
        self._tell(
            "trial",
            operator=trial.operator,
            slot=slot,
            seconds=finite(trial.median),
            failure=trial.failure,
            message=trial.message,
            origin=program.origin,
        )
        if improved and self.snapshot.latency < before:
            self._tell("improved", operator=trial.operator, seconds=trial.median, latency=self.snapshot.latency)
        return slot

    def _count(self, trial: TrialRecord, program: Program) -> bool:
        self.rooms[trial.operator].note(program, trial.median, trial.slot if trial.slot is not None else -1)
        default = trial.position == 0 and trial.slot in self._default_slots
        return self.tracks.add(trial, default=default)

    # The cost model

    def _learn(self, room: Room, realized: Sequence[Realized]) -> None:
        """Teach the cost model a slot's results, in the order of its proposals."""
        if not self.search.uses_score or not realized:
            return
        from slipstream.cost.features import extract_possible

        features = extract_possible([r.module for r in realized], room.space.target)
        self.cost.learn(
            [
                Example(room.operator.key, rows, room.seconds(r.program))
                for r, rows in zip(realized, features, strict=True)
                if rows is not None
            ]
        )

    def _save_cost(self, slot: int) -> None:
        """Keep what the cost model has learned, as often as costs little; `_recall` makes up for the rest."""
        if not self.search.uses_score or self._clock() - self._saved_at < self._save_seconds / _SAVE_SHARE:
            return
        started = self._clock()
        self.store.put_state(self.session, "cost", slot, self.cost.state())
        self._saved_at = self._clock()
        self._save_seconds = self._saved_at - started

    # Going on

    def _recall(self) -> list[SlotRecord]:
        """Take in what the session did before; the slots it was in the middle of."""
        slots = self.store.slots(self.session)
        if not slots:
            return []
        trials: dict[int, dict[int, TrialRecord]] = {}
        for trial in self.store.trials(session=self.session):
            if trial.slot is not None and trial.position is not None:
                trials.setdefault(trial.slot, {})[trial.position] = trial
                self._measured.add((trial.slot, trial.position))
        saved = self.store.state(self.session, "cost")
        if saved is not None:
            self.cost.restore(saved[1])
        self._next_slot = slots[-1].slot + 1
        for slot in slots:
            self._replay(slot, trials.get(slot.slot, {}), relearn=saved is None or slot.slot > saved[0])
        self.snapshot.start_latency = self.tracks.start_latency
        self._latency_changed()
        return [slot for slot in slots if not slot.finished]

    def _replay(self, slot: SlotRecord, trials: Mapping[int, TrialRecord], *, relearn: bool) -> None:
        room, track = self.rooms[slot.operator], self.tracks.by_key[slot.operator]
        track.spend(slot.search_seconds)
        if is_default(slot):
            self._default_slots[slot.slot] = slot.operator
        else:
            self.kinship.hear(track.key, self.tracks)
        for trial in trials.values():  # in the order they were measured
            program = self._programs.get(slot.operator, trial.program)
            if program is not None:
                self._count(trial, program)
        if not slot.finished:
            return
        if relearn and self.search.uses_score:
            self._learn(room, [realized for _, realized in self._realized(slot)])
        if is_default(slot):
            self._settle_default(track)
        else:
            track.end_slot(exhausted=not slot.programs)

    def _go_on(self, slot: SlotRecord) -> None:
        """Measure what is left of a slot that was interrupted."""
        numbered = self._realized(slot)
        self.snapshot.current = slot.operator
        self._open = {(slot.slot, n): r.program for n, r in numbered if (slot.slot, n) not in self._measured}
        self._measure(slot.slot, numbered)
        if not self._open:
            self.finish(slot.slot, slot.operator, [realized for _, realized in numbered])

    def _realized(self, slot: SlotRecord) -> list[tuple[int, Realized]]:
        """The programs of a slot that can still be made, by their positions in it."""
        room = self.rooms[slot.operator]
        programs = [self._programs.get(slot.operator, record) for record in slot.programs]
        return [(n, r) for n, p in enumerate(programs) if p is not None and (r := room.space.realize(p)) is not None]

    # Small things

    def _spent(self, activity: str, started: float) -> float:
        seconds = self._clock() - started
        self.spent(activity, seconds)
        return seconds

    def spent(self, activity: str, seconds: float) -> None:
        """Count the session's time as spent on something."""
        self.snapshot.split[activity] = self.snapshot.split.get(activity, 0.0) + seconds

    def phase(self, phase: str) -> None:
        self.snapshot.phase = phase
        self._tell("phase", phase=phase)

    def _latency_changed(self) -> None:
        """Follow the model's latency, from when every operator has one."""
        if len(self._with_defaults) == len(self.rooms) and (latency := self.tracks.latency) != self.snapshot.latency:
            self.snapshot.latency = latency
            self.snapshot.curve.append((self.elapsed, latency))

    def _tell(self, kind: str, **data: Any) -> None:
        snapshot = self.snapshot
        snapshot.elapsed, snapshot.trials, snapshot.slot = self.elapsed, self.tracks.trials, self._next_slot
        snapshot.failures = dict(self.tracks.failures)
        snapshot.remaining = self.budget.remaining(
            snapshot.elapsed, snapshot.trials, snapshot.start_latency, snapshot.latency
        )
        self._watcher(Event(kind, snapshot.elapsed, data), snapshot)
