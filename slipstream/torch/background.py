"""The process in which a graph is tuned while the program that captured it goes on."""

from __future__ import annotations

import json
import os
import sys

from slipstream.torch.tuning import tune_or_resume

if __name__ == "__main__":
    os.nice(10)
    tune_or_resume(json.loads(sys.stdin.read()))
