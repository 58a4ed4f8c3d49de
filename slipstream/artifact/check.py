"""Whether a model still is what its lock file says: the same programs, right results, and as fast as it was."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipstream.artifact.compile import compile
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.loaded import check_artifact, open_parts
from slipstream.artifact.lock import Lock, LockedLatency, machine_name, programs_digest
from slipstream.artifact.manifest import FILE_NAME, Manifest, Verification
from slipstream.artifact.side_by_side import time_side_by_side
from slipstream.artifact.verify import merged, verify
from slipstream.artifact.write import verification_feeds, versions
from slipstream.errors import ArtifactError, InputError, VerificationError
from slipstream.frontends import load_model
from slipstream.frontends.inputs import Array
from slipstream.frontends.model import Model

Progress = Callable[[str], None]
MAX_REGRESSION = 0.1
PARTS = ("programs", "results", "speed")
_LONGER = (1, 2, 4)  # how many times as long to measure while the limit is within the noise


@dataclass(frozen=True)
class CheckPart:
    """One of `PARTS`; of the speed there is one for each of several shapes, whose label is in the `name`.

    `passed` is None for one that was left out, and `text` says why or what was found.
    """

    name: str
    passed: bool | None
    text: str
    seconds: float = 0.0


@dataclass(frozen=True)
class CheckResult:
    """`regression` is the share by which the model takes longer than it did, relative to the other runtime; of several
    shapes, it, `recorded` and `measured` are of the one that has become slower by most.
    """

    model: str
    lock: str
    parts: tuple[CheckPart, ...]
    warnings: tuple[str, ...] = ()
    recorded: LockedLatency | None = None
    measured: LockedLatency | None = None
    regression: float | None = None
    max_regression: float = MAX_REGRESSION

    @property
    def passed(self) -> bool:
        return all(part.passed is not False for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


def check(
    model: str | Path,
    lock: str | Path = "slipstream.lock",
    *,
    max_regression: float = MAX_REGRESSION,
    seconds: float | None = None,
    input_data: dict[str, Array] | None = None,
    progress: Progress = lambda stage: None,
) -> CheckResult:
    """Check `model`, a file or zoo name, which is rebuilt from the lock file, or the directory of a compiled model.

    Of a model for several shapes each is checked. Results are compared with the reference. Times differ between
    machines, so what is compared is how many times as fast as the other runtime the model is: both are timed here, in
    turns, for about `seconds` a shape, or longer if the limit is within the noise. It fails if the model takes over
    `max_regression` longer than that ratio said when it was locked, and the 95 % intervals of both ratios are apart.
    """
    if not max_regression >= 0:
        raise InputError(f"a largest regression of {max_regression} makes no sense: give a share from 0, such as 0.1")
    locked = Lock.read(lock)
    with tempfile.TemporaryDirectory(prefix="slipstream-check-") as folder:
        found = _Check(locked, max_regression, progress)
        directory = artifact_in(Path(model))
        if (directory / FILE_NAME).is_file():
            found.verify_artifact(directory, input_data)
        else:
            directory = Path(folder, "model")
            found.rebuild(str(model), directory, lock, input_data)
        if found.is_right:
            found.time(directory, seconds)
        return found.result(str(model), str(lock))


@dataclass
class _Check:
    locked: Lock
    max_regression: float
    progress: Progress
    parts: list[CheckPart] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    recorded: LockedLatency | None = None
    measured: LockedLatency | None = None
    regression: float | None = None

    @property
    def is_right(self) -> bool:
        return all(part.passed for part in self.parts)

    def rebuild(self, model: str, directory: Path, lock: str | Path, input_data: dict[str, Array] | None) -> None:
        began = time.monotonic()
        try:
            made = compile(model, directory, lock=lock, input_data=input_data, progress=self.progress)
        except VerificationError as error:
            self._add("programs", True, "rebuilt with the locked programs")
            self._add("results", False, " ".join(str(error).split()), began)
            return
        self.warnings = made.warnings
        self._add("programs", True, f"rebuilt with the {len(self.locked.operators)} locked programs")
        self._add("results", True, _describe(made.verification), began)

    def verify_artifact(self, directory: Path, input_data: dict[str, Array] | None) -> None:
        """Whether an artifact has the locked programs, and computes what its model's reference does."""
        manifest = check_artifact(directory)
        self.warnings = tuple(self.locked.warnings(str(directory), manifest.fingerprint, versions()))
        wanted = self.locked.tuned["programs"], self.locked.choices
        if (manifest.tuned.get("programs", programs_digest(())), manifest.choices) == wanted:
            self._add("programs", True, f"has the {len(self.locked.operators)} locked programs")
        else:
            again = f"'slipstream compile MODEL --lock {self.locked.file}' rebuilds it"
            self._add("programs", False, f"{directory} has other programs than {self.locked.file}: {again}")
        began = time.monotonic()
        self.progress("import")
        model = load_model(manifest.source, **manifest.options, input_data=input_data)
        if model.fingerprint != manifest.fingerprint:
            raise ArtifactError(
                f"{manifest.source} is not the model that {directory} was compiled from: compile it again"
            )
        self.progress("verify")
        variants = zip(model.shape_variants, manifest.single_shapes, verification_feeds(model, input_data), strict=True)
        try:
            checked = merged([_verify_variant(directory, *variant) for variant in variants])
            self._add("results", True, _describe(checked), began)
        except VerificationError as error:
            self._add("results", False, " ".join(str(error).split()), began)

    def time(self, directory: Path, seconds: float | None) -> None:
        for shape, label in enumerate(Manifest.read(directory).shape_labels):
            self._time_shape(directory, shape, label, seconds)

    def _time_shape(self, directory: Path, shape: int, label: str, seconds: float | None) -> None:
        began, recorded, name = time.monotonic(), self.locked.latency.get(label), f"speed {label}".strip()
        if recorded is None or (not recorded.against and machine_name(self.locked.target) != self.locked.machine):
            reason = f"{self.locked.file} has no time to compare with on this machine"
            self._add(name, None, reason)
            return
        self.progress("time")
        for longer in _LONGER:
            now = time_side_by_side(directory, recorded.against, seconds=seconds, longer=longer, shape=shape)
            regression, clear = self.judge(recorded, now)
            if clear:
                break
        if self.regression is None or regression > self.regression:
            self.recorded, self.measured, self.regression = recorded, now, regression
        beyond = regression > self.max_regression
        self._add(name, not (beyond and clear), self._say(recorded, now, regression, beyond and not clear), began)

    def judge(self, recorded: LockedLatency, now: LockedLatency) -> tuple[float, bool]:
        """The share by which it is slower than recorded; whether that is allowed, or else beyond the noise."""
        if not recorded.against:
            return now.seconds / recorded.seconds - 1, True
        regression = recorded.times_as_fast / now.times_as_fast - 1
        return regression, regression <= self.max_regression or now.high < recorded.low

    def _say(self, recorded: LockedLatency, now: LockedLatency, regression: float, in_noise: bool) -> str:
        slower = f"{abs(regression):.1%} {'slower' if regression > 0 else 'faster'} than locked"
        noise = "; over the limit, but within the noise of both measurements" if in_noise else ""
        if not recorded.against:
            return f"{now.seconds * 1e3:.3f} ms, {slower} ({recorded.seconds * 1e3:.3f} ms on this machine)"
        return (
            f"{now.times_as_fast:.2f}x as fast as {now.against} ({now.low:.2f} - {now.high:.2f}), "
            f"{recorded.times_as_fast:.2f}x when locked: {slower}, allowed {self.max_regression:.1%}{noise}"
        )

    def _add(self, name: str, passed: bool | None, text: str, began: float | None = None) -> None:
        self.parts.append(CheckPart(name, passed, text, 0.0 if began is None else time.monotonic() - began))

    def result(self, model: str, lock: str) -> CheckResult:
        done = {part.name.split()[0] for part in self.parts}
        left_out = [CheckPart(name, None, "left out") for name in PARTS if name not in done]
        return CheckResult(
            model,
            lock,
            (*self.parts, *left_out),
            self.warnings,
            self.recorded,
            self.measured,
            self.regression,
            self.max_regression,
        )


def _verify_variant(directory: Path, model: Model, own: Manifest, feeds: list[dict[str, Array]]) -> Verification:
    run = open_parts(directory, own.all_parts, own.inputs, own.outputs, own.threads, own.gpu)
    try:
        return verify(model, run, feeds, own.dtype)
    finally:
        run.close()


def _describe(checked: Verification | None) -> str:
    assert checked is not None
    worst = max((output.max_relative for output in checked.outputs), default=0.0)
    return f"{len(checked.outputs)} output(s) match {checked.reference}, largest relative error {worst:.1e}"
