"""The same model in other runtimes, ready to be timed against a compiled artifact."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.artifact.manifest import Manifest
from slipstream.errors import ArtifactError, InputError, MissingDependencyError
from slipstream.frontends.inputs import Array

Run = Callable[[], list[Any]]
"""Runs a model once and waits for it; threads may call it at the same time. The outputs are arrays, or torch tensors
where that would cost a copy."""

NAMES = ("onnxruntime", "openvino", "torch", "torch.compile")
_WARM_UP = 3
_IMAGES = 4  # dimensions of a batch of them
# On a GPU; `torch.compile` is its default mode there, since trying everything takes minutes.
GPU_NAMES = ("torch", "torch:tf32", "torch.compile", "torch.compile:max-autotune")
_SPINNING, _NO_SPINNING = "spinning", "no spinning"
_EXACT = "exact sums"
_OPENVINO_SETTINGS: dict[str, dict[str, Any]] = {
    "latency": {},
    "threads not pinned": {"ENABLE_CPU_PINNING": False},
    "throughput": {"PERFORMANCE_HINT": "THROUGHPUT"},
}


@dataclass(frozen=True)
class ModelFiles:
    """The artifact's own model as other runtimes read it: a `.pt2`, or two ONNX files."""

    source: str
    fingerprint: str  # of the artifact's model
    dtype: str
    gpu: bool
    fixed: str = ""  # ONNX as it was given, but for its shapes
    clean: str = ""  # the same, simplified
    shapes: dict[str, list[int]] = field(default_factory=dict)  # of the inputs of a .pt2, where they are fixed


def settings_of(name: str, callers: int = 1) -> tuple[str, ...]:
    """Settings of a runtime of which none is the fastest for every model and pattern of requests."""
    if name == "onnxruntime":
        return (_SPINNING, _NO_SPINNING)
    if name == "openvino":  # its streams for throughput need requests that overlap
        return tuple(setting for setting in _OPENVINO_SETTINGS if callers > 1 or setting != "throughput")
    return ("",)


def forms_of(name: str, setting: str) -> tuple[str, ...]:
    """A setting, and what takes its place where it computes something else (`machine/exact_onnx.py`)."""
    return (setting, f"{setting}, {_EXACT}") if name == "onnxruntime" else (setting,)


def check_baseline(name: str, manifest: Manifest, model: str | None) -> None:
    """Raises if the runtime called `name` cannot take the artifact's model; nothing of it is imported."""
    names = GPU_NAMES if manifest.gpu else NAMES
    if name not in names:
        where = " on a GPU" if manifest.gpu else ""
        raise InputError(f"unknown baseline {name!r}{where}: choose from {', '.join(names)}")
    source = model or manifest.source
    if source == "memory":
        raise ArtifactError("this artifact was compiled from a model in memory: give its file with --model")
    if source.endswith(".pt2") and not name.startswith("torch"):
        where = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}[name]
        raise InputError(f"a PyTorch model cannot run in {where} as it is: bench it --against torch")
    if not source.startswith("zoo:") and not Path(source).is_file():
        raise ArtifactError(f"the model {source} is gone: give its new place with --model")


def model_files(
    manifest: Manifest, model: str | None, input_data: dict[str, Array] | None = None
) -> tuple[ModelFiles, object]:
    """The artifact's own model as files, and an object that deletes those of them that were made for this.

    `input_data` are the inputs to run it on; without them they are random.
    """
    source = model or manifest.source
    files = ModelFiles(source, manifest.fingerprint, manifest.dtype, bool(manifest.gpu))
    if source.endswith(".pt2"):
        return replace(files, shapes=manifest.options.get("shapes", {})), None
    try:
        from slipstream.frontends import zoo
        from slipstream.frontends.onnx_import import clean_onnx
    except ImportError as error:
        raise MissingDependencyError(f"{source} cannot be read without {error.name}: install it with pip") from error
    if source.startswith("zoo:"):
        reference, facts = clean_onnx(zoo.build(source.removeprefix("zoo:")), **manifest.options, disposable=True)
    else:
        reference, facts = clean_onnx(Path(source), **manifest.options, input_data=input_data)
    _must_match(facts["fingerprint"], manifest.fingerprint, source)
    return replace(files, fixed=str(reference.path), clean=str(reference.clean_path)), reference


def import_for(name: str) -> None:
    """Import what `open_baseline` needs, where it is installed."""
    if name == "onnxruntime":
        from slipstream.frontends import onnx_run  # noqa: F401


def open_baseline(name: str, files: ModelFiles, feeds: dict[str, Array], threads: int, setting: str = "") -> Run:
    """The model in the runtime called `name`, with one of `settings_of` or with its defaults."""
    if name == "onnxruntime":
        from slipstream.frontends import onnx_run

        spinning, exact = not setting.startswith(_NO_SPINNING), setting.endswith(_EXACT)
        session = onnx_run.session(files.fixed, threads=threads, spinning=spinning, exact=exact)
        return lambda: onnx_run.run(session, feeds)
    if name == "openvino":
        return run_openvino(compile_openvino(Path(files.fixed), threads, **_OPENVINO_SETTINGS.get(setting, {})), feeds)
    module = _module_of_pt2(files) if files.source.endswith(".pt2") else torch_module(Path(files.clean))
    return _run_on_gpu(name, module, feeds, files.dtype) if files.gpu else _run_torch(name, module, feeds, threads)


