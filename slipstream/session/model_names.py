"""The names of several models of a session: each is also the folder of that model's artifact."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.session.directory import INPUTS, MODEL, SESSION, STORE

_NAME = re.compile(r"[^\s/:=.][^/:=]*")
_TAKEN = (MODEL, STORE, SESSION, INPUTS)


class ModelNameError(SlipstreamError):
    """Models that cannot be told apart, or a name that is none of theirs."""


def default_name(source: str | Path) -> str:
    """What a model file, or one of the zoo, is called if its user does not name it."""
    text = str(source)
    return text.removeprefix("zoo:") if text.startswith("zoo:") else Path(text).stem


def by_name(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Models by their names; raises if two have the same, or one has a name that no folder there can have."""
    found: dict[str, Any] = {}
    for name, model in pairs:
        source = model if isinstance(model, str | Path) else "MODEL"
        remedy = f"name it yourself, as in NAME={source}, or in Python with a mapping from names to models"
        if name in found:
            raise ModelNameError(f"two models are called {name!r} and would have one folder: {remedy}")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            raise ModelNameError(f"the folder of one of several models cannot be called {name!r}: {remedy}")
        found[name] = model
    return found
