"""How fast an artifact is next to another runtime on the same machine: a figure that machines can be compared by."""

from __future__ import annotations

from pathlib import Path

from slipstream.artifact.bench import BACK_TO_BACK, bench
from slipstream.artifact.directory import artifact_in
from slipstream.artifact.lock import LockedLatency
from slipstream.artifact.manifest import Manifest
from slipstream.errors import ArtifactError, InputError, MissingDependencyError

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
) -> LockedLatency:
    """Run the artifact and the runtime `against` in turns, block by block, each in a process of its own, for `seconds`
    (`SECONDS` if there are none) or so many times `longer`.
    """
    names = [against] if against else []
    length = longer * (SECONDS if seconds is None else seconds)
    result = bench(directory, against=names, model=model, seconds=length, patterns=(BACK_TO_BACK,))
    (part,) = result.parts
    if not names:
        return LockedLatency(part.timings[0].median)
    (ratio,) = part.ratios
    return LockedLatency(part.timings[0].median, against, ratio.median, ratio.low, ratio.high)


def time_for_lock(directory: str | Path) -> tuple[LockedLatency, str]:
    """The same against the usual runtime or, if that cannot run the model, alone; then also why, in words."""
    against = usual_contender(Manifest.read(artifact_in(Path(directory))))
    try:
        return time_side_by_side(directory, against), ""
    except (ArtifactError, InputError, MissingDependencyError) as error:
        why = f"the lock file has no time of {against} to compare with: {str(error).splitlines()[0]}"
        return time_side_by_side(directory), why
