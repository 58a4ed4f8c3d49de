"""The lock file: what tuning chose for a model, as text to be committed, from which the model is rebuilt exactly."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.artifact.directory import replace_text
from slipstream.artifact.manifest import BuildChoices, Manifest
from slipstream.errors import SlipstreamError, first_line
from slipstream.frontends.shape_lists import Shapes
from slipstream.machine.cuda import CudaDevice, find_device
from slipstream.machine.target import Target, available_cores, lacking_features
from slipstream.program.decisions import from_json, to_json
from slipstream.program.sketch import Sketch

if TYPE_CHECKING:
    from slipstream.graph.operators import Operator
    from slipstream.program.space import Program

FORMAT = 1
_EXPANDED = ("model", "hardware", "versions", "latency", "build", "operators", "sketches")  # an entry a line


class LockError(SlipstreamError):
    """A lock file that is missing or damaged, or that does not fit the model or the machine."""


@dataclass(frozen=True)
class LockedLatency:
    """How fast the model was when it was locked: `times_as_fast` as `against`, the two run in turns on one machine."""

    seconds: float
    against: str = ""  # nothing if no other runtime could run the model
    times_as_fast: float = 0.0
    low: float = 0.0  # the 95 % interval
    high: float = 0.0


@dataclass(frozen=True)
class LockedOperator:
    """`seconds` a call as measured in tuning; without a `program` the operator has its default one."""

    name: str
    calls: int
    seconds: float | None
    program: tuple[Sketch, str] | None  # with its decisions as JSON


@dataclass(frozen=True)
class Lock:
    """`machine` is where it was made; `shapes`, `pad` and `constants` are how the model was read. `choices` and
    `latency` are those of each shape by its label, which is empty for a model of one shape.
    """

    model: str
    fingerprint: str
    shapes: Shapes | None
    constants: Mapping[str, Any] | None
    target: Target
    machine: str
    versions: Mapping[str, str]
    choices: Mapping[str, BuildChoices]
    operators: Mapping[str, LockedOperator]
    latency: Mapping[str, LockedLatency] = field(default_factory=dict)
    pad: bool = False
    file: str = "the lock file"

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        target: Target,
        operators: Mapping[str, LockedOperator],
        latency: Mapping[str, LockedLatency],
    ) -> Lock:
        """What was compiled into the artifact with that manifest."""
        return cls(
            manifest.model,
            manifest.fingerprint,
            manifest.options.get("shapes"),
            manifest.options.get("constants"),
            target,
            machine_name(target),
            manifest.versions,
            manifest.choices,
            operators,
            latency,
            manifest.pad,
        )

    @classmethod
    def read(cls, path: str | Path) -> Lock:
        path = Path(path)
        try:
            content = json.loads(path.read_text())
            if not isinstance(content, dict):
                raise ValueError("it is no JSON object")
            if content.get("format") != FORMAT:
                raise LockError(
                    f"{path} has the format {content.get('format')}, this Slipstream reads {FORMAT}: "
                    "use the Slipstream it was made with, or write it again with 'slipstream tune MODEL --lock'"
                )
            return replace(_from_json(content), file=str(path))
        except FileNotFoundError:
            raise LockError(
                f"there is no lock file {path}: write one with 'slipstream tune MODEL -o DIR --lock {path}'"
            ) from None
        except OSError as error:
            raise LockError(f"cannot read {path}: {error.strerror}; give the file that 'tune --lock' wrote") from None
        except LockError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, SlipstreamError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
            raise LockError(
                f"{path} is damaged ({said}): take it from version control again, or write it with "
                "'slipstream tune MODEL --lock'"
            ) from None

    def write(self, path: str | Path) -> None:
        path = Path(path).absolute()
        try:
            replace_text(path, self.text())
        except OSError as error:
            raise LockError(f"cannot write {path}: {error.strerror}; choose another --lock") from error

    def text(self) -> str:
        """JSON with a line for each operator and each sketch, so that a change of one is one line in a diff."""
        entries = []
        for name, value in _to_json(self).items():
            if name in _EXPANDED and isinstance(value, dict) and value:
                inner = ",\n".join(f"  {json.dumps(key)}: {_compact(entry)}" for key, entry in value.items())
                entries.append(f' "{name}": {{\n{inner}\n }}')
            else:
                entries.append(f' "{name}": {_compact(value)}')
        return "{\n" + ",\n".join(entries) + "\n}\n"

    @property
    def tuned(self) -> dict[str, Any]:
        """What an artifact with these programs says about them."""
        return {"programs": programs_digest((key, one.program) for key, one in self.operators.items())}

    def target_here(self, spec: str = "cpu", threads: int | None = None, dtype: str = "float32") -> Target:
        """The target that was locked; raises if it is not what was asked for, or if this machine cannot run it."""
        if (spec, dtype) != ("cpu", "float32") or threads not in (None, self.target.threads):
            raise LockError(
                f"{self.file} is for {self.target}: leave out --target, --dtype and --threads, or tune with them "
                "and another --lock"
            )
        self._check_hardware()
        return self.target

    def _check_hardware(self) -> None:
        locked, here = self.target, platform.machine()
        tune = "tune on this machine with another --lock"
        if locked.architecture != here:
            raise LockError(f"{self.file} is for {locked} and this machine is {here}: {tune}")
        if missing := lacking_features(locked.features):
            raise LockError(
                f"{self.file} is for {locked} and this CPU lacks {', '.join(missing)}: {tune}, or for both with "
                "--target cpu:NAME, the older CPU"
            )
        if locked.gpu is not None:
            device = find_device()
            if device is None or device.architecture != locked.gpu.architecture:
                found = (
                    f"this machine's GPU is {device.name} ({device.architecture})" if device else "there is no GPU here"
                )
                raise LockError(f"{self.file} is for {locked} and {found}: {tune}")

    def warnings(self, model: str, fingerprint: str, versions: Mapping[str, str]) -> list[str]:
        """A line for each difference that does not keep the model from being built with the locked programs."""
        found = []
        again = f"'slipstream tune MODEL --lock {self.file}' renews it"
        if fingerprint != self.fingerprint:
            found.append(
                f"{model} is not the model of {self.file}, but has its operators: they get its programs; {again}"
            )
        if (machine := machine_name(self.target)) != self.machine:
            found.append(
                f"{self.file} was made on {self.machine}, this is {machine}: other programs may be faster here"
            )
        if self.target.threads > available_cores():
            found.append(
                f"{self.file} is for {self.target.threads} threads, here are {available_cores()} cores: {again}"
            )
        other = [f"{name} {self.versions.get(name)}" for name in versions if versions[name] != self.versions.get(name)]
        if other:
            found.append(f"{self.file} was made with {', '.join(other)}: the code may differ from that time; {again}")
        return found

    def check_shapes(self, labels: Sequence[str]) -> None:
        """Raises unless the model's shapes are the locked ones."""
        if set(labels) != set(self.choices):
            locked = "one shape" if "" in self.choices else f"the shapes {'; '.join(self.choices)}"
            raise LockError(
                f"{self.file} is for {locked}: leave out --shape, or tune with the other shapes and another --lock"
            )

    def check_operators(self, model: str, fingerprint: str, label: str, operators: Sequence[Operator]) -> None:
        """Raises unless each of the operators of the model at that shape is locked."""
        if self.choices[label].exact_functions and fingerprint == self.fingerprint:
            return  # tuned were those with polynomials, and what the model has instead has default programs
        missing = [operator.name for operator in operators if operator.key not in self.operators]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise LockError(
                f"{self.file} has no program for {missing[0]}{more} of {len(operators)} operators of {model}: it is "
                f"for another model, shape or version; write it with 'slipstream tune MODEL --lock {self.file}'"
            )

    def scheduler(self, target: Target) -> Callable[[Any], Any]:
        """What gives each function of a prepared module its locked program; raises if that is not legal for it."""
        from slipstream.graph.describe.key import operator_key
        from slipstream.graph.forms import schedule_untuned
        from slipstream.program.scheduled import scheduled_as
        from slipstream.program.space import Program

        def scheduled(func: Any) -> Any:
            key = operator_key(func)
            locked = self.operators.get(key)
            if locked is None or locked.program is None:
                return schedule_untuned(func, target)
            sketch, decisions = locked.program
            result = scheduled_as(func, Program(key, sketch, from_json(decisions), "lock"), target)
            if result is None:
                raise LockError(
                    f"the program of {locked.name} in {self.file} is no legal schedule of it: take the file from "
                    "version control again, or tune again"
                )
            return result

        return scheduled


