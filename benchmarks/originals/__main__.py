"""Runs `benchmarks.originals`."""

import benchmarks.originals  # noqa: F401
from benchmarks.runner import run

run("benchmarks.originals")
