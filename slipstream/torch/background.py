"""The process in which a graph is tuned while the program that captured it goes on."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(job: dict[str, Any]) -> None:
    from slipstream.session.tune import tune

    os.nice(10)
    tune(
        job["program"],
        job["session"],
        budget=job["budget"],
        store=job["store"],
        target=job["target"],
        dtype=job["dtype"],
        threads=job["threads"],
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
