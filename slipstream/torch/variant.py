"""A captured graph compiled for inputs of certain shapes: exported, kept by content, loaded and run."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_
from pathlib import Path
from typing import Any

from slipstream.artifact.loaded import CompiledModel, load
from slipstream.errors import SlipstreamError
from slipstream.frontends.torch_floats import half_of
from slipstream.torch.cache import compiling, digest_of, folder_of, share_weights
from slipstream.torch.gpu_call import is_capturing, run_on_gpu
from slipstream.torch.options import Options


@dataclass(frozen=True)
class Computed:
    """An output of the compiled model; with strides if PyTorch's would not be dense."""

    number: int
    strides: tuple[int, ...] | None


@dataclass(frozen=True)
class Always:
    """An output that does not depend on values of inputs, such as a number that follows from shapes."""

    value: Any


@dataclass
class Variant:
    """A graph's compiled form. `model` is replaced when a faster one is there."""

    folder: Path
    options: Options
    module: Any
    values: tuple[Any, ...]  # of the graph's inputs that do not change from call to call; None for the others
    model: CompiledModel
    positions: tuple[int, ...]  # of those that do
    constants: tuple[Any, ...]
    states: list[int]
    outputs: tuple[Computed | Always, ...]
    seconds: float = 0.0

    def holds_for(self, constants: Sequence[Any]) -> bool:
        """Whether parameters and buffers are what they were when the graph was compiled."""
        return all(map(is_, constants, self.constants)) and _states(self.constants) == self.states

    def run(self, values: Sequence[Any]) -> Sequence[Any]:
        """The graph's outputs for its inputs."""
        if self.model.manifest.gpu and is_capturing():
            eager: Sequence[Any] = self.module(*values)
            return eager
        results = _run(self.model, [values[position] for position in self.positions])
        return [_as_output(what, results) if isinstance(what, Computed) else what.value for what in self.outputs]

    @property
    def session(self) -> Path:
        """Where it is tuned."""
        return self.folder / "tuned"

    @property
    def program(self) -> Path:
        """What is tuned; written when it is first asked for."""
        import torch

        path = self.folder / "program.pt2"
        if not path.exists():
            inputs = [_zeros(spec, self.model.manifest.gpu) for spec in self.model.inputs]
            torch.export.save(_exported(self.module, self.values, self.positions, self.outputs, inputs), str(path))
        return path

    def reload(self) -> None:
        """Use the tuned model."""
        self.model = load(self.session, threads=self.options.threads)


def compile_variant(module: Any, values: Sequence[Any], static: Sequence[int], options: Options) -> Variant:
    """Compile a graph for the shapes of `values`, or load what an earlier process compiled.

    What is at a `static` position is a constant.
    """
    import torch

    device = _device(values)
    positions = tuple(i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and i not in static)
    if not positions:
        raise SlipstreamError("it has no inputs but parameters")
    constants = tuple(values[i] for i in static)
    fixed = tuple(None if i in positions else value for i, value in enumerate(values))
    outputs = _outputs(module, values)
    options = _with_dtype(options, values, device)
    folder = folder_of(digest_of(module, values, static, options, device))
    with compiling(folder):
        if not _has_model(folder):
            from slipstream.artifact.compile import compile

            inputs = [values[i].detach() for i in positions]
            program = _exported(module, fixed, positions, outputs, inputs)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # PyTorch's about PyTorch
                compile(program, folder / "model", target=device, dtype=options.dtype, threads=options.threads)
            share_weights(folder / "model")
    tuned = folder / "tuned"
    model = load(tuned if (tuned / "model").exists() else folder / "model", threads=options.threads)
    return Variant(folder, options, module, fixed, model, positions, constants, _states(constants), outputs)


def _with_dtype(options: Options, values: Sequence[Any], device: str) -> Options:
    """On a GPU a graph of nothing but halves is compiled for them; on a CPU it is computed in float32."""
    import torch

    half = half_of(value for value in values if isinstance(value, torch.Tensor))
    return replace(options, dtype=half) if half and device == "cuda" and options.dtype == "float32" else options


def _has_model(folder: Path) -> bool:
    return (folder / "model").exists() or (folder / "tuned" / "model").exists()


def _states(tensors: Sequence[Any]) -> list[int]:
    """Others after a change of one; tensors of inference mode have no version."""
    return [t.data_ptr() for t in tensors] + [0 if t.is_inference() else t._version for t in tensors]


def _device(values: Sequence[Any]) -> str:
    """The kind of device that all tensors are on."""
    import torch

    devices = {value.device for value in values if isinstance(value, torch.Tensor)}
    if len(devices) > 1:
        raise SlipstreamError(f"its inputs are on {', '.join(sorted(map(str, devices)))}: one device is needed")
    (device,) = devices
    if device.type not in ("cpu", "cuda") or device.index not in (None, 0):
        raise SlipstreamError(f"its inputs are on {device}: slipstream compiles for the CPU and the first GPU")
    return str(device.type)


def _outputs(module: Any, values: Sequence[Any]) -> tuple[Computed | Always, ...]:
    """What each output of the graph will be for inputs like these; nothing is computed."""
    import torch
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        results = module(*[mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in values])
    outputs: list[Computed | Always] = []
    number = 0
    for result in results:
        if not isinstance(result, torch.Tensor):
            outputs.append(Always(result))
            continue
        outputs.append(Computed(number, None if result.is_contiguous() else tuple(map(int, result.stride()))))
        number += 1
    return tuple(outputs)


def _exported(
    module: Any, fixed: Sequence[Any], positions: Sequence[int], outputs: Sequence[Any], inputs: Sequence[Any]
) -> Any:
    """The graph as a program of the inputs that change, with the others as constants."""
    import torch

    returned = [i for i, output in enumerate(outputs) if isinstance(output, Computed)]

    class Frozen(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.graph = module
            for position, value in enumerate(fixed):
                if isinstance(value, torch.Tensor):
                    self.register_buffer(f"constant{position}", value.detach())

        def forward(self, *given: Any) -> tuple[Any, ...]:
            arguments = [getattr(self, f"constant{position}", value) for position, value in enumerate(fixed)]
            for position, value in zip(positions, given, strict=True):
                arguments[position] = value
            results = self.graph(*arguments)
            return tuple(results[i] for i in returned)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.export.export(Frozen().eval(), tuple(inputs), strict=False)
        if any(tensor.is_cuda for tensor in inputs):
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, "cpu")  # where it is imported and verified
        return program


def _zeros(spec: Any, gpu: str) -> Any:
    import torch

    return torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device="cuda" if gpu else "cpu")


def _as_output(what: Computed, results: Sequence[Any]) -> Any:
    import torch

    result = results[what.number]
    if what.strides is None:
        return result
    return torch.empty_strided(result.shape, what.strides, dtype=result.dtype, device=result.device).copy_(result)


def _run(model: CompiledModel, inputs: Sequence[Any]) -> list[Any]:
    import torch

    if inputs[0].is_cuda:
        return run_on_gpu(model, inputs)
    return [torch.from_dlpack(result) for result in model(*[tensor.detach() for tensor in inputs])]