def torch_module(path: Path) -> Any:
    """The ONNX model at `path` as a torch module."""
    import onnx

    _import_torch()
    from slipstream.frontends.onnx_as_torch import as_torch

    return as_torch(onnx.load(str(path)))


def _module_of_pt2(files: ModelFiles) -> Any:
    torch = _import_torch()
    from slipstream.frontends.torch_export import fingerprint, static_program
    from slipstream.frontends.torch_tensors import of_tensors

    program = static_program(torch.export.load(files.source), files.shapes)
    _must_match(fingerprint(program), files.fingerprint, files.source)
    return of_tensors(program).module()


def compile_openvino(model: Path, threads: int, **settings: Any) -> Any:
    """In float32 as the artifact: left alone it takes bfloat16 where the CPU has it."""
    try:
        import openvino
    except ImportError as error:
        raise MissingDependencyError("OpenVINO is not installed: pip install openvino") from error
    usual = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    core = openvino.Core()
    return core.compile_model(core.read_model(str(model)), "CPU", {**usual, **settings})


def run_openvino(compiled: Any, feeds: dict[str, Array]) -> Run:
    """A request for every caller."""
    outputs = range(len(compiled.outputs))
    callers = threading.local()

    def run() -> list[Any]:
        request = getattr(callers, "request", None)
        if request is None:
            request = callers.request = compiled.create_infer_request()
        request.infer(feeds, share_inputs=True, share_outputs=True)
        return [request.get_output_tensor(position).data for position in outputs]

    return run


def _run_on_gpu(name: str, module: Any, feeds: dict[str, Array], dtype: str) -> Run:
    """As a CUDA graph on inputs that are on the device already: nothing but the kernels is timed.

    In float32 throughout, as the artifact is, unless TensorFloat-32, which keeps 10 bits of each factor, is asked for
    or used by the artifact. An artifact in half precision is compared with a model of nothing but halves.
    """
    torch = _import_torch()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "torch:tf32" or dtype == "tf32"
    torch.backends.cudnn.benchmark = True
    module = module.to("cuda")
    tensors = [torch.from_numpy(value).to("cuda") for value in feeds.values()]
    if dtype in ("float16", "bfloat16"):
        module, tensors = in_half_precision(module, tensors, dtype)
    if name.startswith("torch.compile"):
        mode = "max-autotune-no-cudagraphs" if name.endswith("max-autotune") else "default"
        module = torch.compile(module, fullgraph=True, mode=mode)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                module(*tensors)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            outputs = torch.utils._pytree.tree_leaves(module(*tensors))

    # The graph has their addresses and nothing that keeps them.
    kept = (module, tensors, outputs)
    one_at_a_time = threading.Lock()

    def run() -> list[Any]:
        with one_at_a_time:
            graph.replay()
            torch.cuda.synchronize()
        return list(kept[2])

    return run


def in_half_precision(module: Any, tensors: list[Any], dtype: str = "float16") -> tuple[Any, list[Any]]:
    """A float32 module and its inputs with every weight, constant and cast in `dtype`, images channels last.

    `module.half()` alone leaves casts to float32 in the model, such as that of an attention mask: what is computed
    from them is float32, and cannot be multiplied with halves.
    """
    torch = _import_torch()
    from slipstream.frontends.torch_floats import change_floats

    # Whatever the module is made of, exported it is one graph of functions, whose arguments say all types.
    exported = torch.export.export(module, tuple(tensors)).module()
    kind = getattr(torch, dtype)

    def halved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        # A finite number must not become infinite: a mask of 0 times -1e38 is 0, of 0 times infinity is not.
        largest = torch.finfo(kind).max
        half = torch.where(value.isfinite(), value.clamp(-largest, largest), value).to(kind)
        return half.to(memory_format=torch.channels_last) if half.ndim == _IMAGES else half

    return change_floats(exported, {torch.float32: kind}, halved), [halved(tensor) for tensor in tensors]


def _run_torch(name: str, module: Any, feeds: dict[str, Array], threads: int) -> Run:
    torch = _import_torch()
    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(value) for value in feeds.values()]
    if name == "torch.compile":
        module = torch.compile(module, fullgraph=True, mode="max-autotune-no-cudagraphs")

    def run() -> list[Array]:
        with torch.inference_mode():
            return [leaf.numpy() for leaf in torch.utils._pytree.tree_leaves(module(*tensors))]

    return run


def _import_torch() -> Any:
    from slipstream.frontends.torch_export import import_torch

    return import_torch()


def _must_match(fingerprint: str, expected: str, source: str) -> None:
    if fingerprint != expected:
        raise ArtifactError(f"{source} is not the model this artifact was compiled from: compile it again")