def lock_of(path: Path, model: str) -> Path:
    """The lock file of a model: `path`, or of one of several a file in that folder."""
    return path / f"{model}.lock" if model else path


def lock_file(path: str | Path | None, *, folder: bool = False) -> Path | None:
    """`path`, refused before any work is done if no file can be written there; or the `folder` for several files."""
    if path is None:
        return None
    path = Path(path).absolute()
    if folder:
        if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
            raise LockError(
                f"there is no folder {path} that can be written: of several models --lock is a folder, so make it first"
            )
        return path
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise LockError(f"cannot write the lock file {path}: give a file in a directory that can be written")
    if path.exists() and not _may_be_replaced(path):
        raise LockError(f"{path} is there and is no lock file: choose another --lock, or remove it")
    return path


def _may_be_replaced(path: Path) -> bool:
    """Whether a file is empty or looks like a lock file: of another version, damaged, or with conflicts of a merge."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            start = file.read(64).strip()
    except OSError as error:
        raise LockError(f"cannot read {path}: {error.strerror}; choose another --lock") from error
    return not start or start.startswith((b"{", b"<<<<<<<"))


def locked_operators(
    operators: Iterable[tuple[str, str, int, float | None]], programs: Mapping[str, Program]
) -> dict[str, LockedOperator]:
    """From keys, names, calls and seconds of all operators, and the programs of those that do not have the default."""
    return {
        key: LockedOperator(
            name, calls, seconds, (programs[key].sketch, to_json(programs[key].decisions)) if key in programs else None
        )
        for key, name, calls, seconds in operators
    }


def programs_digest(programs: Iterable[tuple[str, tuple[Sketch, str] | None]]) -> str:
    """Equal for equal programs of equal operators."""
    lines = sorted(f"{key} {one[0].digest} {one[1]}" for key, one in programs if one is not None)
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=10).hexdigest()


def machine_name(target: Target) -> str:
    """What this machine's device of the target's kind is called."""
    from slipstream.machine.cpu import cpu_model

    if target.gpu is None:
        return cpu_model()
    device = find_device()
    return device.name if device else "no GPU"


def _rounded(value: Any) -> Any:
    """Times of the same thing differ in their third digit."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _to_json(lock: Lock) -> dict[str, Any]:
    sketches = {one.program[0].digest: one.program[0] for one in lock.operators.values() if one.program}
    return {
        "format": FORMAT,
        "model": {
            "name": lock.model,
            "fingerprint": lock.fingerprint,
            "shapes": lock.shapes,
            "constants": lock.constants,
            **({"pad": True} if lock.pad else {}),
        },
        "hardware": {"machine": lock.machine, **asdict(lock.target)},
        "versions": dict(lock.versions),
        "latency": _of_shapes(lock.latency),
        "build": _of_shapes(lock.choices),
        **lock.tuned,
        "operators": dict(_operators_to_json(lock.operators)),
        "sketches": {digest: json.loads(sketch.text) for digest, sketch in sorted(sketches.items())},
    }


