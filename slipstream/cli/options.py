"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from slipstream.errors import InputError, ShapeError, TargetError

if TYPE_CHECKING:
    from slipstream.measure.types import Measurer
    from slipstream.target import Target

F = TypeVar("F", bound=Callable[..., Any])


class ModelArgument(click.types.StringParamType):
    """A model file or `zoo:NAME`; completes both."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from slipstream.frontends import zoo

        named = [CompletionItem(f"zoo:{name}") for name in zoo.names() if f"zoo:{name}".startswith(incomplete)]
        return [*named, CompletionItem(incomplete, type="file")]


shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1x3x224x224",
    help="Fix the shape of a dynamic input (repeatable).",
)
constant_option = click.option(
    "--constant", "constants", multiple=True, metavar="NAME=VALUE", help="Turn an input into a constant (repeatable)."
)
target_option = click.option(
    "--target", default="cpu", show_default=True, metavar="cpu|cpu:NAME", help="This machine, or an older CPU by name."
)
threads_option = click.option("--threads", type=click.IntRange(min=1), help="Threads to run on [default: all cores].")


def rpc_options(command: F) -> F:
    """`--rpc` and `--rpc-key`: measure on remote devices; `make_measurer` takes their values."""
    command = click.option("--rpc-key", metavar="NAME", help="The key of the devices to use.")(command)
    return click.option("--rpc", metavar="HOST:PORT", help="Measure on devices of the RPC tracker there.")(command)


def make_measurer(
    target: Target, references: Mapping[str, str], rpc: str | None = None, rpc_key: str | None = None
) -> Measurer:
    """What measures programs of the operators in `references`: this machine, or devices behind an RPC tracker."""
    where = check_rpc(rpc, rpc_key)
    if where is None or rpc_key is None:
        from slipstream.measure import LocalMeasurer

        return LocalMeasurer(target, references)
    from slipstream.measure.rpc import RpcMeasurer

    return RpcMeasurer(*where, rpc_key, target, references=references)


def check_rpc(rpc: str | None, rpc_key: str | None) -> tuple[str, int] | None:
    """The tracker's host and port if there is one with such devices; None if this machine is meant.

    Quick and without TVM: a command calls it before anything that takes time.
    """
    if rpc is None and rpc_key is None:
        return None
    if rpc is None or rpc_key is None:
        given, missing = ("--rpc-key", "--rpc HOST:PORT") if rpc is None else ("--rpc", "--rpc-key NAME")
        raise TargetError(f"{given} needs {missing} with it: the tracker's address and the key of its devices")
    from slipstream.measure.rpc_tracker import Tracker

    host, port = parse_address(rpc)
    with Tracker(host, port) as tracker:
        keys = tracker.keys()
    if rpc_key not in keys:
        known = f"it has {', '.join(keys)}" if keys else "it has no devices at all"
        raise TargetError(
            f"the tracker at {rpc} has no device with the key {rpc_key!r} ({known}): start one with "
            f"'python -m slipstream.measure.rpc_server --tracker {rpc} --key {rpc_key}'"
        )
    return host, port


def parse_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:9190` → ("127.0.0.1", 9190)."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise TargetError(f"--rpc {text!r} makes no sense: write it as HOST:PORT, such as 127.0.0.1:9190")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, list[int]]:
    """`name=1x3x224x224` → {"name": [1, 3, 224, 224]}."""
    shapes = {}
    for text in texts:
        name, equals, extents = text.rpartition("=")
        parts = extents.lower().split("x") if extents else []
        if not equals or not name or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise ShapeError(f"--shape {text!r} makes no sense: write it as NAME=1x3x224x224, every number above zero")
        shapes[name] = [int(part) for part in parts]
    return shapes


def parse_constants(texts: tuple[str, ...]) -> dict[str, float]:
    """`rate=16000` → {"rate": 16000}."""
    constants: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            constants[name] = int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            name = ""
        if not name:
            raise ShapeError(f"--constant {text!r} makes no sense: write it as NAME=16000")
    return constants


def read_arrays(path: Path) -> Any:
    """The content of a `.npz` (a mapping) or `.npy` (one array) file."""
    import numpy as np

    if not path.is_file():
        raise InputError(f"there is no file {path}: save it with numpy.save or numpy.savez")
    try:
        content = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is not a NumPy file ({error}): save it with numpy.save or numpy.savez") from error
    return dict(content) if hasattr(content, "files") else content
