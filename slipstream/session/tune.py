"""`slipstream.tune` and `slipstream.resume`: from a model to a tuned, compiled, verified one."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream import plugins
from slipstream.artifact.directory import check_executable
from slipstream.artifact.lock import lock_file
from slipstream.errors import SlipstreamError
from slipstream.machine.hardware import describe_cpu, describe_gpu
from slipstream.machine.target import Target, available_cores, resolve_target
from slipstream.measure.choose import check_fleet, check_gpu, check_rpc, starting_early
from slipstream.plugins import Plugins
from slipstream.session.asked_models import ask, ask_again, is_several, read_models
from slipstream.session.budget import BUDGET, Budget
from slipstream.session.directory import STORE, SessionDirectory, beginning, check_new, open_store
from slipstream.session.events import Event, Snapshot, Watcher
from slipstream.session.history import count_answered
from slipstream.session.models import SessionModel, fingerprint_of, session_operators, title_of
from slipstream.session.priors import read_chosen_priors
from slipstream.session.result import TuningResult
from slipstream.session.run import SessionRun
from slipstream.session.settings import Settings, make_settings
from slipstream.session.show_progress import show_progress
from slipstream.session.state_names import save
from slipstream.store import PostgresUrl, SessionRecord, Store, StoreLocation, store_location
from slipstream.store.opening import check_location
from slipstream.tvm_bridge.imports import import_tvm_without_torch

if TYPE_CHECKING:
    from slipstream.frontends.inputs import Array
    from slipstream.frontends.shape_lists import Shapes
    from slipstream.graph.operators import Operator
    from slipstream.plugins import AnyCostModel, AnyMeasurer, AnyScheduler, AnySearch

logger = logging.getLogger(__name__)


def tune(
    model: Any,
    output: str | Path,
    *,
    budget: str | float | None = None,
    trials: int | None = None,
    until_latency: str | float | None = None,
    until_gain_below: str | float | None = None,
    preset: str | None = None,
    effort: str = "normal",
    scheduler: AnyScheduler | None = None,
    search: AnySearch | None = None,
    cost: AnyCostModel | None = None,
    measurer: AnyMeasurer | None = None,
    evaluation: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    priors: str | Path | None = "shipped",
    settings: Mapping[str, Any] | None = None,
    target: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    rpc: str | None = None,
    rpc_key: str | None = None,
    fleet: str | None = None,
    store: str | Path | PostgresUrl | None = None,
    weights: Mapping[str, int] | None = None,
    example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    shapes: Shapes | Mapping[str, Shapes] | None = None,
    pad: bool = False,
    constants: Mapping[str, Any] | None = None,
    partition: bool = True,
    input_data: Mapping[str, Array] | Mapping[str, Mapping[str, Array]] | None = None,
    callbacks: Sequence[Watcher] = (),
    lock: str | Path | None = None,
    progress: bool | None = None,
) -> TuningResult:
    """Tune `model` (anything `load_model` takes) and compile it with the best programs found.

    `output` becomes the session's directory: its store (unless `store` names a shared one, a file or
    postgresql://USER@HOST/DATABASE) and the compiled model.
    Tuning ends when the first of `budget` (seconds, or text such as "5m"), `trials` and `until_latency` is used up, or
    when it is likely that less than `until_gain_below` (0.02, or "2%") of the latency is left to gain; without any,
    when nothing improves any more. `scheduler`, `search`, `cost` and `measurer` are names, objects, or
    callables that take a `slipstream.plugins.Context`. `evaluation` says how programs are timed: "racing", "adatune" or
    "fixed" (docs/measuring.md). `fleet` is the address of a Ray cluster whose nodes build and measure (docs/fleet.md).
    `priors`, for operators of which the store has no relatives, are those of the package, of a file that `slipstream
    store distil` wrote, or None. `settings` sets any other field of `Settings` by its name.
    `dtype` "float16" computes a float32 model's products in that type, "bfloat16" or "tf32" on a GPU. What cannot be
    compiled runs in ONNX Runtime, unless `partition` is False. With `input_data`, by name, the model is run on nothing
    else; what it does not name is random. `shapes` with lists or ranges (docs/shapes.md) are tuned together and make
    one artifact; with `pad`, it fills inputs of other shapes up to the next larger one. `callbacks` get every event and
    a snapshot of the session. `lock` names a file for what was chosen (of several models a folder of such files), from
    which `slipstream.compile` rebuilds the same. Progress is shown in a notebook unless `progress` is False, and
    elsewhere, on standard error, if it is True.

    A list of models, or a mapping from names to models, is tuned together (docs/several-models.md): each has an
    artifact in a folder of its name, counts as often as `weights` says, and has its own `shapes`, `constants`,
    `input_data` and `example_inputs`, which are then mappings from names.
    """
    began = time.monotonic()
    output = Path(output).absolute()
    limits = Budget.of(budget, trials, until_latency, until_gain_below)
    choose = partial(
        make_settings,
        preset=preset,
        effort=effort,
        scheduler=plugins.stored_name(scheduler),
        search=plugins.stored_name(search),
        cost=plugins.stored_name(cost),
        evaluation=evaluation,
        seed=seed,
        deterministic=deterministic,
        others={"priors": _priors_name(priors), **(settings or {})},
    )
    chosen = choose()
    read_chosen_priors(chosen.priors)
    parts = _parts(chosen, {"scheduler": scheduler, "search": search, "cost": cost}, measurer, rpc, fleet)
    asked = ask(
        model,
        weights=weights,
        partition=partition,
        pad=pad,
        shapes=shapes,
        constants=constants,
        input_data=input_data,
        example_inputs=example_inputs,
    )
    check_new(output)
    check_rpc(rpc, rpc_key)
    file = lock_file(lock, folder=is_several(model))
    location = output / STORE if store is None else _absolute(store_location(store))
    if store is not None:
        check_location(location)
    import_tvm_without_torch()
    resolved = resolve_target(target, threads, dtype)
    # A measurer of the user's need not know that programs may come later.
    cores = available_cores() if parts.measurer.is_ours and rpc is None else 0
    chosen = choose(gpu=resolved.gpu is not None, fleet=fleet is not None, cores=cores)
    if parts.measurer.is_ours:
        check_gpu(resolved, rpc)
        check_fleet(fleet, resolved)
    with starting_early(resolved, parts.measurer.name):
        models = read_models(asked, resolved)
        operators = session_operators(models)
        described = [one.to_json(read) for one, read in zip(asked, models, strict=True)]
        options = {
            "settings": chosen.to_json(),
            "measurer": parts.measurer.name,
            "budget": limits.to_json(),
            "target": target,
            "dtype": dtype,
            "threads": threads,
            "rpc": [rpc, rpc_key],
            "fleet": fleet,
            **({"models": described} if is_several(model) else described[0]),
        }
        hardware = describe_hardware(resolved, rpc_key, parts.measurer.name)
        with (
            show_progress(progress) as views,
            _new_session(output, location, models, operators, hardware, options) as (directory, opened),
        ):
            watcher = _with_messages(_broadcast([*callbacks, *views]), models)
            for one in models:
                directory.keep_inputs(one.input_data, one.name)
            return SessionRun(directory, opened, models, operators, resolved, parts, watcher, began, file, fleet).run()


def resume(
    directory: str | Path,
    *,
    model: Any = None,
    example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    budget: str | float | None = None,
    trials: int | None = None,
    until_latency: str | float | None = None,
    until_gain_below: str | float | None = None,
    callbacks: Sequence[Watcher] = (),
    lock: str | Path | None = None,
    progress: bool | None = None,
    scheduler: AnyScheduler | None = None,
    search: AnySearch | None = None,
    cost: AnyCostModel | None = None,
    measurer: AnyMeasurer | None = None,
    fleet: str | None = None,
) -> TuningResult:
    """Go on with an interrupted session, or give a finished one more: a budget given here replaces the old one and
    counts from now. `model` is needed if the session's was not a file or of the zoo (of several models, a mapping of
    these from their names), and so is each of `scheduler`, `search`, `cost` and `measurer` that was no name. `fleet`
    is where a session on a fleet goes on, if not on the one it began on.
    """
    began = time.monotonic()
    folder = SessionDirectory.read(directory)
    file = lock_file(lock, folder=bool(folder.models))
    with show_progress(progress) as views, open_store(folder) as opened, opened.own(folder.session):
        record = opened.session(folder.session)
        options = record.options
        settings = Settings.from_json(options["settings"])
        rpc, rpc_key = options.get("rpc", (None, None))
        if fleet is not None and options.get("fleet") is None:
            raise SlipstreamError(f"{folder.path} was not tuned on a fleet: leave --fleet out")
        fleet = fleet or options.get("fleet")
        stored = {"scheduler": settings.scheduler, "search": settings.search, "cost": settings.cost}
        stored["measurer"] = options.get("measurer") or _default_measurer(rpc, fleet)
        given = {"scheduler": scheduler, "search": search, "cost": cost, "measurer": measurer}
        parts = Plugins(**{k: plugins.choose_again(k, stored[k], given[k], directory) for k in plugins.KINDS})
        asked = ask_again(record, folder, model, example_inputs)
        import_tvm_without_torch()
        resolved = resolve_target(options["target"], options["threads"], options.get("dtype", "float32"))
        if opened.add_hardware(describe_hardware(resolved, rpc_key, stored["measurer"])) != record.hardware:
            raise SlipstreamError(
                f"{folder.path} was tuned on other hardware ({_hardware_name(opened, record)}); "
                "measurements do not carry over: start a new session here"
            )
        check_fleet(fleet, resolved)
        with starting_early(resolved, parts.measurer.name):
            models = read_models(asked, resolved)
            operators = session_operators(models)
            _must_know(operators, opened.session_operators(record.id), folder)
            now = Budget.of(budget, trials, until_latency, until_gain_below)
            if now != Budget():
                limits = _more(now, record, opened)
                save(opened, record.id, BUDGET, limits.to_json())
            opened.update_session(folder.session, status="running")
            watcher = _with_messages(_broadcast([*callbacks, *views]), models)
            return SessionRun(folder, opened, models, operators, resolved, parts, watcher, began, file, fleet).run()


def _must_know(operators: Sequence[Operator], known: Mapping[str, int], folder: SessionDirectory) -> None:
    """Another version may divide a model into other operators than those that the session has measured."""
    keys = {operator.key for operator in operators}
    new, gone = len(keys - set(known)), len(set(known) - keys)
    if new or gone:
        raise SlipstreamError(
            f"{folder.path} was tuned by a version of Slipstream or TVM that divided the model into other operators: "
            f"{new} of {len(keys)} are new, {gone} of {len(known)} are gone. Nothing of it is lost. To go on, tune "
            f"into a new folder; '--store {folder.store}' keeps what was measured of the others"
        )


def describe_hardware(target: Target, rpc_key: str | None = None, measurer: str = "local") -> dict[str, Any]:
    """What has to be equal for measurements to be comparable. Remote devices are what their key says they are, and
    what a measurer that is not ours measures on is named after it.
    """
    if measurer not in plugins.names("measurer"):
        return describe_hardware(target, rpc_key) | {"measurer": measurer}
    if target.gpu is not None:
        return describe_gpu(target.gpu)
    described = describe_cpu(target)
    return described if rpc_key is None else {**described, "machine": f"remote devices with the key {rpc_key}"}


def _parts(settings: Settings, given: Mapping[str, Any], measurer: Any, rpc: str | None, fleet: str | None) -> Plugins:
    """What the settings name, and the objects that were given where the settings name these."""
    named = {kind: getattr(settings, kind) for kind in given}
    choices = {kind: given[kind] if plugins.stored_name(given[kind]) == named[kind] else named[kind] for kind in given}
    default = _default_measurer(rpc, fleet)
    choices["measurer"] = default if measurer is None else measurer
    parts = Plugins(**{kind: plugins.choose(kind, choices[kind]) for kind in plugins.KINDS})
    if parts.measurer.is_ours and parts.measurer.name != default:
        raise plugins.PluginError(_MEASURER_NEEDS[parts.measurer.name].format(default=default))
    return parts


_MEASURER_NEEDS = {
    "local": "the measurer 'local' measures on this machine: leave --{default} out, or choose the measurer '{default}'",
    "rpc": "the measurer 'rpc' needs --rpc HOST:PORT and --rpc-key NAME: the tracker and the key of its devices",
    "fleet": "the measurer 'fleet' needs --fleet ADDRESS: of a Ray cluster",
}


def _default_measurer(rpc: str | None, fleet: str | None = None) -> str:
    if rpc is not None and fleet is not None:
        raise SlipstreamError("--rpc and --fleet are two ways to measure elsewhere: choose one")
    return "fleet" if fleet is not None else "local" if rpc is None else "rpc"


@contextlib.contextmanager
def _new_session(
    output: Path,
    store: StoreLocation,
    models: Sequence[SessionModel],
    operators: Sequence[Operator],
    described: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[tuple[SessionDirectory, Store]]:
    from slipstream.session.operator_trials import operator_record

    fingerprint = fingerprint_of(models)
    if any(one.model.finish is None for one in models):
        check_executable(output)  # the compiled models are loaded from there to verify them
    with beginning(output), Store.open(store) as opened:
        hardware = opened.add_hardware(described)
        opened.add_model(fingerprint, title_of(models), ", ".join(one.model.source for one in models))
        opened.add_operators(map(operator_record, operators))
        session = opened.create_session(fingerprint, hardware, options, {o.key: o.weight for o in operators})
        directory = SessionDirectory(output, store, session, tuple(one.name for one in models if one.name))
        with opened.own(session):
            directory.write()
            yield directory, opened


def _priors_name(priors: str | Path | None) -> str | None:
    """What a session stores of it."""
    return priors if priors in (None, "shipped") else str(Path(priors).absolute())


def _absolute(store: StoreLocation) -> StoreLocation:
    return store.absolute() if isinstance(store, Path) else store


def _more(budget: Budget, record: SessionRecord, store: Store) -> Budget:
    """A budget that counts from now, as one that counts from the beginning."""
    used = count_answered(store.trials(session=record.id)) if budget.trials is not None else 0
    return replace(
        budget,
        seconds=None if budget.seconds is None else budget.seconds + record.elapsed,
        trials=None if budget.trials is None else budget.trials + used,
    )


def _hardware_name(store: Store, record: SessionRecord) -> str:
    described = store.hardware(record.hardware)
    threads = f", {described.get('threads')} threads" if described.get("kind") == "cpu" else ""
    return f"{described.get('machine')}{threads}"


def _broadcast(callbacks: Sequence[Watcher]) -> Watcher:
    """One watcher for all; one that fails is logged once and left out from then on."""
    alive = list(callbacks)

    def watch(event: Event, snapshot: Snapshot) -> None:
        for callback in list(alive):
            try:
                callback(event, snapshot)
            except Exception:
                alive.remove(callback)
                logger.exception("a callback failed and is not called again")

    return watch


def _with_messages(watcher: Watcher, models: Sequence[SessionModel]) -> Watcher:
    """The same watcher, given what there is to say about the models as messages once the session has started."""

    def watch(event: Event, snapshot: Snapshot) -> None:
        watcher(event, snapshot)
        if event.kind == "started":
            for text in (one.said(text) for one in models for text in one.messages):
                watcher(Event("message", event.elapsed, {"text": text}), snapshot)

    return watch
