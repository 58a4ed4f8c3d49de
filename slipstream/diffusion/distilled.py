"""Distilled priors: what sessions on other machines have measured, small enough to ship with the package.

A file has, for each class of hardware (`machine.hardware.instruction_set`), operators as they were tuned on some
machine: measured programs, fast, slow and failed ones. A session without stored relatives of an operator takes the
nearest of these in their place: their best programs are adapted, and the guess is fitted on their measurements.
Only programs of a signature that the operator's own sketches have are used, so a file made before sketches changed does
no harm: what no longer fits is not found.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from slipstream.diffusion.signature import signature
from slipstream.diffusion.similarity import doublings
from slipstream.errors import SlipstreamError
from slipstream.program.decisions import Decisions, check, tile_extents
from slipstream.program.examples import examples_of
from slipstream.program.sketch import Sketch

SHIPPED = Path(__file__).with_name("priors.json.gz")
MOST_BYTES = 2_000_000
FORMAT, VERSION = "slipstream-priors", 1

Features = Mapping[str, float]


class PriorsError(SlipstreamError):
    """A file of priors that cannot be read, or would be too large."""


@dataclass(frozen=True)
class TunedProgram:
    """Decisions for a sketch of this signature and the seconds they took; infinite for a failure."""

    signature: str
    decisions: Decisions
    seconds: float


@dataclass(frozen=True)
class TunedOperator:
    """An operator as tuned on one machine; `dtype` is that of its first tensor."""

    key: str
    name: str
    dtype: str
    machine: str
    programs: tuple[TunedProgram, ...]

    @property
    def best(self) -> float:
        return min((program.seconds for program in self.programs), default=math.inf)


@dataclass(frozen=True)
class Neighbour:
    """A tuned operator's programs of one signature, the fastest first; `similarity` is 1 for equal extents on an equal
    machine, and `slower` how many times as long as its best program of any signature the first takes.
    """

    operator: TunedOperator
    similarity: float
    programs: tuple[TunedProgram, ...]
    slower: float


@dataclass(frozen=True)
class ClassPriors:
    """What is known of one class of hardware. `machines` are features by name, `sketches` one for each signature."""

    machines: Mapping[str, Features] = field(default_factory=dict)
    sketches: Mapping[str, Sketch] = field(default_factory=dict)
    operators: Sequence[TunedOperator] = ()

    def merged(self, other: ClassPriors) -> ClassPriors:
        """Both; of an operator tuned on the same machine twice, each program once, with its shorter time."""
        operators = {(o.key, o.machine): o for o in self.operators}
        for one in other.operators:
            known = operators.get((one.key, one.machine))
            programs = [*(known.programs if known else ()), *one.programs]
            operators[one.key, one.machine] = TunedOperator(
                one.key, one.name, one.dtype, one.machine, fastest_of_each(programs)
            )
        return ClassPriors(
            {**self.machines, **other.machines},
            {**self.sketches, **other.sketches},
            tuple(operators[key] for key in sorted(operators)),
        )

    def thinned(self, keep: int) -> ClassPriors:
        """The same with at most `keep` programs of an operator."""
        thinned = (replace(o, programs=tuple(examples_of(o.programs, keep))) for o in self.operators)
        return replace(self, operators=tuple(thinned))


def fastest_of_each(programs: Iterable[TunedProgram]) -> tuple[TunedProgram, ...]:
    """Each program once, the fastest first."""
    fastest = {(p.signature, p.decisions): p for p in sorted(programs, key=lambda p: -p.seconds)}
    return tuple(sorted(fastest.values(), key=lambda p: p.seconds))


@dataclass(frozen=True)
class Priors:
    """What is `known` of a class of hardware, for operators of one `dtype` on a machine with these features."""

    known: ClassPriors
    dtype: str
    machine: Features = field(default_factory=dict)

    @cached_property
    def _by_signature(self) -> dict[str, list[tuple[TunedOperator, tuple[TunedProgram, ...], tuple[float, ...]]]]:
        found: dict[str, list[Any]] = {}
        for operator in (one for one in self.known.operators if one.dtype == self.dtype):
            for name in {program.signature for program in operator.programs}:
                programs = tuple(p for p in operator.programs if p.signature == name)
                if math.isfinite(programs[0].seconds):
                    sizes = tile_extents(self.known.sketches[name].points(programs[0].decisions))
                    found.setdefault(name, []).append((operator, programs, sizes))
        return found

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Which operators there are: conv2d, matmul and so on."""
        return frozenset(one.name.split()[0] for one in self.known.operators if one.dtype == self.dtype)

    def covers(self, sketch: Sketch) -> bool:
        """Whether programs of a sketch like this one were measured."""
        return signature(sketch) in self._by_signature

    def sketch(self, name: str) -> Sketch:
        """A sketch with this signature."""
        return self.known.sketches[name]

    def nearest(self, sketch: Sketch, extents: Sequence[float]) -> list[Neighbour]:
        """Operators with programs of a sketch like this one, the most similar first."""
        found = [
            Neighbour(
                operator, self._similarity(operator, sizes, extents), programs, programs[0].seconds / operator.best
            )
            for operator, programs, sizes in self._by_signature.get(signature(sketch), ())
        ]
        return sorted(found, key=lambda neighbour: (-neighbour.similarity, neighbour.operator.key))

    def _similarity(self, operator: TunedOperator, sizes: Sequence[float], extents: Sequence[float]) -> float:
        """Halved for each doubling between extents, or features of the machines, on average."""
        theirs = self.known.machines.get(operator.machine, {})
        shared = [name for name in self.machine if name in theirs]
        machines = doublings([self.machine[n] for n in shared], [theirs[n] for n in shared])
        return float(2.0 ** -(doublings(sizes, extents) + machines))


