"""Readable names of fused functions: `conv2d 3x3/2 64→128 28x28 + add + relu`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tvm import tirx

from slipstream.graph.describe.blocks import (
    Block,
    Convolution,
    Window,
    blocks_of,
    convolution_of,
    matmul_of,
    whole_sums,
    windows_of,
)
from slipstream.graph.describe.kinds import kind_of


@dataclass(frozen=True)
class _Part:
    """One step of the function as a person would name it, and the blocks that make it up."""

    kind: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class _Rule:
    """Consecutive kinds that are one step; `a|b` is either. `{0}` in `name` is the first of them, and so on.

    A `gate` multiplies its input by a function of it: the last step must read the same tensor as the first.
    """

    name: str
    pattern: str
    gate: bool = False

    def matches(self, parts: list[_Part]) -> bool:
        pattern = self.pattern.split()
        if len(parts) < len(pattern):
            return False
        parts = parts[: len(pattern)]
        if not all(part.kind in kinds.split("|") for part, kinds in zip(parts, pattern, strict=True)):
            return False
        inputs = [load.source for load in parts[0].blocks[0].loads]
        return not self.gate or any(parts[-1].blocks[-1].reads(source) for source in inputs)


_SCALE = "multiply:c|divide:c"
_SHIFT = "add:c|subtract:c"
_CONVOLUTIONS = "|".join(f"{group}conv{n}d" for n in (1, 2, 3) for group in ("", "depthwise_", "grouped_"))
_POOLS = "|".join(f"{reducer}_pool{n}d" for n in (1, 2, 3) for reducer in ("max", "sum", "min"))

# In this order: a later rule sees what the earlier ones made.
_RULES = (
    _Rule("{3}_transpose", f"dilate|copy pad|copy flip {_CONVOLUTIONS}"),
    _Rule("{1}", f"pad|copy {_CONVOLUTIONS}|{_POOLS}"),
    *(_Rule(f"avg_pool{n}d", f"sum_pool{n}d {_SCALE}") for n in (1, 2, 3)),
    _Rule("tanh", "minimum:c maximum:c tanh"),
    _Rule("clip", "relu|maximum:c minimum:c"),
    _Rule("clip", "minimum:c relu|maximum:c"),
    _Rule("sigmoid", "negative exp add:c divide:c"),
    _Rule("silu", "sigmoid multiply", gate=True),
    _Rule("hard_sigmoid", f"{_SHIFT} clip {_SCALE}"),
    _Rule("hard_sigmoid", f"{_SCALE} {_SHIFT} clip"),
    _Rule("hard_swish", "hard_sigmoid multiply", gate=True),
    _Rule("gelu", f"{_SCALE} erf {_SHIFT} multiply {_SCALE}"),
    _Rule("gelu", f"{_SCALE} erf {_SHIFT} {_SCALE} multiply", gate=True),
    _Rule("gelu", f"{_SCALE} {_SCALE} erf {_SHIFT} multiply"),
    _Rule("softmax", "max subtract exp sum divide"),
    _Rule("softmax", "max exp sum divide"),
    _Rule("log_softmax", "max sum subtract"),
    _Rule("rms_norm", "copy|cast multiply sum rsqrt copy|cast multiply copy|cast"),
    _Rule("group_norm", "reshape moments reshape reshape layer_norm|instance_norm reshape"),
    _Rule("group_norm", "avg_pool1d sum layer_norm|instance_norm"),
    _Rule("{1}", "moments layer_norm|instance_norm"),
    _Rule("{3}", "sum divide:c sum layer_norm|instance_norm"),
    _Rule("{0}", "argmax|argmin copy relu"),
    _Rule("mean", f"sum {_SCALE}"),
    _Rule("split", "slice slice"),
    _Rule("split", "split slice"),
)


def describe(func: tirx.PrimFunc) -> tuple[str, tuple[str, ...]]:
    """A name for people, and the steps of the function in order, such as ("conv2d", "add", "relu").

    Functions with equal keys have equal names, since both depend on the computation only. The exception is a block
    of several statements (a scatter, a sort): it goes by the name it has.
    """
    parts = [_Part(kind_of(block), (block,)) for block in whole_sums(list(blocks_of(func)))]
    for rule in _RULES:
        parts = _merge(parts, rule)
    parts = [_Part(part.kind.removesuffix(":c"), part.blocks) for part in parts if part.kind != "copy"] or parts
    if not parts:
        return "opaque", ("opaque",)
    parts = _without_moved_operands(_with_attention(parts))
    head = next((part for part in parts if _is_heavy(part)), parts[0])
    texts = [_text(part) if part is head else part.kind for part in parts]
    return " + ".join(texts), tuple(part.kind for part in parts)


_MATMULS = ("matmul", "batch_matmul")
_MOVES = ("transpose", "reshape", "slice", "split", "pad")


def _with_attention(parts: list[_Part]) -> list[_Part]:
    """Two matmuls with a softmax between them are one step, with whatever the function does before and in between."""
    kinds = [part.kind for part in parts]
    products = [place for place, kind in enumerate(kinds) if kind in _MATMULS]
    if len(products) != 2 or "softmax" not in kinds[products[0] : products[1]]:
        return parts
    blocks = [block for place in products for block in parts[place].blocks]
    return [_Part("attention", tuple(blocks)), *parts[products[1] + 1 :]]


def _without_moved_operands(parts: list[_Part]) -> list[_Part]:
    """Without the steps that only change how a contraction reads its operands."""
    contractions = (*_MATMULS, *_CONVOLUTIONS.split("|"))
    first = next((place for place, part in enumerate(parts) if part.kind in contractions), 0)
    return [part for place, part in enumerate(parts) if place >= first or part.kind not in _MOVES]


def _merge(parts: list[_Part], rule: _Rule) -> list[_Part]:
    """`parts` with every run that `rule` matches as one."""
    done: list[_Part] = []
    length = len(rule.pattern.split())
    while parts:
        if rule.matches(parts):
            run, parts = parts[:length], parts[length:]
            name = rule.name.format(*(part.kind for part in run))
            parts.insert(0, _Part(name, tuple(block for part in run for block in part.blocks)))
        else:
            done.append(parts.pop(0))
    return done


def _is_heavy(part: _Part) -> bool:
    return any(block.reductions for block in part.blocks)


def _text(part: _Part) -> str:
    """The step with its sizes."""
    kind, first, last = part.kind, part.blocks[0], part.blocks[-1]
    for block in part.blocks:
        if convolution := convolution_of(block):
            return _convolution_text(part, convolution)
        if matmul := matmul_of(block):
            sizes = (matmul.rows, matmul.inner, matmul.columns)
            return f"{kind} {_by(sizes if matmul.batch == 1 else (matmul.batch, *sizes))}"
        if "_pool" in kind and block.reductions:
            return f"{kind} {_pool_sizes(block)}"
    if _is_heavy(part):
        return f"{kind} {_by(_without_leading_ones(first.input_shape))}"
    if kind in ("reshape", "slice"):
        return f"{kind} {_by(first.input_shape)}→{_by(last.output_shape)}"
    return f"{kind} {_by(first.input_shape if kind in ('transpose', 'split') else last.output_shape)}".rstrip()


def _convolution_text(part: _Part, convolution: Convolution) -> str:
    inputs, outputs = convolution.in_channels, convolution.out_channels
    depthwise = part.kind.startswith("depthwise_") and inputs == outputs
    words = [
        part.kind.replace("depthwise_", "depthwise ").replace("grouped_", "grouped "),
        _window_sizes(convolution.windows, _upsampling(part, convolution)),
        str(inputs) if depthwise else f"{inputs}→{outputs}",
        f"({convolution.groups} groups)" if part.kind.startswith("grouped_") else "",
        _by(window.output for window in convolution.windows),
        _batch(convolution.batch),
    ]
    return " ".join(word for word in words if word)


def _pool_sizes(block: Block) -> str:
    windows = windows_of(block, block.summand)
    sliding = [window.axis for window in windows]
    fixed = [size for axis, size in block.axes.items() if axis not in sliding]
    words = [
        _window_sizes(windows),
        _by(fixed[1:]),
        _by(window.output for window in windows),
        _batch(fixed[0] if fixed else 1),
    ]
    return " ".join(word for word in words if word)


def _window_sizes(windows: list[Window], upsampling: Iterable[int] = ()) -> str:
    """`3x3/2`: the kernel, and the stride where it is not 1."""
    strides = list(upsampling) or [window.stride for window in windows]
    dilations = [window.dilation for window in windows]
    text = _by(window.size for window in windows)
    if any(stride != 1 for stride in strides):
        text += f"/{_by(strides if len(set(strides)) > 1 else strides[:1])}"
    if any(dilation != 1 for dilation in dilations):
        text += f" dilated {_by(dilations if len(set(dilations)) > 1 else dilations[:1])}"
    return text


def _upsampling(part: _Part, convolution: Convolution) -> list[int]:
    """The strides of a transposed convolution: how far its first block spreads the pixels."""
    if not part.kind.endswith("_transpose"):
        return []
    narrow, wide = part.blocks[0].input_shape, part.blocks[0].output_shape
    return [(wide[d] - 1) // max(1, narrow[d] - 1) for d in (window.dimension for window in convolution.windows)]


def _batch(size: int) -> str:
    return f"batch {size}" if size > 1 else ""


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _by(sizes: Iterable[int]) -> str:
    return "x".join(map(str, sizes))
