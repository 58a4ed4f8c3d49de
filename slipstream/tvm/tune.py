"""`tune_relax` with MetaSchedule's arguments."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.errors import InputError
from slipstream.frontends.model import Model
from slipstream.machine.target import resolve_target
from slipstream.session.budget import Budget, budget_of
from slipstream.session.directory import SESSION, SessionDirectory, SessionDirectoryError, open_store
from slipstream.session.events import Watcher
from slipstream.session.tune import resume, tune
from slipstream.tvm.check import check_programs
from slipstream.tvm.database import fill_database, new_database
from slipstream.tvm.module import bind, inputs_of, legalized, operators_of
from slipstream.tvm.programs import read_best
from slipstream.tvm.target import target_spec

if TYPE_CHECKING:
    from slipstream.session.result import TuningResult

# MetaSchedule's own parts, and what of ours stands for each; its defaults stand for ours.
_PARTS: Mapping[str, Mapping[str, dict[str, str]]] = {
    "cost_model": {"xgb": {}, "random": {"cost": "random"}},
    "task_scheduler": {"gradient": {}, "round-robin": {"scheduler": "round_robin"}},
    "strategy": {"evolutionary": {}, "replay-trace": {"search": "random"}, "replay-func": {"search": "random"}},
    "space": {"post-order-apply": {}},
    "builder": {"local": {}},
    "runner": {"local": {}},
    "measure_callbacks": {"default": {}},
}
_EQUALITIES = ("structural", "ignore-tensor", "anchor-block")


def tune_relax(
    mod: Any,
    params: Mapping[str, Any] | None,
    target: Any,
    work_dir: str | Path,
    max_trials_global: int | None = None,
    max_trials_per_task: int | None = None,
    op_names: Sequence[str] | None = None,
    *,
    budget: str | float | None = None,
    num_trials_per_iter: int | None = None,
    builder: Any = "local",
    runner: Any = "local",
    database: Any = "json",
    cost_model: Any = "xgb",
    measure_callbacks: Any = "default",
    task_scheduler: Any = "gradient",
    space: Any = "post-order-apply",
    strategy: Any = "evolutionary",
    seed: int | None = None,
    module_equality: str = "structural",
    store: str | Path | None = None,
    callbacks: Sequence[Watcher] = (),
) -> Any:
    """Tune a Relax module; a database that MetaSchedule's `compile_relax` and `MetaScheduleApplyDatabase` take.

    Arguments are MetaSchedule's. Tuning ends after `max_trials_global` trials or `budget` ("5m", or seconds), whichever
    is first, or when nothing improves any more. Parts by the names of MetaSchedule's defaults are Slipstream's.
    `work_dir` is a session: called again with it and the same module, a budget that is not used up is gone on with,
    and one that is returns the database at once. `store` names a store that sessions share; `callbacks` get every
    event. The module with the best programs is compared with the untuned one before anything is returned.
    """
    chosen = _parts(
        cost_model=cost_model,
        task_scheduler=task_scheduler,
        strategy=strategy,
        space=space,
        builder=builder,
        runner=runner,
        measure_callbacks=measure_callbacks,
    )
    if module_equality not in _EQUALITIES:
        raise InputError(f"there is no module_equality {module_equality!r}: choose from {', '.join(_EQUALITIES)}")
    limits = Budget.of(budget, max_trials_global)
    bound = bind(mod, params)
    spec, threads = target_spec(target)
    resolved = resolve_target(spec, threads)
    path = Path(work_dir)
    inputs = inputs_of(bound)
    ready = legalized(bound, resolved)
    operators, keys = operators_of(ready, op_names)
    model = Model(
        name=path.absolute().name,
        source="a Relax module",
        module=operators,
        inputs=(),
        outputs=(),
        fingerprint=_fingerprint(operators),
        reference=None,  # type: ignore[arg-type]  # the module is compared as a whole
        finish=partial(check_programs, ready, inputs, resolved, keys),
    )
    settings: dict[str, Any] = {"slot_trials": num_trials_per_iter, "most_trials": max_trials_per_task}
    if (path / SESSION).exists():
        _go_on(path, model, limits, callbacks)
    else:
        tune(
            model,
            path,
            budget=limits.seconds,
            trials=limits.trials,
            seed=seed if seed is not None and seed >= 0 else 0,
            settings={name: value for name, value in settings.items() if value is not None},
            target=spec,
            threads=threads,
            store=store,
            callbacks=callbacks,
            **chosen,
        )
    filled = new_database(database, path, module_equality)
    fill_database(filled, ready, read_best(path))
    return filled


def _parts(**given: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for argument, value in given.items():
        allowed = _PARTS[argument]
        if not isinstance(value, str) or value not in allowed:
            what = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
            raise InputError(
                f"slipstream.tvm.tune_relax cannot use {what} as {argument}: leave it out, or choose "
                f"{' or '.join(map(repr, allowed))}"
            )
        chosen |= allowed[value]
    return chosen


def _fingerprint(operators: Any) -> str:
    """The same for modules whose functions are called alike, whatever their weights."""
    from slipstream.graph.operators import extract_operators

    calls = sorted((operator.key, operator.weight) for operator in extract_operators(operators))
    return hashlib.blake2b(json.dumps(calls).encode(), digest_size=16).hexdigest()


def _go_on(path: Path, model: Model, limits: Budget, callbacks: Sequence[Watcher]) -> TuningResult | None:
    """Use what is left of a budget that counts from the session's beginning; None if there is nothing."""
    directory = SessionDirectory.read(path)
    with open_store(directory, read_only=True) as store:
        record = store.session(directory.session)
        used = sum(1 for _ in store.trials(session=record.id))
        before = budget_of(store, record)
    if record.model != model.fingerprint:
        raise SessionDirectoryError(f"{path} holds the session of another module: choose another work_dir")
    if record.status == "finished" and limits == before:
        return None
    seconds = None if limits.seconds is None else limits.seconds - record.elapsed
    trials = None if limits.trials is None else limits.trials - used
    if (seconds is not None and seconds <= 0) or (trials is not None and trials <= 0):
        if record.status == "finished":
            return None
        seconds, trials = 0.01, None  # only what ends a session is left to do
    return resume(path, model=model, budget=seconds, trials=trials, callbacks=callbacks)
