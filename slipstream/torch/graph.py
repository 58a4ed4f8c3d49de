"""One graph that PyTorch captured: compiled for the shapes it is called with, in eager PyTorch where it cannot be."""

from __future__ import annotations

import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slipstream.artifact.loaded import CompiledModel, load
from slipstream.errors import InputError, SlipstreamError
from slipstream.torch.cache import digest_of, folder_of

logger = logging.getLogger(__name__)

# Parameters that change more often than that are not constants.
_MOST_CHANGES = 3
_graphs: weakref.WeakSet[Graph] = weakref.WeakSet()


@dataclass(frozen=True)
class Options:
    """What `torch.compile(options=...)` may hold."""

    budget: str | float | None = None
    store: str | None = None
    dtype: str = "float32"
    threads: int | None = None

    @staticmethod
    def of(options: Mapping[str, Any] | None, mode: str | None) -> Options:
        if mode is not None:
            raise InputError(f'slipstream has no mode {mode!r}: leave it out; options={{"budget": "3m"}} tunes')
        names = [option.name for option in fields(Options)]
        if unknown := sorted(set(options or ()) - set(names)):
            raise InputError(f"slipstream has no option {unknown[0]!r}: it has {', '.join(names)}")
        return Options(**dict(options or {}))


@dataclass
class Variant:
    """A graph's compiled form for inputs of certain shapes. `model` is replaced when a faster one is there."""

    folder: Path
    options: Options
    model: CompiledModel
    positions: tuple[int, ...]  # of the graph's inputs that change from call to call
    constants: tuple[Any, ...]
    versions: tuple[int, ...]
    outputs: tuple[Any, ...]  # of each output: its number among the model's, or what it always is
    seconds: float = 0.0

    def holds_for(self, constants: Sequence[Any]) -> bool:
        """Whether parameters and buffers are what they were when the graph was compiled."""
        same = all(now is then for now, then in zip(constants, self.constants, strict=True))
        return same and tuple(tensor._version for tensor in constants) == self.versions

    @property
    def session(self) -> Path:
        """Where it is tuned."""
        return self.folder / "tuned"

    def reload(self) -> None:
        """Use the tuned model."""
        self.model = load(self.session, threads=self.options.threads)


class Graph:
    """What AOTAutograd calls: a list of tensors in, a list of tensors out. The list it is given is emptied.

    `use` is called with each variant that is compiled and not tuned.
    """

    _boxed_call = True

    def __init__(self, module: Any, options: Options, use: Callable[[Variant], None]) -> None:
        from torch._guards import TracingContext

        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        self.module, self.options, self._use = module, options, use
        # Parameters and buffers, but for those that the graph itself changes: they are inputs like any other.
        static = metadata.static_input_indices if metadata is not None else ()
        changed = metadata.mutated_inp_runtime_indices if metadata is not None else ()
        self.static = tuple(sorted(set(static) - set(changed)))
        self.variants: dict[tuple[Any, ...], Variant | None] = {}
        self.parameters: list[weakref.ref[Any]] = []
        self._changes = 0
        self._lock = threading.Lock()
        _graphs.add(self)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        values = list(arguments)
        arguments.clear()
        key = tuple((*v.shape, v.dtype, v.device) if hasattr(v, "shape") else v for v in values)
        variant = self.variants.get(key)
        if key not in self.variants or (variant and not variant.holds_for([values[i] for i in self.static])):
            variant = self._compile(key, values)
        if variant is None:
            eager: Sequence[Any] = self.module(*values)
            return eager
        began = time.perf_counter()
        results = _run(variant.model, [values[position] for position in variant.positions])
        variant.seconds += time.perf_counter() - began
        return [results[what] if isinstance(what, int) else what.value for what in variant.outputs]

    def _compile(self, key: tuple[Any, ...], values: Sequence[Any]) -> Variant | None:
        with self._lock:
            known = self.variants.get(key)
            constants = [values[position] for position in self.static]
            if key in self.variants and (known is None or known.holds_for(constants)):
                return known  # another thread was first
            self._changes += known is not None
            try:
                if self._changes > _MOST_CHANGES:
                    raise SlipstreamError(f"its parameters have changed {self._changes} times")
                # In a thread of its own: this one may still be in the modes in which PyTorch traced the graph.
                with ThreadPoolExecutor(1) as thread:
                    self.variants[key] = made = thread.submit(_compiled, self, values).result()
                self.parameters = [weakref.ref(constant) for constant in constants]
            except Exception as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                logger.warning(
                    "slipstream runs a graph of %d nodes in eager PyTorch: %s", len(self.module.graph.nodes), reason
                )
                self.variants[key] = made = None
            if made is not None and not made.model.manifest.tuned:
                self._use(made)
            return made


