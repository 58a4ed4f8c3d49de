"""The models of a session: one, or several that are tuned together, each with a weight and an artifact of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.errors import SlipstreamError
from slipstream.frontends.inputs import Array
from slipstream.frontends.model import Model
from slipstream.session.shapes import Calls, calls_by_shape

if TYPE_CHECKING:
    from slipstream.graph.operators import Operator


@dataclass(frozen=True)
class SessionModel:
    """A model that was read and prepared. `name` is also that of its folder; nothing for the only model of a session.

    `weight` is how often it runs while the others run as often as theirs say. `messages` are what there is to say
    about its preparation.
    """

    model: Model
    prepared: tuple[Any, ...]
    name: str = ""
    weight: int = 1
    input_data: dict[str, Array] | None = None
    pad: bool = False
    messages: tuple[str, ...] = ()

    def said(self, text: str) -> str:
        """`text` with the model's name before it, if there are several."""
        return f"{self.name}: {text}" if self.name else text

    def calls(self) -> Calls:
        """By label: what one run of each of its shapes calls."""
        found = calls_by_shape(self.model, self.prepared)
        return {label_of(self.name, shape): own for shape, own in found.items()}


def are_several(models: Sequence[SessionModel]) -> bool:
    """Whether several models were asked for; a list of one counts."""
    return bool(models[0].name)


def label_of(name: str, shape: str) -> str:
    """What people read of a model of several at one of its shapes."""
    return f"{name} {shape}".strip()


def session_operators(models: Sequence[SessionModel]) -> list[Operator]:
    """The operators of all models, each once; the weight is the number of calls when each model runs `weight` times."""
    from slipstream.graph.operators import extract_operators

    modules = [(module, one.weight) for one in models for module in one.prepared]
    return extract_operators(*(module for module, _ in modules), runs=[weight for _, weight in modules])


def title_of(models: Sequence[SessionModel]) -> str:
    return " + ".join(one.name or one.model.name for one in models)


def fingerprint_of(models: Sequence[SessionModel]) -> str:
    """The model's; of several, equal for equal models under equal names."""
    if not are_several(models):
        return models[0].model.fingerprint
    content = repr([(one.name, one.model.fingerprint) for one in models])
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Errors of one of several models begin with its name."""
    try:
        yield
    except SlipstreamError as error:
        if name and not str(error).startswith(f"{name}: "):
            error.args = (f"{name}: {error}", *error.args[1:])
        raise
