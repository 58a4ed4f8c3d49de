"""`slipstream.tune` and `slipstream.resume`: from a model to a tuned, compiled, verified one."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.frontends import Model, load_model
from slipstream.machine.target import Target, resolve_target
from slipstream.measure.choose import check_gpu, check_rpc
from slipstream.measure.choose import make_measurer as make_measurer_for
from slipstream.session.budget import BUDGET, Budget, budget_of
from slipstream.session.directory import STORE, SessionDirectory, check_new, open_store
from slipstream.session.events import Event, Snapshot, Watcher
from slipstream.session.result import TuningResult
from slipstream.session.run import MakeMeasurer, SessionRun
from slipstream.session.settings import Settings, make_settings
from slipstream.store import OperatorRecord, SessionRecord, Store
from slipstream.store.database import check_path

logger = logging.getLogger(__name__)


def tune(
    model: Any,
    output: str | Path,
    *,
    budget: str | float | None = None,
    trials: int | None = None,
    until_latency: str | float | None = None,
    preset: str | None = None,
    effort: str = "normal",
    scheduler: str | None = None,
    search: str | None = None,
    cost: str | None = None,
    seed: int = 0,
    deterministic: bool = False,
    settings: Mapping[str, Any] | None = None,
    target: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    rpc: str | None = None,
    rpc_key: str | None = None,
    store: str | Path | None = None,
    example_inputs: Sequence[Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, float] | None = None,
    callbacks: Sequence[Watcher] = (),
    make_measurer: MakeMeasurer | None = None,
) -> TuningResult:
    """Tune `model` (anything `load_model` takes) and compile it with the best programs found.

    `output` becomes the session's directory: its store (unless `store` names a shared one) and the compiled model.
    Tuning ends when the first of `budget` (seconds, or text such as "5m"), `trials` and `until_latency` is used up;
    without any, when nothing improves any more. `settings` sets any other field of `Settings` by its name.
    `dtype` "float16" computes a float32 model's products in half precision, on a GPU. `callbacks` get every event and
    a snapshot of the session.
    """
    began = time.monotonic()
    output = Path(output).absolute()
    limits = Budget.of(budget, trials, until_latency)
    choose = partial(
        make_settings,
        preset=preset,
        effort=effort,
        scheduler=scheduler,
        search=search,
        cost=cost,
        seed=seed,
        deterministic=deterministic,
        others=settings or {},
    )
    chosen = choose()
    check_new(output)
    check_rpc(rpc, rpc_key)
    if store is not None:
        check_path(Path(store), create=True)
    resolved = resolve_target(target, threads, dtype)
    if resolved.gpu is not None:
        chosen = choose(gpu=True)
    if make_measurer is None:
        check_gpu(resolved, rpc)
    watcher = _broadcast(callbacks)
    loaded = (
        model
        if isinstance(model, Model)
        else load_model(model, example_inputs=example_inputs, shapes=shapes, constants=constants)
    )
    options = {
        "settings": chosen.to_json(),
        "budget": limits.to_json(),
        "target": target,
        "dtype": dtype,
        "threads": threads,
        "rpc": [rpc, rpc_key],
        "source": loaded.source,
        "load": {"shapes": shapes and {k: list(v) for k, v in shapes.items()}, "constants": constants},
    }
    prepared = _prepare(loaded, resolved)
    hardware = describe_hardware(resolved, rpc_key)
    with _new_session(output, store, loaded, prepared, hardware, options) as (directory, opened):
        run = SessionRun(directory, opened, loaded, prepared, resolved, chosen, limits, watcher, began, 0.0)
        return run.run(make_measurer or _measurer(rpc, rpc_key))


def resume(
    directory: str | Path,
    *,
    model: Any = None,
    example_inputs: Sequence[Any] | None = None,
    budget: str | float | None = None,
    trials: int | None = None,
    until_latency: str | float | None = None,
    callbacks: Sequence[Watcher] = (),
    make_measurer: MakeMeasurer | None = None,
) -> TuningResult:
    """Go on with an interrupted session, or give a finished one more: a budget given here replaces the old one and
    counts from now. `model` is needed if the session's was not a file or of the zoo.
    """
    began = time.monotonic()
    folder = SessionDirectory.read(directory)
    with open_store(folder) as opened, opened.own(folder.session):
        record = opened.session(folder.session)
        options = record.options
        loaded = _load_again(record, model, example_inputs)
        resolved = resolve_target(options["target"], options["threads"], options.get("dtype", "float32"))
        rpc, rpc_key = options.get("rpc", (None, None))
        if opened.add_hardware(describe_hardware(resolved, rpc_key)) != record.hardware:
            raise SlipstreamError(
                f"{folder.path} was tuned on other hardware ({_hardware_name(opened, record)}); "
                "measurements do not carry over: start a new session here"
            )
        limits = budget_of(opened, record)
        if any(value is not None for value in (budget, trials, until_latency)):
            limits = _more(Budget.of(budget, trials, until_latency), record, opened)
            opened.put_state(record.id, BUDGET, 0, json.dumps(limits.to_json()).encode())
        opened.update_session(folder.session, status="running")
        prepared = _prepare(loaded, resolved)
        settings = Settings.from_json(options["settings"])
        watcher = _broadcast(callbacks)
        run = SessionRun(folder, opened, loaded, prepared, resolved, settings, limits, watcher, began, record.elapsed)
        return run.run(make_measurer or _measurer(rpc, rpc_key))


def describe_hardware(target: Target, rpc_key: str | None = None) -> dict[str, Any]:
    """What has to be equal for measurements to be comparable. Remote devices are what their key says they are."""
    from slipstream.machine.cpu import cpu_model

    if target.gpu is not None:
        # The host's CPU builds and launches; what a kernel takes is the device's business alone.
        limits = asdict(target.gpu)
        return {"kind": "cuda", "machine": limits.pop("name"), **limits}
    return {
        "kind": "cpu",
        "architecture": target.architecture,
        "machine": cpu_model() if rpc_key is None else f"remote devices with the key {rpc_key}",
        "cpu": target.cpu,
        "features": list(target.features),
        "threads": target.threads,
    }


def _measurer(rpc: str | None, rpc_key: str | None) -> MakeMeasurer:
    return lambda target, references: make_measurer_for(target, references, rpc, rpc_key)


def _prepare(model: Model, target: Target) -> Any:
    from slipstream.artifact.compile import tvm_errors
    from slipstream.graph.prepare import prepare
    from slipstream.tvm_bridge.native_output import quiet_native_code

    with tvm_errors(model.name), quiet_native_code():
        return prepare(model.module, target)[0]


@contextlib.contextmanager
def _new_session(
    output: Path,
    store: str | Path | None,
    model: Model,
    prepared: Any,
    described: dict[str, Any],
    options: dict[str, Any],
) -> Iterator[tuple[SessionDirectory, Store]]:
    from slipstream.graph.operators import extract_operators
    from slipstream.measure import reference_text

    operators = extract_operators(prepared)
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


def _load_again(record: SessionRecord, model: Any, example_inputs: Sequence[Any] | None) -> Model:
    options = record.options
    if model is None:
        source = options["source"]
        if not source.startswith("zoo:") and not Path(source).exists():
            raise SlipstreamError(
                f"the session's model {source!r} is not there any more: put it back, or pass it to slipstream.resume"
            )
        model = source
    loaded = model if isinstance(model, Model) else load_model(model, example_inputs=example_inputs, **options["load"])
    if loaded.fingerprint != record.model:
        raise SlipstreamError(
            f"{loaded.source} is not the model this session was started with (its content has changed): "
            "start a new session"
        )
    return loaded


def _more(budget: Budget, record: SessionRecord, store: Store) -> Budget:
    """A budget that counts from now, as one that counts from the beginning."""
    used = sum(1 for _ in store.trials(session=record.id)) if budget.trials is not None else 0
    return Budget(
        None if budget.seconds is None else budget.seconds + record.elapsed,
        None if budget.trials is None else budget.trials + used,
        budget.until_latency,
    )


def _hardware_name(store: Store, record: SessionRecord) -> str:
    described = store.hardware(record.hardware)
    threads = f", {described.get('threads')} threads" if described.get("kind") == "cpu" else ""
    return f"{described.get('machine')}{threads}"


def _broadcast(callbacks: Sequence[Watcher]) -> Watcher:
    """One watcher for all; one that fails is told about once and left out from then on."""
    alive = list(callbacks)

    def watch(event: Event, snapshot: Snapshot) -> None:
        for callback in list(alive):
            try:
                callback(event, snapshot)
            except Exception:
                alive.remove(callback)
                logger.exception("a callback failed and is not called again")

    return watch
