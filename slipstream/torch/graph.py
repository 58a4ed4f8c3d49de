"""One graph that PyTorch captured: compiled for the shapes it is called with, in eager PyTorch where it cannot be."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.frontends.torch_indices import use_positive_indices
from slipstream.torch.decompositions import use_plain_softmax
from slipstream.torch.options import Options
from slipstream.torch.variant import Variant, compile_variant
from slipstream.torch.whole_layers import restore

logger = logging.getLogger(__name__)

# Parameters that change more often than that are not constants.
_MOST_CHANGES = 3
_graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
_compiling = threading.Lock()


class NotCompiledError(SlipstreamError):
    """Why a graph is left to PyTorch as it was captured. Without a text nobody has to be told."""


class Graph:
    """What AOTAutograd calls: a list of tensors in, a list of tensors out. The list it is given is emptied.

    `use` is called with each variant that is compiled and not tuned.
    """

    _boxed_call = True

    def __init__(self, module: Any, options: Options, use: Callable[[Variant], None]) -> None:
        from torch._guards import TracingContext

        check_compilable(module)
        restore(module)
        use_plain_softmax(module)
        use_positive_indices(module)
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
        self._is_eager = False  # whatever the shapes are
        _graphs.add(self)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        values = list(arguments)
        arguments.clear()
        key = tuple((*v.shape, v.dtype, v.device) if hasattr(v, "shape") else v for v in values)
        variant = self.variants.get(key)
        if (variant is None and not self._is_left_to_pytorch(key)) or (
            variant is not None and not variant.holds_for([values[i] for i in self.static])
        ):
            variant = self._compile(key, values)
        if variant is None:
            eager: Sequence[Any] = self.module(*values)
            return eager
        began = time.perf_counter()
        results = variant.run(values)
        variant.seconds += time.perf_counter() - began
        return results

    def _is_left_to_pytorch(self, key: tuple[Any, ...]) -> bool:
        return self._is_eager or key in self.variants or len(self.variants) > self.options.max_shapes

    def _compile(self, key: tuple[Any, ...], values: Sequence[Any]) -> Variant | None:
        with _compiling:
            known = self.variants.get(key)
            constants = [values[position] for position in self.static]
            if known is None and self._is_left_to_pytorch(key):
                return None
            if known is not None and known.holds_for(constants):
                return known  # another thread was first
            self.variants[key] = made = self._made(known is not None, values)
            self.parameters = [weakref.ref(constant) for constant in constants]
        if made is not None and not made.model.manifest.tuned:
            self._use(made)
        return made

    def _made(self, again: bool, values: Sequence[Any]) -> Variant | None:
        """Compiled for these values, or None with a warning that says why not."""
        self._changes += again
        try:
            if self._changes > _MOST_CHANGES:
                raise SlipstreamError(f"its parameters have changed {self._changes} times")
            if not again and len(self.variants) == self.options.max_shapes:
                logger.warning(
                    "slipstream runs a graph of %d nodes in eager PyTorch for further shapes: it was compiled for %d; "
                    'pad inputs to fewer sizes, or raise options={"max_shapes": ...}',
                    *(len(self.module.graph.nodes), len(self.variants)),
                )
                return None
            # In a thread of its own: this one may still be in the modes in which PyTorch traced the graph.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(_compile_alone, self.module, values, self.static, self.options).result()
        except Exception as error:
            warn_eager(self.module, error)
            self._is_eager = True
            return None


def _compile_alone(module: Any, values: Sequence[Any], static: Sequence[int], options: Options) -> Variant:
    """Neither torch.export nor PyTorch's capturing of graphs is made for several threads."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        return compile_variant(module, values, static, options)


def check_compilable(module: Any) -> None:
    """Raises `NotCompiledError` for a graph that is better left to PyTorch."""
    import torch

    nodes = list(module.graph.nodes)
    if not any(node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor) for node in nodes):
        raise NotCompiledError
    random = [node for node in nodes if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())]
    if random:
        raise NotCompiledError(f"{random[0].target} draws random numbers; if that is dropout, call model.eval() first")


def warn_eager(module: Any, error: BaseException) -> None:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    logger.warning("slipstream runs a graph of %d nodes in eager PyTorch: %s", len(module.graph.nodes), reason)
    logger.debug("it comes from here", exc_info=error)


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
