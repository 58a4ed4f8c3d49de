"""A built model, called as a function, as asked by `benchmarks.originals.contender`: a line of JSON each way."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_STEP_SECONDS = 0.01
_IDLE_SHARE = 0.1  # of a core: below this the process is idle
_MOST_SECONDS_TO_IDLE = 1.0


class LoadedModel:
    """Methods are the questions it answers."""

    def __init__(self, job: dict[str, Any]) -> None:
        import numpy as np

        began = time.perf_counter()
        import tvm
        from tvm.contrib import graph_executor

        imported = time.perf_counter()
        self._save = np.savez
        library = tvm.runtime.load_module(job["directory"])
        self._model = graph_executor.GraphModule(library["default"](tvm.cpu()))
        with np.load(job["feeds"]) as archive:
            self._feeds = dict(archive)
        self._call()
        self.facts = {
            "import_seconds": imported - began,
            "load_seconds": time.perf_counter() - imported,
            "memory_bytes": 0,
            "process_threads": len(os.listdir("/proc/self/task")),
        }

    def outputs(self, path: str) -> dict[str, Any]:
        self._save(path, **{f"{place}.0": output for place, output in enumerate(self._call())})
        return {}

    def block(self, pattern: dict[str, Any], seconds: float, seed: int) -> dict[str, Any]:
        """Calls back to back for so many seconds after one that is not counted; returns when its threads are idle."""
        self._call()
        latencies: list[float] = []
        began, processor = time.perf_counter(), time.process_time()
        while not latencies or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            self._call()
            latencies.append(time.perf_counter() - start)
        took, used = time.perf_counter() - began, time.process_time() - processor
        _wait_until_idle()
        return {"latencies": latencies, "seconds": took, "processor_seconds": used}

    def _call(self) -> list[Any]:
        """From arrays to arrays, as the other sides are called."""
        self._model.set_input(**self._feeds)
        self._model.run()
        return [self._model.get_output(place).numpy() for place in range(self._model.get_num_outputs())]


def _wait_until_idle() -> None:
    deadline = time.perf_counter() + _MOST_SECONDS_TO_IDLE
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(_STEP_SECONDS)
        if time.process_time() - used < _IDLE_SHARE * _STEP_SECONDS:
            return


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        model = LoadedModel(json.loads(sys.stdin.readline()))
        say({"result": model.facts})
        for line in sys.stdin:
            question = json.loads(line)
            say({"result": getattr(model, question.pop("question"))(**question)})
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        say({"failed": lines[-1] if lines else type(error).__name__})


if __name__ == "__main__":
    main()
