"""`torch.compile(model, backend="slipstream")`: PyTorch's graphs as compiled and, if asked, tuned models.

Installing Slipstream is enough: PyTorch finds the backend by its entry point. `options` of `torch.compile`:

| option | meaning |
| --- | --- |
| `budget` | tune each graph for so long ("3m") in the background after its first call, then use the faster code |
| `store` | a store that tuning sessions share |
| `dtype` | "float16" computes products in half precision |
| `threads` | threads to run on |
| `max_shapes` | for how many shapes of its inputs a graph is compiled (8); for further ones it runs in eager PyTorch |
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.errors import InputError
from slipstream.torch.decompositions import decompositions
from slipstream.torch.graph import Graph, NotCompiledError, live_graphs, warn_eager
from slipstream.torch.options import Options
from slipstream.torch.tuning import tune_graphs, tune_in_background
from slipstream.torch.whole_layers import keep_whole, restore

__all__ = ["backend", "tune"]

logger = logging.getLogger(__name__)


def backend(
    graph_module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What `torch.compile` calls with each graph it captures.

    A graph that needs gradients, or that cannot be compiled, runs as PyTorch runs it; a warning says why.
    """
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = Options.of(options, mode)
    eager: Callable[..., Any] = graph_module.forward
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs):
        _warn_of_training()
        return eager

    def compile_graph(functional: Any, _: Sequence[Any]) -> Callable[..., Any]:
        return Graph(functional, chosen, tune_in_background if chosen.budget is not None else lambda _: None)

    keep_whole(graph_module)
    make = aot_autograd(fw_compiler=compile_graph, decompositions=decompositions())
    try:
        with sdpa_kernel(SDPBackend.MATH):  # attention as products and a softmax
            compiled: Callable[..., Any] = make(graph_module, example_inputs)
        return compiled
    except NotCompiledError as error:
        restore(graph_module)
        if error.args:
            warn_eager(graph_module, error)
        return eager


@functools.cache
def _warn_of_training() -> None:
    logger.warning(
        "slipstream does not train: graphs that need gradients run in eager PyTorch; "
        "call the model under torch.no_grad() or torch.inference_mode()"
    )


def tune(compiled: Any, *, budget: str | float | None = None, trials: int | None = None, store: Any = None) -> None:
    """Tune the graphs of a module or function that `torch.compile` returned, and use what was found from then on.

    It has to have been called before: graphs are captured by calls. The budget (three minutes, if neither it nor a
    number of trials for each graph is given) is split by the time graphs have taken.
    """
    graphs = live_graphs(compiled)
    if not graphs:
        raise InputError(
            "nothing of it is compiled yet: call it once under torch.no_grad(), then tune it "
            '(is it what torch.compile(..., backend="slipstream") returned?)'
        )
    tune_graphs(graphs, "3m" if budget is None and trials is None else budget, trials, store)


def _let_pytorch_capture_recurrent_layers() -> None:
    """PyTorch leaves LSTM, GRU and RNN out of graphs unless this is set; what the user has set stays."""
    from torch._dynamo import config

    if config._is_default("allow_rnn"):
        config.allow_rnn = True


_let_pytorch_capture_recurrent_layers()