def _of_shapes(values: Mapping[str, Any]) -> dict[str, Any]:
    """A record for each label, or that of the only shape without one."""
    found = {label: {k: _rounded(v) for k, v in asdict(value).items()} for label, value in values.items()}
    return found.get("", found)


def _by_label(content: dict[str, Any], field_name: str) -> dict[str, dict[str, Any]]:
    """What `_of_shapes` wrote; `field_name` is a field of each record."""
    return {"": content} if field_name in content else content


def _operators_to_json(operators: Mapping[str, LockedOperator]) -> Iterator[tuple[str, Any]]:
    for key, one in operators.items():
        entry: dict[str, Any] = {"name": one.name, "calls": one.calls, "seconds": _rounded(one.seconds)}
        if one.program is not None:
            entry |= {"sketch": one.program[0].digest, "decisions": json.loads(one.program[1])}
        yield key, entry


def _from_json(content: dict[str, Any]) -> Lock:
    model, hardware = content["model"], dict(content["hardware"])
    sketches = {digest: Sketch(json.dumps(text, separators=(",", ":"))) for digest, text in content["sketches"].items()}
    if wrong := [digest for digest, sketch in sketches.items() if sketch.digest != digest]:
        raise ValueError(f"the sketch {wrong[0]} has been changed")
    operators = {key: _operator(key, entry, sketches) for key, entry in content["operators"].items()}
    if programs_digest((key, one.program) for key, one in operators.items()) != content["programs"]:
        raise ValueError("its programs are not those that were written")
    latency = _by_label(content["latency"] or {}, "times_as_fast")
    machine = str(hardware.pop("machine"))
    gpu = hardware["gpu"] and CudaDevice(**hardware["gpu"])
    return Lock(
        model=str(model["name"]),
        fingerprint=str(model["fingerprint"]),
        shapes=model["shapes"],
        constants=model["constants"],
        target=Target(
            **{
                **hardware,
                "features": tuple(hardware["features"]),
                "disabled": tuple(hardware["disabled"]),
                "threads": int(hardware["threads"]),
                "gpu": gpu,
            }
        ),
        machine=machine,
        versions=dict(content["versions"]),
        choices={
            label: BuildChoices(
                tuple(own["exact_operators"]),
                bool(own["exact_functions"]),
                tuple(tuple(map(int, threads)) for threads in own["step_threads"]),
            )
            for label, own in _by_label(content["build"], "exact_operators").items()
        },
        operators=operators,
        latency={label: LockedLatency(**own) for label, own in latency.items()},
        pad=bool(model.get("pad", False)),
    )


def _operator(key: str, entry: dict[str, Any], sketches: Mapping[str, Sketch]) -> LockedOperator:
    program = None
    if "sketch" in entry:
        if entry["sketch"] not in sketches:
            raise ValueError(f"the sketch {entry['sketch']} of the operator {key} is not there")
        program = sketches[entry["sketch"]], to_json(from_json(json.dumps(entry["decisions"])))
    seconds = entry["seconds"]
    return LockedOperator(str(entry["name"]), int(entry["calls"]), None if seconds is None else float(seconds), program)