@dataclass(frozen=True)
class Always:
    """An output that does not depend on values of inputs."""

    value: Any


def live_graphs(compiled: Any) -> list[Graph]:
    """The compiled graphs of what `torch.compile` returned: those with a parameter of the module, or without any."""
    graphs = [graph for graph in _graphs if any(graph.variants.values())]
    owned = {
        id(tensor)
        for kind in ("parameters", "buffers")
        if hasattr(compiled, kind)
        for tensor in getattr(compiled, kind)()
    }
    if not owned:
        return [graph for graph in graphs if not graph.parameters]
    return [graph for graph in graphs if any(id(reference()) in owned for reference in graph.parameters)]


def _compiled(graph: Graph, values: Sequence[Any]) -> Variant:
    """Compile for these values' shapes, or load what an earlier process compiled."""
    import torch

    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        raise SlipstreamError(f"its inputs are on {', '.join(sorted(map(str, devices))) or 'no device'}: one is needed")
    device = devices.pop()
    if device.type not in ("cpu", "cuda") or device.index not in (None, 0):
        raise SlipstreamError(f"its inputs are on {device}: slipstream compiles for the CPU and the first GPU")
    positions = tuple(i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and i not in graph.static)
    outputs, returned = _outputs(graph.module, values)
    constants = tuple(values[i] for i in graph.static)
    folder = folder_of(digest_of(graph.module, values, graph.static, graph.options, device.type))
    if not (folder / "model").exists() and not (folder / "tuned" / "model").exists():
        _write(folder, graph, values, positions, returned, device.type)
    tuned = folder / "tuned"
    model = load(tuned if (tuned / "model").exists() else folder / "model", threads=graph.options.threads)
    versions = tuple(constant._version for constant in constants)
    return Variant(folder, graph.options, model, positions, constants, versions, outputs)


def _outputs(module: Any, values: Sequence[Any]) -> tuple[tuple[Any, ...], list[int]]:
    """Of each output of the graph: its number among those that are computed, or its value; and which are computed."""
    import torch

    (result,) = next(node for node in module.graph.nodes if node.op == "output").args
    computed = [i for i, node in enumerate(result) if node is not None and isinstance(node.meta["val"], torch.Tensor)]
    if len(computed) == len(result):
        return tuple(range(len(result))), computed
    with torch.no_grad():
        once = module(*values)  # numbers among the outputs follow from shapes
    return tuple(computed.index(i) if i in computed else Always(once[i]) for i in range(len(result))), computed


def _write(
    folder: Path, graph: Graph, values: Sequence[Any], positions: Sequence[int], returned: Sequence[int], device: str
) -> None:
    """Export the graph with its parameters as constants, compile it, and keep the program for tuning."""
    import torch

    from slipstream.artifact.compile import compile

    class Frozen(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.graph = graph.module
            self.fixed = [value for i, value in enumerate(values) if i not in positions]
            for number, value in enumerate(self.fixed):
                if isinstance(value, torch.Tensor):
                    self.register_buffer(f"constant{number}", value.detach())

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            given, numbers = iter(inputs), iter(range(len(self.fixed)))
            arguments = []
            for position in range(len(values)):
                if position in positions:
                    arguments.append(next(given))
                else:
                    number = next(numbers)
                    arguments.append(getattr(self, f"constant{number}", self.fixed[number]))
            results = self.graph(*arguments)
            return tuple(results[i] for i in returned)

    inputs = tuple(values[i].detach() for i in positions)
    options = graph.options
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's about PyTorch
        program = torch.export.export(Frozen().eval(), inputs, strict=False)
        folder.mkdir(parents=True, exist_ok=True)
        torch.export.save(program, str(folder / "program.pt2"))
        compile(program, folder / "model", target=device, dtype=options.dtype, threads=options.threads)


def _run(model: CompiledModel, inputs: Sequence[Any]) -> list[Any]:
    import torch

    if inputs and inputs[0].device.type == "cuda":
        torch.cuda.current_stream().synchronize()  # the model runs on a stream of its own
        return [torch.from_dlpack(result) for result in model.on_device(*inputs)()]
    return [torch.from_dlpack(result) for result in model(*[tensor.detach() for tensor in inputs])]
