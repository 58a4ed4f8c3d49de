"""What went wrong in a round, in one sentence a person will read."""

from __future__ import annotations

from collections import Counter

from slipstream.measure.types import Measurement


def all_failed(measurements: list[Measurement]) -> str:
    """A warning with the commonest cause if every program of the round failed, or nothing."""
    failures = [m.failure for m in measurements if m.failure is not None]
    if not measurements or len(failures) < len(measurements):
        return ""
    (kind, message), count = Counter((f.kind, f.message) for f in failures).most_common(1)[0]
    of_kind = sum(f.kind == kind for f in failures)
    stderr = next((f.stderr for f in failures if (f.kind, f.message) == (kind, message) and f.stderr), "")
    lines = [
        f"not one of {len(failures)} programs could be measured; most often ({of_kind} times): {kind.value}",
        f"  {message}" + (f" ({count} times)" if count > 1 else ""),
    ]
    lines += [f"  | {line}" for line in stderr.splitlines()[-5:]]
    return "\n".join(lines)
