"""`slipstream.tune` and `slipstream.resume`: from a model to a tuned, compiled, verified one."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.errors import BuildError, SlipstreamError, VerificationError
from slipstream.frontends import Model, load_model
from slipstream.measure.choose import check_gpu, check_rpc
from slipstream.measure.choose import make_measurer as make_measurer_for
from slipstream.program.decisions import to_json
from slipstream.session.budget import BUDGET, Budget, budget_of
from slipstream.session.directory import STORE, SessionDirectory, check_new, open_store
from slipstream.session.events import Event, OperatorProgress, Snapshot, Watcher
from slipstream.session.interrupt import Interrupt
from slipstream.session.kept import BANDWIDTH, FAMILIES, PEAK_FLOPS, WINNERS
from slipstream.session.result import TunedOperator, TuningResult
from slipstream.session.settings import Settings, make_settings
from slipstream.store import OperatorRecord, SessionRecord, Store
from slipstream.store.database import check_path
from slipstream.target import Target, resolve_target

logger = logging.getLogger(__name__)

MakeMeasurer = Callable[[Target, Mapping[str, str]], Any]
_END_TO_END_SECONDS = 1.5
_FIXED_RESERVE = 3.0
_LARGEST_RESERVE = 0.25
_SETTLE_SHARE = 0.1


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
        work = _Work(directory, opened, loaded, prepared, resolved, chosen, limits, watcher, began, 0.0)
        return work.run(make_measurer or _measurer(rpc, rpc_key))


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
        work = _Work(folder, opened, loaded, prepared, resolved, settings, limits, watcher, began, record.elapsed)
        return work.run(make_measurer or _measurer(rpc, rpc_key))


def describe_hardware(target: Target, rpc_key: str | None = None) -> dict[str, Any]:
    """What has to be equal for measurements to be comparable. Remote devices are what their key says they are."""
    from slipstream.hardware import cpu_model

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
    from slipstream.native_output import quiet_native_code

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


@dataclass
class _Work:
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

    def run(self, make_measurer: MakeMeasurer) -> TuningResult:
        from slipstream import cost, schedulers, search
        from slipstream.graph.operators import extract_operators
        from slipstream.measure import reference_text
        from slipstream.program.space import Space, StockSpace
        from slipstream.session.kinship import elders_of, families_of, kin_of
        from slipstream.session.loop import Room, Session
        from slipstream.session.track import make_tracks
        from slipstream.session.winners import best_programs, settle_near_ties

        settings = self.settings
        operators = {o.key: o for o in extract_operators(self.prepared)}
        space = StockSpace if "own_sketches" in settings.without else Space
        rooms = {key: Room(o, space(key, o.func, self.target)) for key, o in operators.items()}
        families = families_of(rooms, settings.families)
        kin = kin_of(rooms, families)
        tracks = make_tracks(
            {k: o.weight for k, o in operators.items()},
            {k: o.name for k, o in operators.items()},
            {k: o.flops for k, o in operators.items()},
            {key: tuple(other for other, _ in others) for key, others in kin.items()},
        )
        record = self.store.session(self.directory.session)
        snapshot = self._snapshot([track.row for track in tracks.by_key.values()])
        self._tell("started", snapshot, model=self.model.name, operators=len(operators), settings=settings.to_json())
        peak = self._peak_flops()
        self._keep(FAMILIES, [{"prior": f.prior, "similarity": dict(f.similarity)} for f in families])
        references = {key: reference_text(o.func) for key, o in operators.items()}
        search_threads = 1 if settings.deterministic else self.target.threads
        with Interrupt() as interrupt, contextlib.closing(make_measurer(self.target, references)) as measurer:
            session = Session(
                store=self.store,
                session=record.id,
                hardware=record.hardware,
                rooms=rooms,
                tracks=tracks,
                measurer=measurer,
                scheduler=schedulers.make(
                    settings.scheduler,
                    seed=settings.seed,
                    slot_trials=settings.slot_trials,
                    peak_flops=peak,
                    **settings.scheduler_options(),
                ),
                search=search.make(
                    settings.search,
                    threads=search_threads,
                    population=settings.population,
                    generations=settings.generations,
                    without=settings.without,
                ),
                cost=cost.make(settings.cost, seed=settings.seed, threads=1),
                settings=settings,
                budget=self.budget,
                snapshot=snapshot,
                watcher=self.watcher,
                stop=interrupt.asked,
                kin=kin,
                priors={f.prior: [key for key in f.members if key != f.prior] for f in families},
                elders=elders_of(rooms, self.store, record.hardware),
                elapsed=self.elapsed_before + time.monotonic() - self.began,
            )
            session.reserve = self._reserve(session)
            reason = session.run()
            self.store.update_session(record.id, elapsed=session.elapsed, status="interrupted")
            winners = best_programs(session)
            if reason != "interrupted":
                session.phase("settle")
                settle_near_ties(session, measurer, winners, _SETTLE_SHARE * session.elapsed)
        return self._finish(session, reason, winners)

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
        from slipstream.hardware import measure_bandwidth

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
        from slipstream.cuda_speed import measure_in_child

        speed = measure_in_child()
        return speed.tensor_flops if target.is_half else speed.flops
    from slipstream.hardware import measure_peak_flops

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
