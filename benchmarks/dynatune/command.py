"""What the commands of this folder share: the same options, and errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.dynatune.curves import CURVES, read_all
from benchmarks.dynatune.replays import Study
from slipstream.errors import SlipstreamError
from slipstream.session.settings import Settings

FIGURES = Path(__file__).parent / "figures"
RESULTS = Path(__file__).parent.parent / "results"

Make = Callable[[Study], list[Path]]


def run(make: Make, about: str | None, arguments: Sequence[str] | None = None) -> None:
    """Read the curves, let `make` make its files, and name them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=CURVES, help="folder of recorded curves")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="where figures go")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where tables go")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--slot-trials", type=int, default=Settings().slot_trials)
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.slot_trials < 1:
        parser.error("--seeds and --slot-trials are whole numbers from 1")
    try:
        recordings = read_all(options.curves)
        for path in make(Study(recordings, options.figures, options.results, options.seeds, options.slot_trials)):
            print(path)
    except SlipstreamError as error:
        sys.exit(f"error: {error}")
