"""The models of `slipstream tune` and the options that are each model's own: `--weight`, `--shape`, `--constant` and
`--input-data`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from slipstream.cli.options import (
    F,
    ModelArgument,
    constant_option,
    named_arrays,
    parse_constants,
    parse_shapes,
    shape_option,
)
from slipstream.errors import InputError

models_argument = click.argument("models", type=ModelArgument(), nargs=-1, required=True, metavar="MODEL...")


def own_options(command: F) -> F:
    """Options that, of several models, begin with the model they are for: `--shape bert:ids=1x128`."""
    weight = click.option(
        "--weight",
        "weights",
        multiple=True,
        metavar="MODEL=3",
        help="Of several models, how often this one runs, compared with the others (repeatable). [default: 1]",
    )
    data = click.option(
        "--input-data",
        multiple=True,
        metavar="FILE.npz",
        help="Inputs by name; the model is run on nothing else (repeatable). [default: random]",
    )
    for option in (data, constant_option, shape_option, weight):
        command = option(command)
    return command


def read_models(
    texts: Sequence[str],
    weights: Sequence[str],
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
    input_data: Sequence[str],
) -> tuple[str | dict[str, str], dict[str, Any]]:
    """What `slipstream.tune` is given: the model, or several by name, and what is theirs."""
    if len(texts) == 1:
        own = {
            "shapes": parse_shapes(shapes) or None,
            "constants": parse_constants(constants) or None,
            "input_data": named_arrays(*map(Path, input_data)),
        }
        if weights:
            raise InputError("--weight is for several models: give more than one, or leave it out")
        return texts[0], own
    from slipstream.session.model_names import by_name

    models: dict[str, str] = by_name(map(_pair, texts))
    return models, {
        "weights": _weights(weights, models) or None,
        "shapes": _of_each("--shape", shapes, models, lambda own: parse_shapes(tuple(own))),
        "constants": _of_each("--constant", constants, models, lambda own: parse_constants(tuple(own))),
        "input_data": _of_each("--input-data", input_data, models, lambda own: named_arrays(*map(Path, own))),
    }


def _pair(text: str) -> tuple[str, str]:
    """`NAME=MODEL` or `MODEL`; a file whose name has an equals sign is one."""
    from slipstream.session.model_names import default_name

    name, equals, source = text.partition("=")
    return (name, source) if equals and not Path(text).exists() else (default_name(text), text)


def _weights(texts: Iterable[str], models: Mapping[str, str]) -> dict[str, int]:
    """`NAME=3`, or `MODEL=3` with the model as it was given."""
    names = {**{source: name for name, source in models.items()}, **{name: name for name in models}}
    found = {}
    for text in texts:
        name, _, count = text.rpartition("=")
        if name not in names:
            raise InputError(f"--weight {text!r} is for none of the models ({', '.join(models)}): write NAME=3")
        if not count.isdecimal() or int(count) < 1:
            raise InputError(f"--weight {text!r} makes no sense: a weight is a whole number from 1, as in {name}=3")
        found[names[name]] = int(count)
    return found


def _of_each(
    option: str, texts: Iterable[str], models: Mapping[str, str], read: Callable[[list[str]], Any]
) -> dict[str, Any] | None:
    """What was given for each of several models, by its name."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, colon, rest = text.partition(":")
        if not colon or name not in models:
            example = next(iter(models))
            raise InputError(
                f"{option} {text!r} does not say for which of the models ({', '.join(models)}): write {example}:{text}"
            )
        found.setdefault(name, []).append(rest)
    return {name: read(own) for name, own in found.items()} or None
