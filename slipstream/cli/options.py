"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from slipstream import plugins
from slipstream.errors import InputError, ShapeError, SlipstreamError, cannot_access

if TYPE_CHECKING:
    from slipstream.store import StoreLocation

F = TypeVar("F", bound=Callable[..., Any])


class ModelArgument(click.types.StringParamType):
    """A model file or `zoo:NAME`; completes both."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from slipstream.frontends import zoo

        named = [CompletionItem(f"zoo:{name}") for name in zoo.names() if f"zoo:{name}".startswith(incomplete)]
        return [*named, CompletionItem(incomplete, type="file")]


class StoreParameter(click.Path):
    """A store's file, a PostgreSQL URL, or a session's directory, which has its store inside or says where it is."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return _store_at(value)
        except SlipstreamError as error:
            self.fail(str(error), param, ctx)
        except OSError as error:
            self.fail(cannot_access(error), param, ctx)


def _store_at(value: Any) -> StoreLocation:
    from slipstream.store import store_location

    location = store_location(value)
    if not isinstance(location, Path) or not location.is_dir():
        return location
    if (location / "session.json").is_file() and not (location / "store.db").exists():
        from slipstream.session.directory import SessionDirectory

        return SessionDirectory.read(location).store
    return location / "store.db" if (location / "store.db").exists() else location


shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1x3x224x224",
    help="Fix the shape of a dynamic input (repeatable); lists (1,4,16) and ranges (1..128) make one model for all.",
)
pad_option = click.option(
    "--pad", is_flag=True, help="Fill inputs of other shapes up to the next larger --shape and cut the results back."
)
constant_option = click.option(
    "--constant", "constants", multiple=True, metavar="NAME=VALUE", help="Turn an input into a constant (repeatable)."
)
target_option = click.option(
    "--target",
    default="cpu",
    show_default=True,
    metavar="cpu|cpu:NAME|cuda|cuda:sm_90|auto",
    help="This machine's CPU, an older one by name, this machine's GPU, a GPU by architecture; auto: the GPU if any.",
)
dtype_option = click.option(
    "--dtype",
    default="float32",
    show_default=True,
    metavar="float32|float16|bfloat16|tf32|int8",
    help="What a float32 model's products are computed in: int8 (see --calibration), float16 or bfloat16 on a CPU, "
    "float16, bfloat16 or tf32 on a GPU.",
)
input_data_option = click.option(
    "--input-data",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE.npz",
    help="Inputs by name; the model is run on nothing else (repeatable). [default: random]",
)
partition_option = click.option(
    "--partition/--no-partition",
    default=True,
    show_default=True,
    help="Leave what cannot be compiled to ONNX Runtime, or refuse such a model.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads to run on [default: all cores; for a compiled model those it was compiled for].",
)


def model_options(command: F) -> F:
    """`--shape`, `--constant`, `--input-data`, `--target` and `--dtype`: how a model is read, and for what."""
    for option in (dtype_option, target_option, input_data_option, constant_option, shape_option):
        command = option(command)
    return command


CHOICES: dict[plugins.Kind, str] = {
    "scheduler": "which operator gets the next slot",
    "search": "which programs of it are measured",
    "cost": "how fast a program looks before it is measured",
    "measurer": "where programs are measured",
}


class PluginName(click.types.StringParamType):
    """The name of a scheduler, search, cost model or measurer."""

    name = "name"

    def __init__(self, kind: plugins.Kind) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = {offer.name: offer.about for offer in plugins.offers(self._kind) if offer.name.startswith(incomplete)}
        return [CompletionItem(name, help=about) for name, about in found.items()]


def plugin_options(command: F) -> F:
    """`--scheduler`, `--search`, `--cost` and `--measurer`, by name."""
    for kind, what in reversed(CHOICES.items()):
        text = f"{what[0].upper()}{what[1:]}: see below."
        command = click.option(f"--{kind}", type=PluginName(kind), metavar="NAME", help=text)(command)
    return command


def rpc_options(command: F) -> F:
    """`--rpc` and `--rpc-key`: measure on remote devices; `measure.choose` interprets them."""
    command = click.option("--rpc-key", metavar="NAME", help="The key of the devices to use.")(command)
    return click.option("--rpc", metavar="HOST:PORT", help="Measure on devices of the RPC tracker there.")(command)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, list[int]] | list[dict[str, list[int]]]:
    """`name=1x3x224x224` → {"name": [1, 3, 224, 224]}; a list of such where several shapes are given."""
    from slipstream.frontends.shape_lists import read_shape_options, shape_sets

    sets = shape_sets(read_shape_options(texts))
    return sets if len(sets) > 1 else sets[0]


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


def named_arrays(*paths: Path) -> dict[str, Any] | None:
    """The arrays of all files of `--input-data`, of two with one name the later; None if none was given."""
    found: dict[str, Any] = {}
    for path in paths:
        arrays = read_arrays(path)
        if not isinstance(arrays, dict):
            raise InputError(f"{path} holds one array without a name: save a .npz with numpy.savez(path, name=array)")
        found.update(arrays)
    return found if paths else None


def read_arrays(path: Path) -> Any:
    """The content of a `.npz` (a mapping) or `.npy` (one array) file."""
    import zipfile

    import numpy as np

    from slipstream.frontends.archives import read_archive, with_short_floats

    if not path.is_file():
        raise InputError(f"there is no file {path}: save it with numpy.save or numpy.savez")
    try:
        if zipfile.is_zipfile(path):
            return read_archive(path)
        return with_short_floats(np.load(path, allow_pickle=False))
    except PermissionError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a NumPy file ({error}): save it with numpy.save or numpy.savez") from error
