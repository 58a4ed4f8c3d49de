"""Builds the model with the best recorded programs: `python build_model.py '{"model": ..., "folder": ..., ...}'`.

The seconds it took, without importing the model, go into `built.json`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from relay_model import import_model


def main(job: dict[str, Any]) -> None:
    import tvm
    from tvm import auto_scheduler, relay

    folder = Path(job["folder"])
    module = import_model(job["model"], job["layout"])
    began = time.monotonic()
    with (
        auto_scheduler.ApplyHistoryBest(str(folder / "records.json")),
        tvm.transform.PassContext(opt_level=3, config={"relay.backend.use_auto_scheduler": True}),
    ):
        library = relay.build(module, target=tvm.target.Target(job["target"]))
    library.export_library(str(folder / "model.so"))
    (folder / "built.json").write_text(json.dumps({"seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
