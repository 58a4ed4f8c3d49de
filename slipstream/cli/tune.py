"""`slipstream tune`, `slipstream resume` and `slipstream status`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slipstream import plugins
from slipstream.cli.errors import INTERRUPTED, fail, one_line_errors
from slipstream.cli.model_arguments import models_argument, own_options, read_models
from slipstream.cli.options import (
    CHOICES,
    StoreParameter,
    dtype_option,
    pad_option,
    partition_option,
    plugin_options,
    rpc_options,
    target_option,
    threads_option,
)
from slipstream.cli.quantize import calibration_option, quantized_model, refuse_quantizing

if TYPE_CHECKING:
    from slipstream.session.result import TuningResult


def _one_thread_for_numpy() -> None:
    """The session's own matrices are small: a second thread of OpenBLAS would burn a core that builds programs."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--until-gain-below", metavar="SHARE", help="Stop when less than this is likely to be left to gain: 2%."
        ),
        click.option("--until-latency", metavar="TIME", help="Stop when the operators' sum is at most this: 20ms."),
        click.option("--trials", type=click.IntRange(min=1), help="Stop after so many programs were measured."),
        click.option("--budget", metavar="TIME", help="Wall-clock time for everything: 90s, 5m, 1h30m."),
    ):
        command = option(command)
    return command


_lock_option = click.option(
    "--lock",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Record what was chosen; 'slipstream compile --lock FILE' rebuilds it, 'slipstream check' watches it.",
)
_serve_option = click.option("--serve", "live_page", is_flag=True, help="Show it live as a web page on this machine.")


def _view_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @click.option("--json", "as_json", is_flag=True, help="Print every event as a line of JSON.")
    @click.option("--quiet", is_flag=True, help="Print the result only.")
    @click.option("--plain", is_flag=True, help="Print lines, also on a terminal.")
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, quiet: bool, plain: bool, **kwargs: Any) -> Any:
        if as_json + quiet + plain > 1:
            raise click.UsageError("--json, --quiet and --plain are different views: choose one")
        mode = "json" if as_json else "quiet" if quiet else "plain" if plain else "auto"
        return command(*args, mode=mode, **kwargs)

    return wrapped


