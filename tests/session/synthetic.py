"""Sessions on a real model, zoo:tiny_cnn, with a measurer that only pretends: what the loop does, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from slipstream import plugins
from slipstream.cost.features import WIDTH, extract_possible
from slipstream.frontends import Model, load_model
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target
from slipstream.program.space import Realized, Space
from slipstream.search.random import Random
from slipstream.search.types import Question, Search
from slipstream.session.budget import Budget
from slipstream.session.context import context_of
from slipstream.session.events import Event, Snapshot
from slipstream.session.families import Families, stored_relatives
from slipstream.session.loop import Session
from slipstream.session.operator_trials import OperatorTrials, operator_record
from slipstream.session.settings import Settings, make_settings
from slipstream.store import Store
from slipstream.testing.measurer import TRIAL_SECONDS, SyntheticMeasurer, hashed

__all__ = ["TRIAL_SECONDS", "SyntheticMeasurer", "hashed"]

MODEL = "zoo:tiny_cnn"
HARDWARE = {"kind": "simulated"}
PEAK_FLOPS = 1e11


class Scored:
    """Random programs, the half that the cost model likes better: a search that needs the model's state to be right."""

    uses_score = True

    def propose(self, question: Question) -> list[Realized]:
        drawn = Random().propose(replace(question, count=2 * question.count))
        features = extract_possible([r.module for r in drawn], question.space.target)
        scores = question.score([rows if rows is not None else np.empty((0, WIDTH), np.float32) for rows in features])
        best = sorted(range(len(drawn)), key=lambda n: -scores[n])[: question.count]
        return [drawn[n] for n in best]


@cache
def model() -> Model:
    return load_model(MODEL)


@cache
def prepared() -> Any:
    return prepare(model().module, resolve_target())[0]


@cache
def operators() -> dict[str, Operator]:
    return {operator.key: operator for operator in extract_operators(prepared())}


@cache
def space(key: str) -> Space:
    return Space(key, operators()[key].func, resolve_target())


def open_session(store: Store, **changes: Any) -> str:
    """The store's one session, begun if there is none."""
    known = store.sessions()
    if known:
        return known[0].id
    return begin_session(store, **changes)


def begin_session(store: Store, tuned: Mapping[str, Operator] | None = None, **changes: Any) -> str:
    """A new session on `tuned`, by default the operators of tiny_cnn; `changes` are its settings."""
    tuned = tuned or operators()
    hardware = store.add_hardware(HARDWARE)
    store.add_model(model().fingerprint, model().name, model().source)
    store.add_operators(map(operator_record, tuned.values()))
    options = {"settings": make_settings(others=changes).to_json(), "budget": Budget().to_json()}
    return store.create_session(model().fingerprint, hardware, options, {k: o.weight for k, o in tuned.items()})


def make_session(
    store: Store,
    session: str,
    measurer: SyntheticMeasurer,
    budget: Budget,
    *,
    stop: Callable[[], bool] = lambda: False,
    watcher: Callable[[Event, Snapshot], None] = lambda event, snapshot: None,
    proposer: Search | None = None,
    trials: Mapping[str, OperatorTrials] | None = None,
) -> Session:
    """As `slipstream.tune` makes it, on the measurer's clock; `trials` are of tiny_cnn's operators unless given."""
    record = store.session(session)
    settings = Settings.from_json(record.options["settings"])
    trials = trials or {key: OperatorTrials(operator, space(key)) for key, operator in operators().items()}
    context = context_of(settings, PEAK_FLOPS)
    infinite = float("inf")
    return Session(
        store=store,
        session=session,
        hardware=record.hardware,
        operators=trials,
        find_families=lambda: Families(
            trials, settings.families, stored_relatives(trials, store, record.hardware)
        ),
        measurer=measurer,
        scheduler=plugins.make("scheduler", settings.scheduler, context, **settings.scheduler_options()),
        search=proposer or plugins.make("search", settings.search, context),
        cost=plugins.make("cost", settings.cost, context),
        settings=settings,
        budget=budget,
        snapshot=Snapshot(session, "tiny_cnn", "simulated", "prepare", 0.0, budget.remaining(0, 0, infinite, infinite),
                          infinite, infinite, [], []),
        watcher=watcher,
        stop=stop,
        clock=measurer.clock.now,
        elapsed=record.elapsed,
        peak_flops=PEAK_FLOPS,
    )  # fmt: skip


def play(
    path: Path, budget: Budget, measurer: SyntheticMeasurer | None = None, *, again: bool = False, **changes: Any
) -> tuple[Session, str]:
    """Run the session of the store at `path` until its budget is spent: the session and why it ended.

    `stop`, `watcher` and `proposer` go to the session, other `changes` to its settings if it is new. `again` begins
    another session on the same store.
    """
    watching = {name: changes.pop(name) for name in ("stop", "watcher", "proposer") if name in changes}
    with Store.open(path) as store:
        session_id = begin_session(store, **changes) if again else open_session(store, **changes)
        with store.own(session_id):
            session = make_session(store, session_id, measurer or SyntheticMeasurer(), budget, **watching)
            return session, session.run()


def contents(path: Path) -> dict[str, Any]:
    """What a session has decided and measured, without the times that differ from run to run."""
    with Store.open(path, create=False) as store:
        (record,) = store.sessions()
        return {
            "slots": [(s.slot, s.operator, s.programs, s.note, s.finished) for s in store.slots(record.id)],
            "trials": [
                (t.slot, t.position, t.operator, t.program, t.samples, t.failure)
                for t in store.trials(session=record.id)
            ],
        }
