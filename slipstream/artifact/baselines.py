"""The same model in other runtimes, ready to be timed against a compiled artifact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.artifact.manifest import Manifest
from slipstream.errors import ArtifactError, InputError, MissingDependencyError
from slipstream.frontends.inputs import Array

Run = Callable[[], list[Any]]
"""Runs a model once and waits for it. The outputs are arrays, or torch tensors where that would cost a copy."""

NAMES = ("onnxruntime", "openvino", "torch", "torch.compile")
_WARM_UP = 3
_IMAGES = 4  # dimensions of a batch of them
# On a GPU; `torch.compile` is its default mode there, since trying everything takes minutes.
GPU_NAMES = ("torch", "torch:tf32", "torch.compile", "torch.compile:max-autotune")


def baseline(name: str, manifest: Manifest, model: str | None, feeds: dict[str, Array], threads: int) -> Run:
    """A function that runs the artifact's own model once on `feeds` in the runtime called `name`."""
    names = GPU_NAMES if manifest.gpu else NAMES
    if name not in names:
        where = " on a GPU" if manifest.gpu else ""
        raise InputError(f"unknown baseline {name!r}{where}: choose from {', '.join(names)}")
    source = model or manifest.source
    if source == "memory":
        raise ArtifactError("this artifact was compiled from a model in memory: give its file with --model")
    if source.endswith(".pt2"):
        return _from_pt2(name, Path(source), manifest, feeds, threads)
    return _from_onnx(name, source, manifest, feeds, threads)


def _from_onnx(name: str, source: str, manifest: Manifest, feeds: dict[str, Array], threads: int) -> Run:
    from slipstream.frontends import onnx_run, zoo
    from slipstream.frontends.onnx_import import clean_onnx

    if source.startswith("zoo:"):
        reference, facts = clean_onnx(zoo.build(source.removeprefix("zoo:")), **manifest.options, disposable=True)
    else:
        _must_exist(source)
        reference, facts = clean_onnx(Path(source), **manifest.options)
    _must_match(facts["fingerprint"], manifest, source)
    if name == "onnxruntime":
        session = onnx_run.session(reference.path, threads=threads)
        return lambda: onnx_run.run(session, feeds)
    if name == "openvino":
        return run_openvino(reference.path, feeds, threads)
    return _run_torch(name, torch_module(reference.clean_path), manifest, feeds, threads)


def torch_module(path: Path) -> Any:
    """The ONNX model at `path` as a torch module."""
    import onnx

    _import_torch()
    from slipstream.frontends.onnx_as_torch import as_torch

    return as_torch(onnx.load(str(path)))


def _from_pt2(name: str, path: Path, manifest: Manifest, feeds: dict[str, Array], threads: int) -> Run:
    if not name.startswith("torch"):
        where = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}[name]
        raise InputError(f"a PyTorch model cannot run in {where} as it is: bench it --against torch")
    torch = _import_torch()
    from slipstream.frontends.torch_export import fingerprint

    _must_exist(str(path))
    program = torch.export.load(str(path))
    _must_match(fingerprint(program), manifest, str(path))
    return _run_torch(name, program.module(), manifest, feeds, threads)


def run_openvino(model: Path, feeds: dict[str, Array], threads: int, **settings: Any) -> Run:
    """One request at a time, in float32 as the artifact: left alone it takes bfloat16 where the CPU has it."""
    try:
        import openvino
    except ImportError as error:
        raise MissingDependencyError("OpenVINO is not installed: pip install openvino") from error
    usual = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    core = openvino.Core()
    request = core.compile_model(core.read_model(str(model)), "CPU", {**usual, **settings}).create_infer_request()
    outputs = range(len(request.model_outputs))

    def run() -> list[Any]:
        request.infer(feeds, share_inputs=True, share_outputs=True)
        return [request.get_output_tensor(position).data for position in outputs]

    return run


def _run_on_gpu(name: str, module: Any, feeds: dict[str, Array], dtype: str) -> Run:
    """As a CUDA graph on inputs that are on the device already: nothing but the kernels is timed.

    In float32 throughout, as the artifact is, unless TensorFloat-32 is asked for, which keeps 10 bits of each factor.
    An artifact in half precision is compared with a model of nothing but halves.
    """
    torch = _import_torch()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "torch:tf32"
    torch.backends.cudnn.benchmark = True
    module = module.to("cuda")
    tensors = [torch.from_numpy(value).to("cuda") for value in feeds.values()]
    if dtype == "float16":
        module, tensors = in_half_precision(module, tensors)
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

    def run() -> list[Any]:
        graph.replay()
        torch.cuda.synchronize()
        return list(kept[2])

    return run


def in_half_precision(module: Any, tensors: list[Any]) -> tuple[Any, list[Any]]:
    """A float32 module and its inputs with every weight, constant and cast in float16, images channels last.

    `module.half()` alone leaves casts to float32 in the model, such as that of an attention mask: what is computed
    from them is float32, and cannot be multiplied with halves.
    """
    torch = _import_torch()
    # Whatever the module is made of, exported it is one graph of functions, whose arguments say all types.
    exported = torch.export.export(module, tuple(tensors)).module()

    def halved(value: Any) -> Any:
        if value is torch.float32:
            return torch.float16
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
            return value
        # A finite number must not become infinite: a mask of 0 times -1e38 is 0, of 0 times infinity is not.
        largest = torch.finfo(torch.float16).max
        half = torch.where(value.isfinite(), value.clamp(-largest, largest), value).half()
        return half.to(memory_format=torch.channels_last) if half.ndim == _IMAGES else half

    for node in exported.graph.nodes:
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), halved)
    exported.recompile()
    return exported._apply(halved), [halved(tensor) for tensor in tensors]


def _run_torch(name: str, module: Any, manifest: Manifest, feeds: dict[str, Array], threads: int) -> Run:
    if manifest.gpu:
        return _run_on_gpu(name, module, feeds, manifest.dtype)
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


def _must_exist(source: str) -> None:
    if not Path(source).is_file():
        raise ArtifactError(f"the model {source} is not there any more: give its new place with --model")


def _must_match(fingerprint: str, manifest: Manifest, source: str) -> None:
    if fingerprint != manifest.fingerprint:
        raise ArtifactError(f"{source} is not the model this artifact was compiled from: compile it again")