class _TuneCommand(click.Command):
    """Its help ends with the names that can be chosen, those of other packages included."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from slipstream.session.settings import PARTS, Settings

        super().format_options(ctx, formatter)
        for kind, heading in CHOICES.items():
            default = getattr(Settings, kind, "local")
            rows = [(o.name, o.about + ("  [default]" if o.name == default else "")) for o in plugins.offers(kind)]
            with formatter.section(f"--{kind} NAME, {heading}"):
                formatter.write_dl(rows)
        with formatter.section("--without PARTS, separated by commas"):
            formatter.write_dl(list(PARTS.items()))


@click.command("tune", cls=_TuneCommand)
@models_argument
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory of the session and its result."
)
@_budget_options
@click.option("--effort", default="normal", show_default=True, metavar="quick|normal|max", help="How thoroughly.")
@click.option("--preset", metavar="metaschedule", help="Tune as TVM's MetaSchedule does, to compare with.")
@plugin_options
@click.option(
    "--evaluation",
    metavar="racing|adatune|fixed",
    help="When a program has been timed enough: see docs/measuring.md. [default: racing]",
)
@click.option("--without", metavar="PARTS", help="Leave out parts of the method, to see what each is worth: see below.")
@click.option("--priors", type=click.Path(path_type=Path), metavar="FILE", help="Start from what 'store distil' wrote.")
@click.option("--no-priors", is_flag=True, help="Start from nothing but the store, without the package's priors.")
@click.option("--seed", default=0, show_default=True, help="Seed of everything random.")
@click.option("--deterministic", is_flag=True, help="Same seed, same proposals, at the cost of some speed.")
@click.option(
    "--store",
    type=StoreParameter(),
    metavar="FILE|URL",
    help="A store to share with other sessions: a file, or postgresql://USER@HOST/DATABASE.",
)
@_lock_option
@_serve_option
@rpc_options
@click.option("--fleet", metavar="auto|HOST:PORT|ray://HOST:PORT", help="Build and measure on a Ray cluster's nodes.")
@own_options
@target_option
@dtype_option
@calibration_option
@threads_option
@pad_option
@partition_option
@_view_options
@one_line_errors
def tune_command(
    models: tuple[str, ...],
    output: Path,
    weights: tuple[str, ...],
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
    input_data: tuple[str, ...],
    calibration: Path | None,
    live_page: bool,
    mode: Any,
    without: str | None,
    priors: Path | None,
    no_priors: bool,
    **options: Any,
) -> None:
    """Tune MODEL on this machine, then compile it with the best programs found, verified.

    MODEL is an ONNX file, a saved torch.export program (.pt2), or zoo:NAME. Tuning ends when the first budget given
    is used up; without one, when nothing improves any more. Ctrl-C ends it early and keeps the best so far; a
    session that was killed goes on with 'slipstream resume DIR'.

    Several models are tuned together and have an artifact each in a folder of their name. NAME=MODEL names one
    yourself; --shape, --constant and --input-data then begin with a name: bert:ids=1x128.
    """
    if priors is not None and no_priors:
        raise click.UsageError("--priors and --no-priors exclude each other: choose one")
    _one_thread_for_numpy()
    given, own = read_models(models, weights, shapes, constants, input_data)
    settings = {"without": [part.strip() for part in without.split(",")]} if without else None
    if isinstance(given, str):
        to_stderr = mode in ("json", "quiet")
        given = quantized_model(
            given, output, calibration, options, lambda: _check(output, settings, options), to_stderr=to_stderr
        )
    else:
        refuse_quantizing(calibration, options)

    def work(watcher: Any) -> TuningResult:
        from slipstream.session.tune import tune

        start = None if no_priors else priors or "shipped"
        return tune(given, output, callbacks=[watcher], priors=start, settings=settings, **options, **own)

    _show(work, output, mode, live_page, options["lock"])


def _check(output: Path, settings: dict[str, Any] | None, options: dict[str, Any]) -> None:
    """Refuse what `tune` would, as far as it is known without the model."""
    from slipstream.artifact.lock import lock_file
    from slipstream.session.budget import Budget
    from slipstream.session.directory import check_new
    from slipstream.session.settings import make_settings

    Budget.of(*(options[name] for name in ("budget", "trials", "until_latency", "until_gain_below")))
    names = ("preset", "effort", "scheduler", "search", "cost", "evaluation", "seed", "deterministic")
    make_settings(**{name: options[name] for name in names}, others=settings or {})
    check_new(output.absolute())
    lock_file(options["lock"])


@click.command("resume")
@click.argument("directory", type=click.Path(path_type=Path))
@_budget_options
@click.option("--fleet", metavar="auto|HOST:PORT|ray://HOST:PORT", help="Go on on this fleet, not on the one before.")
@_lock_option
@_serve_option
@_view_options
@one_line_errors
def resume_command(directory: Path, live_page: bool, mode: Any, **options: Any) -> None:
    """Continue the session in DIRECTORY; nothing is measured twice. A budget given here counts from now."""
    _one_thread_for_numpy()

    def work(watcher: Any) -> TuningResult:
        from slipstream.session.tune import resume

        return resume(directory, callbacks=[watcher], **options)

    _show(work, directory, mode, live_page, options["lock"])


@click.command("status")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@one_line_errors
def status_command(directory: Path, as_json: bool) -> None:
    """Show the progress of the session in DIRECTORY, whether it is running or not."""
    from slipstream.session.directory import SessionDirectory, open_store
    from slipstream.session.shapes import shape_latencies
    from slipstream.session.status import snapshot_of, state_of

    folder = SessionDirectory.read(directory)
    with open_store(folder, read_only=True) as store:
        record, snapshot = store.session(folder.session), snapshot_of(store, folder.session)
        state = state_of(store, record)
    whole = {row["shape"]: row["end_to_end"] for row in record.result.get("shapes", ())}
    shapes = shape_latencies(snapshot.calls, snapshot.operators, whole, snapshot.weights)
    if as_json:
        import json
        from dataclasses import asdict

        from slipstream.cli.tune_json import finite

        found = {"status": state, **asdict(snapshot), "shapes": [asdict(shape) for shape in shapes]}
        click.echo(json.dumps(finite(found), indent=1))
        return
    from rich.console import Console

    from slipstream.cli.tune_frame import frame
    from slipstream.cli.tune_result import shape_table

    console = Console(highlight=False)
    for line in frame(snapshot, console.width, max(console.height - 2, 24), final=True):
        console.print(line, no_wrap=True)
    for part in shape_table(shapes, snapshot):
        console.print(part)
    written = ", ".join(str(artifact) for artifact in folder.artifacts if artifact.is_dir())
    click.echo(f"{state}; the compiled model{'s' if snapshot.weights else ''}: {written or 'not written yet'}")
    if state in ("interrupted", "killed"):
        click.echo(f"go on with: slipstream resume {directory}")


@contextlib.contextmanager
def _live_page(directory: Path, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    from slipstream.report.live_process import serving

    with serving(directory) as url:
        click.echo(f"live page: {url}", err=True)
        yield


def _show(work: Callable[[Any], TuningResult], directory: Path, mode: Any, live_page: bool, lock: Path | None) -> None:
    """Run a session with a view of its progress, then print the result."""
    from slipstream.cli.tune_view import make_view
    from slipstream.store import StoreUnreachableError

    try:
        with _live_page(directory, live_page), make_view(mode) as view:
            result = work(view)
    except KeyboardInterrupt:
        from slipstream.session.directory import SESSION

        if not (directory / SESSION).exists():
            raise  # nothing has begun
        message = f"interrupted; everything measured is kept: slipstream resume {directory} goes on"
        fail(message, INTERRUPTED, "", debug=False)
    except StoreUnreachableError as error:
        from slipstream.session.directory import SESSION

        if not (directory / SESSION).exists():
            raise
        raise StoreUnreachableError(f"{error}; then slipstream resume {directory} goes on") from error
    if mode == "json":
        return
    from rich.console import Console

    from slipstream.cli.tune_result import render_result
    from slipstream.session.result import UNFINISHED

    Console(highlight=False).print(render_result(result.snapshot, result.end_to_end, result.shapes))
    several = bool(result.snapshot.weights)
    places = [str(directory / model.directory.name) for model in result.models]
    verb = "models are" if len(places) > 1 else "model is"
    click.echo(f"\n{result.reason}; the compiled {verb} in {', '.join(places)}")
    if result.reason in UNFINISHED:
        click.echo(f"everything measured is kept: slipstream resume {directory} goes on")
    compared = f"one: slipstream bench {places[0]}" if several else f"it: slipstream bench {directory}"
    click.echo(f"compare {compared} --against onnxruntime")
    click.echo(f"see how it went: slipstream report {directory}")
    if lock is not None:
        file = lock / f"{result.models[0].name}.lock" if several else lock
        click.echo(f"recorded in {lock}: slipstream compile MODEL -o DIR --lock {file} rebuilds it")
