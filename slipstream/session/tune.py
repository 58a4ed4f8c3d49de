"""`slipstream.tune` and `slipstream.resume`: from a model to a tuned, compiled, verified one."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream import plugins
from slipstream.artifact.compile import verification_feeds
from slipstream.artifact.lock import lock_file
from slipstream.artifact.padding_check import check_padding
from slipstream.errors import SlipstreamError
from slipstream.frontends import Model, load_model
from slipstream.frontends.inputs import Array
from slipstream.frontends.model import describe_parts
from slipstream.frontends.shape_lists import Shapes, shape_sets
from slipstream.frontends.shape_variants import variant_labels
from slipstream.machine.hardware import describe_cpu, describe_gpu
from slipstream.machine.target import Target, resolve_target
from slipstream.measure.choose import check_fleet, check_gpu, check_rpc
from slipstream.plugins import Plugins
from slipstream.session.budget import BUDGET, Budget, budget_of
from slipstream.session.directory import STORE, SessionDirectory, check_new, open_store
from slipstream.session.events import Event, Snapshot, Watcher
from slipstream.session.result import TuningResult
from slipstream.session.run import SessionRun
from slipstream.session.settings import Settings, make_settings
from slipstream.session.show_progress import show_progress
from slipstream.store import OperatorRecord, SessionRecord, Store
from slipstream.store.database import check_path

if TYPE_CHECKING:
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
    seed: int = 0,
    deterministic: bool = False,
    settings: Mapping[str, Any] | None = None,
    target: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    rpc: str | None = None,
    rpc_key: str | None = None,
    fleet: str | None = None,
    store: str | Path | None = None,
    example_inputs: Sequence[Any] | None = None,
    shapes: Shapes | None = None,
    pad: bool = False,
    constants: Mapping[str, float] | None = None,
    partition: bool = True,
    input_data: dict[str, Array] | None = None,
    callbacks: Sequence[Watcher] = (),
    lock: str | Path | None = None,
    progress: bool | None = None,
) -> TuningResult:
    """Tune `model` (anything `load_model` takes) and compile it with the best programs found.

    `output` becomes the session's directory: its store (unless `store` names a shared one) and the compiled model.
    Tuning ends when the first of `budget` (seconds, or text such as "5m"), `trials` and `until_latency` is used up, or
    when it is likely that less than `until_gain_below` (0.02, or "2%") of the latency is left to gain; without any,
    when nothing improves any more. `scheduler`, `search`, `cost` and `measurer` are names, objects, or
    callables that take a `slipstream.plugins.Context`. `fleet` is the address of a Ray cluster whose nodes build and
    measure (docs/fleet.md). `settings` sets any other field of `Settings` by its name.
    `dtype` "float16", "bfloat16" or "tf32" computes a float32 model on the tensor cores of a GPU. What cannot be
    compiled runs in ONNX Runtime, unless `partition` is False. With `input_data`, by name, the model is run on nothing
    else; what it does not name is random. `shapes` with lists or ranges (docs/shapes.md) are tuned together and make
    one artifact; with `pad`, it fills inputs of other shapes up to the next larger one. `callbacks` get every event and
    a snapshot of the session. `lock` names a file for what was chosen, from which `slipstream.compile` rebuilds the
    same. Progress is shown in a notebook unless `progress` is False, and elsewhere, on standard error, if it is True.
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
        seed=seed,
        deterministic=deterministic,
        others=settings or {},
    )
    chosen = choose()
    parts = _parts(chosen, {"scheduler": scheduler, "search": search, "cost": cost}, measurer, rpc, fleet)
    check_new(output)
    check_rpc(rpc, rpc_key)
    file = lock_file(lock)
    if store is not None:
        check_path(Path(store), create=True)
    resolved = resolve_target(target, threads, dtype)
    if resolved.gpu is not None or fleet is not None:
        chosen = choose(gpu=resolved.gpu is not None, fleet=fleet is not None)
    if parts.measurer.is_ours:
        check_gpu(resolved, rpc)
        check_fleet(fleet, resolved)
    sets = shape_sets(shapes)
    load: dict[str, Any] = {
        "shapes": (sets if len(sets) > 1 else sets[0]) or None,
        "constants": constants,
        "partition": partition,
    }
    loaded = (
        model
        if isinstance(model, Model)
        else load_model(model, example_inputs=example_inputs, input_data=input_data, **load)
    )
    options = {
        "settings": chosen.to_json(),
        "measurer": parts.measurer.name,
        "budget": limits.to_json(),
        "target": target,
        "dtype": dtype,
        "threads": threads,
        "rpc": [rpc, rpc_key],
        "fleet": fleet,
        "source": loaded.source,
        "load": load,
        "pad": pad,
    }
    # What is wrong with them is better said now than when the session is over.
    verification_feeds(loaded, input_data)
    if pad:
        check_padding(loaded)
    prepared, messages = _prepare(loaded, resolved)
    hardware = describe_hardware(resolved, rpc_key, parts.measurer.name)
    with (
        show_progress(progress) as views,
        _new_session(output, store, loaded, prepared, hardware, options) as (directory, opened),
    ):
        watcher = _with_messages(_broadcast([*callbacks, *views]), messages)
        directory.keep_inputs(input_data)
        run = SessionRun(
            directory,
            opened,
            loaded,
            prepared,
            resolved,
            chosen,
            limits,
            watcher,
            began,
            0.0,
            parts,
            rpc,
            rpc_key,
            input_data,
            pad,
            file,
            fleet,
        )
        return run.run()


