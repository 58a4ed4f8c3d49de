"""Lists the benchmarks: `python -m benchmarks`. --quick runs a smaller version of each, in under ten minutes."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from importlib import import_module

from benchmarks.runner import QUICK, titles
from slipstream.machine.cuda import find_device

ON_A_GPU = ("gpu",)
WITH_A_BUILD = ("originals",)  # of somebody else's sources: run by itself with --build
ON_A_RECORDING = ("simulated",)  # of another machine, whose operators and sketches may not be those of this one
# Not on the runner: replays recorded curves, with options of its own. Longer slots are fewer decisions.
_REPLAYED = {"dynatune": ["summary", "--seeds", "1", "--slot-trials", "32", "--results", f"{QUICK}"]}


def about_replayed(name: str) -> str:
    return (import_module(f"benchmarks.{name}").__doc__ or "").splitlines()[0]


def runnable_here(names: list[str]) -> list[str]:
    """Those this machine can run; says which it cannot."""
    left_out = [] if find_device() else [name for name in names if name in ON_A_GPU]
    if left_out:
        print(f"left out, for want of an NVIDIA GPU: {', '.join(left_out)}", flush=True)
    if needing := [name for name in names if name in WITH_A_BUILD]:
        print(f"left out, for want of --build: {', '.join(needing)}", flush=True)
    if recorded := [name for name in names if name in ON_A_RECORDING]:
        print(f"left out, since its recording may not fit this machine: {', '.join(recorded)}", flush=True)
    return [name for name in names if name not in (*left_out, *needing, *recorded)]


def run_quick(names: list[str]) -> None:
    """Print a small table of each; exits with an error that names those that failed."""
    failed, began = [], time.monotonic()
    for name in names:
        print(f"\n--- {name}, after {time.monotonic() - began:.0f} s", flush=True)
        options = _REPLAYED.get(name, ["--quick"])
        shutil.rmtree(QUICK / "work" / name, ignore_errors=True)  # so that no earlier session is reused
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options], check=False).returncode:
            failed.append(name)
    print(f"\n{len(names) - len(failed)} tables in {time.monotonic() - began:.0f} s, also in {QUICK}")
    if failed:
        sys.exit(f"error: failed: {', '.join(failed)}; run one by itself with python -m benchmarks.NAME --quick")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--quick", action="store_true", help="run a smaller version of each and print the tables")
    options = parser.parse_args()
    known = {**titles(), **{name: about_replayed(name) for name in _REPLAYED}}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}: choose from {', '.join(known)}")
    if options.quick:
        run_quick(options.names or runnable_here(list(known)))
        return
    for name in options.names or known:
        print(f"{name:18} {known[name]}")


if __name__ == "__main__":
    main()
