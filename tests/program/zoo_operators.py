"""One operator of every sort that the zoo's models have, kept in a file: preparing all twelve takes minutes.

Two operators are of one sort if they have the same kinds and the same sketches, the default's and TVM's. Whenever
preparation changes what operators look like, write the file again: python -m tests.program.zoo_operators
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tvm

from slipstream.frontends import load_model, zoo
from slipstream.graph.operators import Operator, extract_operators
from slipstream.graph.prepare import prepare
from slipstream.machine.target import resolve_target
from slipstream.measure import reference_text
from slipstream.program.space import Space

FILE = Path(__file__).with_name("zoo_operators.json.gz")


@cache
def _entries() -> dict[str, dict[str, str]]:
    return {entry["label"]: entry for entry in json.loads(gzip.decompress(FILE.read_bytes()))}


def labels() -> list[str]:
    return list(_entries())


def spread() -> list[str]:
    """Every fifth operator of each leading kind, and the last: no kind is left out."""
    by_kind: dict[str, list[str]] = {}
    for label in labels():
        by_kind.setdefault(label.split("-")[2].split("+")[0], []).append(label)
    return [label for group in by_kind.values() for label in dict.fromkeys((*group[::5], group[-1]))]


def function(label: str) -> Any:
    """The operator's function, a new object each time."""
    return tvm.ir.load_json(_entries()[label]["module"])["main"].without_attr("global_symbol")


@cache
def space(label: str) -> Space:
    """The operator's design space, made once for all tests."""
    return Space(_entries()[label]["key"], function(label), resolve_target())


def _operators_of_all_models() -> Iterator[tuple[str, Operator]]:
    for name in zoo.names():
        prepared, _ = prepare(load_model(f"zoo:{name}").module, resolve_target())
        for operator in extract_operators(prepared):
            yield name, operator


def main() -> None:
    found: dict[Any, dict[str, str]] = {}
    keys: set[str] = set()
    for model, operator in _operators_of_all_models():
        if operator.key in keys:
            continue
        keys.add(operator.key)
        space = Space(operator.key, operator.func, resolve_target())
        sort = (operator.kinds, space.default.sketch.digest, *sorted(p.sketch.digest for p in space.stock))
        if sort not in found:
            label = f"{model}-{len(found)}-{'+'.join(operator.kinds)}"
            found[sort] = {"label": label, "key": operator.key, "module": reference_text(operator.func)}
            print(label, flush=True)
    FILE.write_bytes(gzip.compress(json.dumps(list(found.values())).encode(), mtime=0))
    print(f"{len(found)} of {len(keys)} operators in {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