def resume(
    directory: str | Path,
    *,
    model: Any = None,
    example_inputs: Sequence[Any] | None = None,
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
) -> TuningResult:
    """Go on with an interrupted session, or give a finished one more: a budget given here replaces the old one and
    counts from now. `model` is needed if the session's was not a file or of the zoo, and so is each of `scheduler`,
    `search`, `cost` and `measurer` that was no name.
    """
    began = time.monotonic()
    folder = SessionDirectory.read(directory)
    file = lock_file(lock)
    with show_progress(progress) as views, open_store(folder) as opened, opened.own(folder.session):
        record = opened.session(folder.session)
        options = record.options
        settings = Settings.from_json(options["settings"])
        rpc, rpc_key = options.get("rpc", (None, None))
        fleet = options.get("fleet")
        stored = {"scheduler": settings.scheduler, "search": settings.search, "cost": settings.cost}
        stored["measurer"] = options.get("measurer") or _default_measurer(rpc, fleet)
        given = {"scheduler": scheduler, "search": search, "cost": cost, "measurer": measurer}
        parts = Plugins(**{k: plugins.choose_again(k, stored[k], given[k], directory) for k in plugins.KINDS})
        input_data = folder.read_inputs()
        loaded = _load_again(record, model, example_inputs, input_data)
        resolved = resolve_target(options["target"], options["threads"], options.get("dtype", "float32"))
        if opened.add_hardware(describe_hardware(resolved, rpc_key, stored["measurer"])) != record.hardware:
            raise SlipstreamError(
                f"{folder.path} was tuned on other hardware ({_hardware_name(opened, record)}); "
                "measurements do not carry over: start a new session here"
            )
        limits = budget_of(opened, record)
        now = Budget.of(budget, trials, until_latency, until_gain_below)
        if now != Budget():
            limits = _more(now, record, opened)
            opened.put_state(record.id, BUDGET, 0, json.dumps(limits.to_json()).encode())
        opened.update_session(folder.session, status="running")
        prepared, messages = _prepare(loaded, resolved)
        watcher = _with_messages(_broadcast([*callbacks, *views]), messages)
        run = SessionRun(
            folder,
            opened,
            loaded,
            prepared,
            resolved,
            settings,
            limits,
            watcher,
            began,
            record.elapsed,
            parts,
            rpc,
            rpc_key,
            input_data,
            options.get("pad", False),
            file,
            fleet,
        )
        return run.run()


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


def _prepare(model: Model, target: Target) -> tuple[tuple[Any, ...], list[str]]:
    """The prepared modules, and a message for each part of a model that was cut and for each pass that was left out."""
    from slipstream.artifact.compile import check_partition, tvm_errors
    from slipstream.graph.prepare import prepare_parts
    from slipstream.tvm_bridge.native_output import quiet_native_code

    check_partition(model, target)
    with tvm_errors(model.name), quiet_native_code():
        prepared, reports = prepare_parts(model, target)
    cut = [
        f"{label and f'{label}: '}{name}, {nodes} nodes: {by}{why and f' ({why})'}"
        for variant, label in zip(model.shape_variants, variant_labels(model), strict=True)
        for name, by, nodes, why in describe_parts(variant.parts)
    ]
    return prepared, cut + [report.warning for report in reports if report.warning]


@contextlib.contextmanager
def _new_session(
    output: Path,
    store: str | Path | None,
    model: Model,
    prepared: Sequence[Any],
    described: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[tuple[SessionDirectory, Store]]:
    from slipstream.graph.operators import extract_operators
    from slipstream.measure import reference_text

    operators = extract_operators(*prepared)
    output.mkdir(parents=True, exist_ok=True)
    path = Path(store).absolute() if store is not None else output / STORE
    with Store.open(path) as opened:
        hardware = opened.add_hardware(described)
        opened.add_model(model.fingerprint, model.name, model.source)
        opened.add_operators(
            OperatorRecord(o.key, o.name, o.kinds, o.flops, o.bytes, o.shapes, reference_text(o.func))
            for o in operators
        )
        session = opened.create_session(model.fingerprint, hardware, options, {o.key: o.weight for o in operators})
        directory = SessionDirectory(output, path, session)
        with opened.own(session):
            directory.write()
            yield directory, opened


def _load_again(
    record: SessionRecord, model: Any, example_inputs: Sequence[Any] | None, input_data: dict[str, Array] | None
) -> Model:
    options = record.options
    if model is None:
        source = options["source"]
        if not source.startswith("zoo:") and not Path(source).exists():
            raise SlipstreamError(
                f"the session's model {source!r} is not there any more: put it back, or pass it to slipstream.resume"
            )
        model = source
    loaded = (
        model
        if isinstance(model, Model)
        else load_model(model, example_inputs=example_inputs, input_data=input_data, **options["load"])
    )
    if loaded.fingerprint != record.model:
        raise SlipstreamError(
            f"{loaded.source} is not the model this session was started with (its content has changed): "
            "start a new session"
        )
    return loaded


def _more(budget: Budget, record: SessionRecord, store: Store) -> Budget:
    """A budget that counts from now, as one that counts from the beginning."""
    used = sum(1 for _ in store.trials(session=record.id)) if budget.trials is not None else 0
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


def _with_messages(watcher: Watcher, texts: Sequence[str]) -> Watcher:
    """The same watcher, given `texts` as messages once the session has started."""

    def watch(event: Event, snapshot: Snapshot) -> None:
        watcher(event, snapshot)
        if event.kind == "started":
            for text in texts:
                watcher(Event("message", event.elapsed, {"text": text}), snapshot)

    return watch
