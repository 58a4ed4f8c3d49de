"""IREE: the model through its ONNX importer, compiled for this very CPU, at two of its levels of optimisation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipstream.artifact.bench import BaselineError
from slipstream.errors import MissingDependencyError

SETTINGS = {
    "O2": ["--iree-opt-level=O2"],
    "O3, data tiling": ["--iree-opt-level=O3", "--iree-opt-data-tiling"],
}
_OPSET = "17"  # the only opset its importer supports; older models are converted to it


def open_iree(job: Mapping[str, Any], feeds: dict[str, Any]) -> Callable[[], list[Any]]:
    try:
        import iree.compiler
        import iree.runtime as runtime
    except ImportError as error:
        raise MissingDependencyError("IREE is not installed: pip install '.[rivals]'") from error
    # Before there is a device: it makes its threads then.
    runtime.flags.parse_flags(f"--task_topology_group_count={job['threads']}")
    config, options, setting = runtime.Config("local-task"), job["options"], job["setting"]
    binary = Path(options["work"], f"{setting.replace(', ', '-').replace(' ', '-')}.vmfb")
    if not binary.exists():
        _compile(iree.compiler, Path(options["clean"]), binary, SETTINGS[setting])
    module = runtime.VmModule.mmap(config.vm_instance, str(binary))
    (name,) = (name for name in module.function_names if name[0] != "_" and not name.endswith("$async"))
    main = runtime.load_vm_module(module, config)[name]
    arguments = [runtime.asdevicearray(config.device, value) for value in feeds.values()]

    def run() -> list[Any]:
        results = main(*arguments)
        return [result.to_host() for result in (results if isinstance(results, tuple | list) else [results])]

    return run


def _compile(compiler: Any, model: Path, binary: Path, options: list[str]) -> None:
    source, unfinished = binary.with_suffix(".mlir"), binary.with_suffix(".unfinished")
    importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(model), "-o", str(source)]
    imported = subprocess.run([*importer, "--opset-version", _OPSET], capture_output=True, text=True, check=False)
    if imported.returncode:
        raise BaselineError("iree", f"cannot import it: {imported.stderr.strip().splitlines()[-1]}"[:200])
    try:
        compiler.compile_file(
            str(source),
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host", *options],
            output_file=str(unfinished),
        )
    except compiler.CompilerToolError as error:
        errors = [line for line in str(error).splitlines() if "error:" in line]
        raise BaselineError("iree", f"cannot compile it: {errors[0] if errors else 'crashed'}"[:200]) from error
    finally:
        source.unlink(missing_ok=True)
    unfinished.rename(binary)
