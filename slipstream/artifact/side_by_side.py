"""How fast an artifact is next to another runtime on the same machine: a figure that machines can be compared by."""

from __future__ import annotations

from pathlib import Path

from slipstream.artifact.bench import BACK_TO_BACK, bench
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.lock import LockedLatency
from slipstream.artifact.manifest import Manifest
from slipstream.errors import ArtifactError, InputError, MissingDependencyError, first_line

SECONDS = 6.0


def usual_contender(manifest: Manifest) -> str:
    """The runtime that can run the artifact's model as it is."""
    return "torch" if manifest.gpu or manifest.source.endswith(".pt2") else "onnxruntime"


def time_side_by_side(
    directory: str | Path,
    against: str = "",
    *,
    model: str | None = None,
    seconds: float | None = None,
    longer: float = 1.0,
    shape: int = 0,
) -> LockedLatency:
    """Run the artifact and the runtime `against` in turns, block by block, each in a process of its own, for `seconds`
    (`SECONDS` if there are none) or so many times `longer`. `shape` is the number of one of the artifact's shapes.
    """
    names = [against] if against else []
    length = longer * (SECONDS if seconds is None else seconds)
    result = bench(directory, against=names, model=model, seconds=length, patterns=(BACK_TO_BACK,), shape=shape)
    (part,) = result.parts
    if not names:
        return LockedLatency(part.timings[0].median)
    (ratio,) = part.ratios
    return LockedLatency(part.timings[0].median, against, ratio.median, ratio.low, ratio.high)


def time_for_lock(directory: str | Path) -> tuple[dict[str, LockedLatency], str]:
    """The same for each shape, by its label, against the usual runtime or, if that cannot run the model, alone; then
    also why, in words.
    """
    manifest = Manifest.read(artifact_in(Path(directory)))
    against = usual_contender(manifest)

    def of_shapes(other: str) -> dict[str, LockedLatency]:
        return {label: time_side_by_side(directory, other, shape=n) for n, label in enumerate(manifest.shape_labels)}

    try:
        return of_shapes(against), ""
    except (ArtifactError, InputError, MissingDependencyError) as error:
        why = f"the lock file has no time of {against} to compare with: {first_line(error)}"
        return of_shapes(""), why