def read_priors(path: Path) -> dict[str, ClassPriors]:
    """Classes of hardware by name."""
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        version = content["version"]
    except OSError as error:
        raise PriorsError(
            f"cannot read priors from {path} ({error}): make it with 'slipstream store distil'"
        ) from error
    except (ValueError, TypeError, KeyError, EOFError, zlib.error) as error:
        raise PriorsError(f"{path} holds no priors ({error}): make them with 'slipstream store distil'") from error
    if version != VERSION:
        raise PriorsError(
            f"{path} holds priors of version {version}, not {VERSION}: "
            "make them again with 'slipstream store distil', or leave them out with --no-priors"
        )
    try:
        return {name: _read_class(one) for name, one in content["classes"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, SlipstreamError) as error:
        raise PriorsError(f"{path} is damaged ({error}): make it again with 'slipstream store distil'") from error


def write_priors(classes: Mapping[str, ClassPriors], path: Path) -> int:
    """How many bytes the file has. Equal priors make equal files."""
    content = {"format": FORMAT, "version": VERSION, "classes": {n: _class_json(classes[n]) for n in sorted(classes)}}
    packed = gzip.compress(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode(), mtime=0)
    if len(packed) > MOST_BYTES:
        raise PriorsError(
            f"{path} would have {len(packed) / 1e6:.1f} MB, {MOST_BYTES / 1e6:.0f} are allowed: "
            "keep fewer programs with --keep, or distil fewer sessions"
        )
    try:
        path.write_bytes(packed)
    except OSError as error:
        raise PriorsError(f"cannot write {path}: {error.strerror}; choose another -o") from error
    return len(packed)


def _class_json(known: ClassPriors) -> dict[str, Any]:
    used = sorted({program.signature for operator in known.operators for program in operator.programs})
    return {
        "machines": {name: dict(known.machines[name]) for name in sorted(known.machines)},
        "sketches": [json.loads(known.sketches[name].text) for name in used],
        "operators": [
            {
                "key": operator.key,
                "name": operator.name,
                "dtype": operator.dtype,
                "machine": operator.machine,
                "programs": [[used.index(p.signature), p.decisions, _rounded(p.seconds)] for p in operator.programs],
            }
            for operator in known.operators
        ],
    }


def _rounded(seconds: float) -> float | None:
    return float(f"{seconds:.4g}") if math.isfinite(seconds) else None


def _read_class(content: Mapping[str, Any]) -> ClassPriors:
    sketches = [Sketch(json.dumps(text, separators=(",", ":"))) for text in content["sketches"]]
    names = [signature(sketch) for sketch in sketches]
    return ClassPriors(
        {name: {k: float(v) for k, v in features.items()} for name, features in content["machines"].items()},
        dict(zip(names, sketches, strict=True)),
        tuple(
            TunedOperator(
                one["key"],
                one["name"],
                one["dtype"],
                one["machine"],
                tuple(_read_program(names[n], sketches[n], *rest) for n, *rest in one["programs"]),
            )
            for one in content["operators"]
        ),
    )


def _read_program(name: str, sketch: Sketch, values: Sequence[Any], seconds: float | None) -> TunedProgram:
    decisions = tuple(tuple(value) if isinstance(value, list) else value for value in values)
    check(sketch.points(decisions), decisions)
    return TunedProgram(name, decisions, math.inf if seconds is None else float(seconds))
