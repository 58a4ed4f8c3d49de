"""The built artifact: runs one of our programs in its Python with one of its two TVMs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import SlipstreamError

_INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True)
class BuiltArtifact:
    """What `build.sh` made in `folder`."""

    folder: Path

    def check(self, tree: str) -> None:
        """Raises unless this tree and the Python for it are there."""
        for needed in (self.folder / tree / "libtvm.so", self.folder / "venv" / "bin" / "python"):
            if not needed.exists():
                raise SlipstreamError(
                    f"{needed} does not exist: build the artifact with benchmarks/originals/build.sh CHECKOUT BUILD"
                    " and give --build BUILD"
                )

    def command(self, program: str, *arguments: str) -> list[str]:
        """That runs the `program` of `inside/`."""
        return [str(self.folder.absolute() / "venv" / "bin" / "python"), str(_INSIDE / program), *arguments]

    def environment(self, tree: str, threads: int) -> dict[str, str]:
        folder = self.folder.absolute() / tree
        count = str(threads)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "PYTHONPATH": str(folder / "python"),
            "TVM_LIBRARY_PATH": str(folder),
            "TVM_NUM_THREADS": count,
            "TVM_BIND_THREADS": "0",  # else its threads are on the first cores, whatever cores the process was given
            "OMP_NUM_THREADS": count,
            "TOPHUB_LOCATION": "NONE",  # no attempt to download schedules of AutoTVM
        }
