"""The loop: pick an operator, propose programs for it, measure them, learn, and again, for several operators at a time.

Every decision follows from the store: what a slot is going to measure is written before it is measured, a trial before
it counts, and every random number comes from the session's seed and the slot's number. So a session that was killed
continues as if it had not been.

An operator has at most one slot at a time, so that what is proposed for it follows from all its results. With
`in_flight` 1 a slot is proposed, measured and learned before the next is picked. With more, the next slots are
proposed, `searches` at a time, while programs of others are built and run, as long as the measurer asks for programs.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from slipstream.cost.types import CostModel
from slipstream.errors import first_line
from slipstream.measure.types import Candidate, Measurement, Measurer
from slipstream.processes.forked import ForkedCrashError
from slipstream.program.space import Program
from slipstream.schedulers.types import Scheduler, SchedulerError
from slipstream.search.types import Question, Search
from slipstream.session.budget import Budget
from slipstream.session.cost_learning import CostLearning
from slipstream.session.events import Snapshot, Watcher, tell
from slipstream.session.families import Families
from slipstream.session.history import FAILURES_OF_THE_PROGRAM, Slot, Trial
from slipstream.session.operator_trials import OperatorTrials
from slipstream.session.proposals import Proposal, Proposed, first_found, proposed
from slipstream.session.records import DEFAULTS, LOST, finite, is_default, record_of, slot_seed, trial_of
from slipstream.session.result import DEVICES_AWAY, INTERRUPTED
from slipstream.session.settings import Settings
from slipstream.session.shapes import counterparts, importance
from slipstream.session.standing import Standing
from slipstream.session.stored_history import StoredHistory
from slipstream.session.stored_programs import StoredPrograms
from slipstream.store import SlotRecord, Store

Clock = Callable[[], float]
_NOTHING_IMPROVES = "nothing improves any more"
_MOST_LOST_ROUNDS = 4  # in a row in which no device answered, until the session ends
_FIRST_PART = 4  # of a slot: as much has the first one of an operator that programs are carried over to
_LOOK_SECONDS = 0.2  # how often a search under way is asked whether it is still wanted


@dataclass
class _OpenSlot:
    """A slot under way: its programs by their positions, and the positions that are still to be measured."""

    slot: Slot
    programs: dict[int, Proposed]
    left: set[int]


class Session:
    """One session on one store; `run` tunes until the budget is spent, nothing improves, or `stop` says so."""

    def __init__(
        self,
        *,
        store: Store,
        session: str,
        hardware: str,
        operators: Mapping[str, OperatorTrials],
        find_families: Callable[[], Families],
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
        reserve: Callable[[Session], float] = lambda session: 0.0,
        peak_flops: float = 0.0,
    ) -> None:
        self.store, self.session, self.hardware = store, session, hardware
        self.operators, self._find_families, self.measurer = operators, find_families, measurer
        self.scheduler, self.search, self.cost = scheduler, search, cost
        self.settings, self.budget, self.snapshot = settings, budget, snapshot
        self._watcher, self._stop, self._clock, self._reserve = watcher, stop, clock, reserve
        self._began = clock() - elapsed
        self._programs = StoredPrograms(store)
        self._learning = CostLearning(cost, store, session, clock)
        self._finished = 0  # slots; the elapsed time does not order them, since a kill sets it back
        self.history = StoredHistory.of(store, session).history
        snapshot.operators = [operator.row for operator in self.history.operators.values()]
        kinds = {key: trials.operator.kinds for key, trials in operators.items()}
        self._counterparts = counterparts(snapshot.calls, kinds)
        flops = {key: operator.flops for key, operator in self.history.operators.items()}
        # Of several models, how much each counts is for their user to say.
        important = {} if snapshot.weights else importance(snapshot.calls, flops)
        self._standing = Standing(self.history, lambda: self.families, settings, important, peak_flops)
        self._open: dict[int, _OpenSlot] = {}
        self._proposals: list[Proposal] = []
        self._none_to_pick = -1  # how many slots were closed when there was no operator left to pick
        self._last_proposed = -1  # slots may begin in another order than they were proposed in
        self._without_default: deque[str] = deque()  # operators whose default program is to be measured next
        self._lost_rounds = 0
        self._next_retry = 0  # number of given slots at which default programs are tried again

    def run(self) -> str:
        """Tune; the reason it ended, in words."""
        self.phase("defaults")
        self._recall()
        self.snapshot.left = self._standing.left(self.elapsed)
        try:
            self._measure_defaults()
            self.phase("tune")
            while (reason := self.over()) is None:
                if self._retry_is_due() and not self._open and not self._proposals:
                    self._measure_defaults()
                elif self._open or self._open_next(wait=True):
                    self._measure()
                elif self.over() is None:
                    if not self._lacking_default():
                        return _NOTHING_IMPROVES
                    self._measure_defaults()
            return reason
        finally:
            while self._proposals:
                self._proposals.pop().cancel()

    def over(self) -> str | None:
        """Why tuning has to end; None while it may continue."""
        if self._stop():
            return INTERRUPTED
        if self._lost_rounds >= _MOST_LOST_ROUNDS:
            return DEVICES_AWAY
        elapsed, history = self.elapsed + self._reserve(self), self.history
        return self.budget.spent(elapsed, history.answered, history.latency, self.snapshot.left)

    @property
    def elapsed(self) -> float:
        return self._clock() - self._began

    @cached_property
    def families(self) -> Families:
        """Found while default programs are measured, which does not need them."""
        started = self._clock()
        families = self._find_families()
        self._spent("schedule", started)
        return families

    # Which operator is next, and what is measured of it

    def pick(self) -> str | None:
        """The operator that gets the next slot; None if there is none left to tune."""
        started = self._clock()
        busy = {one.slot.operator for one in self._open.values()} | {one.operator for one in self._proposals}
        states = self._standing.states(busy)
        picked = self.scheduler.pick(states, self._next_slot)
        self._spent("schedule", started)
        if picked is not None and not any(state.key == picked and not state.finished for state in states):
            what = "is finished" if picked in self.history.operators else "is no operator of this session"
            raise SchedulerError(
                f"the scheduler {self.settings.scheduler!r} picked {picked!r}, which {what}: "
                "repair its pick, which returns the key of an unfinished operator or None"
            )
        return picked

    @property
    def _next_slot(self) -> int:
        return max(next(reversed(self.history.slots), -1), self._last_proposed) + 1

    def _slots(self, key: str) -> int:
        return len(self.history.operators[key].slot_ends)

    def _slot_size(self, key: str = "") -> int:
        """As many trials as a slot has, or as are left.

        The first slot of an operator measures little more than what is carried over to it, if anything is, so that
        all operators soon have that. A slot of one whose counterpart in another shape has had more is short too.
        """
        size = self.settings.slot_trials
        if key and self.settings.parts.short_firsts and not self._slots(key) and self._carries_over(key):
            size = -(-size // _FIRST_PART)
        elif key and any(self._slots(other) > self._slots(key) for other in self._counterparts.get(key, ())):
            size = -(-size // 2)
        if self.budget.trials is not None:
            size = min(size, self.budget.trials - self.history.answered - self._under_way)
        return size

    @property
    def _under_way(self) -> int:
        """How many programs are searched for or to be measured."""
        return sum(len(one.left) for one in self._open.values()) + sum(one.size for one in self._proposals)

    @property
    def _has_room(self) -> bool:
        """Whether another slot may be under way; more of them while they are short."""
        settings, slots = self.settings, len(self._open) + len(self._proposals)
        return slots < settings.in_flight or self._under_way < (settings.in_flight - 1) * settings.slot_trials

    def _carries_over(self, key: str) -> bool:
        return getattr(self.search, "carries_over", False) and self.families.has_lenders(key, self.history)

    def _start_next(self) -> bool:
        """Have the next slots' programs searched for, as many as there may be; whether any are."""
        while len(self._proposals) < self.settings.searches:
            # Until a slot is closed, an operator that could not be picked cannot be.
            stuck = self._retry_is_due() or self._none_to_pick == self._finished
            if stuck or not self._has_room or self._slot_size() < 1:
                break
            if (key := self.pick()) is None:
                self._none_to_pick = self._finished
                break
            self._propose(key)
        return bool(self._proposals)

    def _open_next(self, *, wait: bool) -> bool:
        """Open the next slot; False if there is none or, unless it is to `wait`, its programs are not found yet."""
        if not self._start_next():
            return False
        started = self._clock()
        while (found := first_found(self._proposals, _LOOK_SECONDS if wait else 0.0)) is None:
            if not wait or self.over() is not None:
                return False
        self._take_proposal(found, started)
        return True

    def _propose(self, key: str) -> None:
        slot = self._next_slot
        self.snapshot.current, self.snapshot.doing = key, "searching"
        name = self.history.operators[key].name
        self._emit("slot", operator=key, name=name, slot=slot)
        trials = self.operators[key]
        seed = slot_seed(self.settings.seed, key, slot)
        question = Question(
            trials.space,
            self._slot_size(key),
            seed,
            trials.known(),
            self.cost.score,
            self.families.relatives(key),
            self.families.priors(key),
        )
        self._proposals.append(Proposal(slot, key, self.search, question, self._clock))
        self._last_proposed = slot

    def _take_proposal(self, proposal: Proposal, started: float) -> None:
        """Open the slot with what was found for it. A crash of the search costs the slot; so does an error, if searches
        of the session have worked before: else it is a mistake in the search itself."""
        self._proposals.remove(proposal)
        found, searched, note = list[Proposed](), 0.0, dict[str, Any]()
        try:
            found, searched = proposal.result()
        except Exception as error:
            crashed = isinstance(error, ForkedCrashError)
            if not crashed and all(slot.default or slot.lost for slot in self.history.slots.values()):
                raise
            said = str(error) if crashed else f"{type(error).__name__}: {first_line(error)}"
            note = {LOST: said}
            name = self.history.operators[proposal.operator].name
            ended = "crashed" if crashed else "failed"
            self._emit("message", text=f"the search for programs of {name} {ended} ({said}); its slot is lost")
        self._spent("search", started)
        self._begin(proposal.slot, proposal.operator, found, searched, note)
        if not found:
            self._finish(proposal.slot)

    def _begin(
        self, number: int, key: str, programs: Sequence[Proposed], searched: float, note: dict[str, Any]
    ) -> None:
        """Write what the slot is going to measure, which took `searched` seconds to find."""
        for one in programs:
            self._programs.keep(one.program.sketch)
        started = self._clock()
        self.store.begin_slot(self.session, number, key, [record_of(p.program) for p in programs], searched, note)
        self._spent("store", started)
        slot = Slot(number, key, note == DEFAULTS, searched, note.get(LOST, ""))
        self.history.begin(slot)
        numbered = dict(enumerate(programs))
        self._open[number] = _OpenSlot(slot, numbered, set(numbered))

    def _finish(self, number: int) -> None:
        """Everything proposed has been measured: learn from it and close the slot."""
        one = self._open.pop(number)
        slot, operator = one.slot, self.history.operators[one.slot.operator]
        started = self._clock()
        if self.search.uses_score:
            self._learning.learn(number, self.operators[operator.key], one.programs.values())
        self._spent("train", started)
        exhausted = not one.programs and not slot.lost
        if slot.default:
            working = math.isfinite(operator.best)
            lacking = any(trial.is_inconclusive for trial in slot.trials if trial.position == 0)
            space = self.operators[operator.key].space
            failed = any(trial.failure in FAILURES_OF_THE_PROGRAM for trial in slot.trials)
            wrong = not working and failed and space.default_may_be_wrong
            exhausted = not lacking and not ((working or wrong) and space.leaves_something_to_decide)
            if exhausted and not working:
                self._emit("message", text=f"{operator.name} cannot be measured and keeps its default program")
            elif wrong:
                self._emit("message", text=f"the default program of {operator.name} does not work: another is searched")
        self.history.end(number, self.elapsed, exhausted=exhausted)
        operator.update_row(self.settings.patience_trials, self.settings.most_trials)
        started = self._clock()
        left = self.snapshot.left = self._standing.left(self.elapsed)
        self._spent("schedule", started)
        started = self._clock()
        stats = {
            "best": finite(operator.best),
            "elapsed": self.elapsed,
            "exhausted": exhausted,
            "order": self._finished,
            "left": left and asdict(left),
        }
        self.store.finish_slot(self.session, number, stats)
        self._finished += 1
        if slot.default:
            return
        self._note_round(slot.trials)
        self.store.update_session(self.session, elapsed=self.elapsed)
        if self.search.uses_score:
            self._learning.save()
        self._spent("store", started)
        self.snapshot.current, self.snapshot.doing = None, ""
        _, first, last = operator.spans()[-1]
        self._emit(
            "slot_done",
            operator=operator.key,
            name=operator.name,
            slot=number,
            trials=len(one.programs),
            best=finite(operator.best),
            gain=operator.gain(first, last),
        )

    def _note_round(self, trials: Sequence[Trial]) -> None:
        """Count how often in a row nothing could be measured at all."""
        if trials:
            self._lost_rounds = self._lost_rounds + 1 if all(trial.is_inconclusive for trial in trials) else 0

    # Default programs

    def _measure_defaults(self) -> None:
        """Measure the default program of every operator that lacks it, so that tuned is never slower than untuned.

        All are closed together, in their order: what the cost model learns must not depend on interruptions.
        """
        begun = {slot.operator for slot in self.history.slots.values() if slot.default}
        wanted = self._lacking_default() | (set(self.operators) - begun)
        others = {number: one for number, one in self._open.items() if not one.slot.default}
        self._open = {number: one for number, one in self._open.items() if one.slot.default}
        self._without_default = deque(key for key in self.operators if key in wanted)
        if self._open or self._open_default():
            self._measure()
        defaults = dict(self._open)
        if not self._without_default and not any(one.left for one in defaults.values()):
            for number in sorted(defaults):
                self._finish(number)
            self._note_round([trial for one in defaults.values() for trial in one.slot.trials])
        self._without_default.clear()
        self._open |= others
        self._next_retry = 2 * self.history.given_slots + 1
        self._latency_changed()

    def _open_default(self) -> bool:
        """Open the slot of the next default program to measure, if there is one."""
        if not self._without_default or self.over() is not None:
            return False
        key = self._without_default.popleft()
        realized = [r for r in map(self.operators[key].space.realize, self._known_before(key)) if r is not None]
        self._begin(self._next_slot, key, self._proposed(key, realized), 0.0, DEFAULTS)
        return True

    def _lacking_default(self) -> set[str]:
        """Operators whose default program could not be measured for a reason that passes."""
        busy = {one.slot.operator for one in self._open.values()}
        return {key for key, one in self.history.operators.items() if one.lacks_default and key not in busy}

    def _retry_is_due(self) -> bool:
        return self.history.given_slots >= self._next_retry and bool(self._lacking_default())

    def _known_before(self, key: str) -> list[Program]:
        """The default program and, from earlier sessions on this hardware, the best ones."""
        programs = [self.operators[key].space.default]
        for trial in self.store.top(key, self.hardware, 2):
            program = self._programs.get(key, trial.program)
            if program is not None and program.identity != programs[0].identity:
                programs.append(program)
        return programs

    # Measuring

    def _measure(self) -> None:
        """Measure what is open, and what is opened meanwhile; a result is on disk before it counts."""
        started, split = self._clock(), self.snapshot.split
        counted = sum(split.values())
        results = self.measurer.measure(self._candidates())
        try:
            for measurement in results:
                split["run"] = split.get("run", 0.0) + measurement.run_seconds
                self._take(measurement)
                if self.over() is not None:
                    break
        finally:
            close = getattr(results, "close", None)
            if close is not None:
                close()
        others = sum(split.values()) - counted
        split["build"] = split.get("build", 0.0) + max(0.0, self._clock() - started - others)

    def _candidates(self) -> Iterator[Candidate | None]:
        """Programs to measure. With several slots in flight, None while there is nothing to hand out yet."""
        waiting, handed_out = deque[tuple[int, int]](), set[int]()
        self.snapshot.doing = f"building {sum(len(one.left) for one in self._open.values())} programs"
        tuning = not any(one.slot.default for one in self._open.values())
        while self.over() is None:
            new = [one for number, one in self._open.items() if number not in handed_out]
            handed_out.update(one.slot.number for one in new)
            waiting.extend((one.slot.number, position) for one in new for position in sorted(one.left))
            if waiting:
                if tuning:
                    self._start_next()
                number, position = waiting.popleft()
                one = self._open[number]
                yield Candidate(one.slot.operator, one.programs[position].text, f"{number}:{position}")
            elif self._open_default():
                continue
            elif not tuning:
                _ = self.families  # found now, while the last of them are built
                return
            elif self.settings.in_flight == 1:
                return
            elif not self._open_next(wait=not self._open):
                if not self._open and not self._proposals:
                    return
                yield None

    def program(self, label: str) -> Program:
        """The program that is being measured under the label of a candidate."""
        number, position = map(int, label.split(":"))
        return self._open[number].programs[position].program

    def _take(self, measurement: Measurement) -> None:
        """Write one result, then count it; the last one of a slot closes the slot."""
        number, position = map(int, measurement.program.label.split(":"))
        one, program = self._open[number], self.program(measurement.program.label)
        record = trial_of(measurement, program, self.hardware, self.session, number, position)
        self.store.append_trial(record)
        trial = Trial.of(record)
        one.left.remove(position)
        self.snapshot.doing = f"measured {len(one.programs) - len(one.left)} of {len(one.programs)}"
        before = self.history.latency
        improved = self.history.add(trial)
        if not trial.is_inconclusive:
            self.operators[trial.operator].add(program, trial.seconds, number)
        self._latency_changed()
        self._emit(
            "trial",
            operator=trial.operator,
            slot=number,
            seconds=finite(trial.seconds),
            failure=trial.failure,
            message=trial.message,
            origin=program.origin,
        )
        if improved and math.isfinite(before) and self.history.latency < before:
            self._emit("improved", operator=trial.operator, seconds=trial.seconds, latency=self.history.latency)
        if not one.left and not one.slot.default:
            self._finish(number)

    # Continuing

    def _recall(self) -> None:
        """Take in what the session did before, and open the slots it was in the middle of."""
        slots = self.store.slots(self.session)
        self._finished = sum(slot.finished for slot in slots)
        measured = self._recall_trials()
        if self.search.uses_score:
            self._learning.restore()
            ended = [slot for slot in slots if slot.finished and not self._learning.has_learned(slot.slot)]
            for slot in sorted(ended, key=lambda slot: (slot.stats.get("order", 0), slot.slot)):
                self._learning.learn(slot.slot, self.operators[slot.operator], self._stored(slot).values())
        for slot in slots:
            if not slot.finished:
                programs = self._stored(slot)
                left = set(programs) - measured.get(slot.slot, set())
                self._open[slot.slot] = _OpenSlot(self.history.slots[slot.slot], programs, left)
                if not left and not is_default(slot):
                    self._finish(slot.slot)
        self._latency_changed()

    def _recall_trials(self) -> dict[int, set[int]]:
        """The positions measured of each slot."""
        measured: dict[int, set[int]] = {}
        for record in self.store.trials(session=self.session):
            if record.slot is None:
                continue
            program = self._programs.get(record.operator, record.program)
            if program is not None and not Trial.of(record).is_inconclusive:
                self.operators[record.operator].add(program, record.median, record.slot)
            measured.setdefault(record.slot, set()).add(record.position or 0)
        return measured

    def _stored(self, slot: SlotRecord) -> dict[int, Proposed]:
        """The programs of a slot that can still be made, by their positions in it."""
        space = self.operators[slot.operator].space
        programs = [self._programs.get(slot.operator, record) for record in slot.programs]
        made = {n: r for n, p in enumerate(programs) if p is not None and (r := space.realize(p)) is not None}
        return dict(zip(made, self._proposed(slot.operator, list(made.values())), strict=True))

    def _proposed(self, key: str, realized: Sequence[Any]) -> list[Proposed]:
        return proposed(realized, self.operators[key].space.target if self.search.uses_score else None)

    # What others see

    def _spent(self, activity: str, started: float) -> None:
        self.snapshot.split[activity] = self.snapshot.split.get(activity, 0.0) + self._clock() - started

    def phase(self, phase: str) -> None:
        self.snapshot.phase = phase
        self._emit("phase", phase=phase)

    def _latency_changed(self) -> None:
        """Follow the model's latency, from when every operator has one."""
        self.snapshot.start_latency = self.history.start_latency
        if self.history.latency != self.snapshot.latency:
            self.snapshot.latency = self.history.latency
            self.snapshot.curve.append((self.elapsed, self.history.latency))

    def _emit(self, kind: str, **data: Any) -> None:
        snapshot, history = self.snapshot, self.history
        snapshot.trials, snapshot.slots = history.trials, history.given_slots
        snapshot.default_trials = history.default_trials
        snapshot.failures = dict(history.failures)
        self.note_time()
        tell(self._watcher, kind, snapshot, **data)

    def note_time(self) -> None:
        """How long the session has taken so far, and what is left of its budget."""
        snapshot = self.snapshot
        snapshot.elapsed = self.elapsed
        snapshot.remaining = self.budget.remaining(
            snapshot.elapsed, self.history.answered, snapshot.start_latency, snapshot.latency
        )
