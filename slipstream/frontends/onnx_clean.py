"""Making an ONNX file importable: fix its shapes, fold what is constant, and check that nothing changed.

About half of real files import into TVM as they are; most of the rest do after this. Runs inside
`onnx_worker`, without TVM.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from slipstream.errors import ModelError, ShapeError, UnsupportedModelError
from slipstream.frontends import onnx_run
from slipstream.frontends.archives import read_archive
from slipstream.frontends.inputs import TensorSpec, feed_of
from slipstream.frontends.onnx_branches import choose_branches, deciding_inputs
from slipstream.frontends.onnx_files import save
from slipstream.frontends.onnx_padding import merge_padding
from slipstream.frontends.onnx_rewrites import rewrite, rewrite_for_onnx_runtime
from slipstream.frontends.onnx_run import Folding
from slipstream.frontends.output_files import arrays_of

# Operators that round to 8 bits, of ONNX and of ONNX Runtime.
_ROUNDS = re.compile("Quantize|QLinear|^QGemm$|^QAttention$")
# Operators whose result consists of elements of their inputs.
_KEEPS_LEVELS = {"Concat", "DepthToSpace", "Expand", "Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Split"}
_KEEPS_LEVELS |= {"SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
# A rewritten loop may hold another one.
_MOST_ROUNDS = 6
# Operators that pass integers of an input on unchanged, between the input and the table it indexes.
_KEEPS_INTEGERS = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice"}


def prepare(
    model: str, workdir: str, shapes: Mapping[str, Sequence[int]], constants: Mapping[str, Any], given: str
) -> dict[str, Any]:
    """Job: write `fixed.onnx` (the model with every shape known) and `clean.onnx` (importable) to `workdir`.

    `given` is an archive (.npz) of inputs to compare both on; inputs that are not in it are random.
    """
    proto = _load(Path(model))
    fingerprint = _fingerprint(proto, shapes, constants)
    _lower_versions(proto)
    _bind_constants(proto.graph, constants)
    dynamic = onnx.ModelProto()
    if any(node.op_type == "If" for node in proto.graph.node):  # a copy has all the weights
        dynamic.CopyFrom(proto)
    inputs = _fix_shapes(proto.graph, shapes)
    if choose_branches(dynamic, inputs, Path(workdir)):
        proto = dynamic
        inputs = _fix_shapes(proto.graph, shapes)
    _separate_weights(proto.graph)
    fixed, clean = Path(workdir, "fixed.onnx"), Path(workdir, "clean.onnx")
    save(proto, fixed)
    outputs = [output.name for output in proto.graph.output]
    quantised = any(_ROUNDS.search(node.op_type) for graph in _graphs(proto.graph) for node in graph.node)
    steps = _output_steps(proto.graph)
    interface = {value.name for value in inputs}
    deciding = deciding_inputs(proto.graph)
    del proto
    specs: tuple[TensorSpec, ...] = ()
    for folding in Folding:
        refused: dict[str, str] = {}
        try:
            simplified = _simplify(fixed, clean, folding, refused)
        except ModelError as error:
            if not deciding:
                raise
            raise ModelError(
                f"{error}; which branch of the model is taken depends on the input {deciding[0]!r}: "
                f"make it a constant, such as --constant {deciding[0]}=1"
            ) from None
        if folding is not Folding.NOTHING:
            merge_padding(simplified.graph)
        _keep_only_inputs(simplified.graph, interface)
        clean.write_bytes(simplified.SerializeToString())
        specs = specs or tuple(_spec(value, simplified.graph) for value in inputs)
        # Where the least simplified form differs as well, the compiled model's verification decides.
        if folding is Folding.NOTHING or _is_unchanged(fixed, clean, _feeds(specs, given)):
            break
    return {
        "fingerprint": fingerprint,
        "inputs": [[spec.name, spec.shape, spec.dtype, spec.limit] for spec in specs],
        "outputs": outputs,
        "refused": refused,
        "quantised": quantised,
        "output_steps": steps,
    }


def _separate_weights(graph: onnx.GraphProto) -> None:
    """Give each reader of signed bytes weights of its own, which `machine/exact_onnx.py` needs."""
    weights = {tensor.name: tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    names = {tensor.name for tensor in graph.initializer}
    read = set()
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in read:
                own = next(each for each in (f"{name}_{i}" for i in count(1)) if each not in names)
                graph.initializer.add().CopyFrom(weights[name])
                graph.initializer[-1].name = node.input[place] = own
                names.add(own)
            elif name in weights:
                read.add(name)


def _output_steps(graph: onnx.GraphProto) -> list[float]:
    """For each output the distance of two levels, if it is rounded to 8 bits with a scale that is known; else 0."""
    producers = {name: node for node in graph.node for name in node.output}
    scales = {tensor.name: tensor for tensor in graph.initializer}

    @cache
    def step(name: str) -> float:
        node = producers.get(name)
        if node is None:
            return 0.0
        if node.op_type in _KEEPS_LEVELS:
            return max(map(step, node.input))
        # A QGemm without the scale of its result returns floats.
        of_bytes = node.op_type == "QGemm" and any(node.input[7:8])
        if of_bytes or node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear"):
            return 1.0
        if node.op_type != "DequantizeLinear":
            return 0.0
        scale = scales.get(node.input[1])
        return 0.0 if scale is None else float(onnx.numpy_helper.to_array(scale).max(initial=0.0))

    return [step(output.name) for output in graph.output]


def _load(path: Path) -> onnx.ModelProto:
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty: export the model again")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        raise ModelError(f"{path} is not an ONNX model, or it is truncated: export or copy it again") from error
    if not proto.graph.node or not proto.opset_import:
        raise ModelError(f"{path} is not an ONNX model: it holds no graph")
    try:
        onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    except Exception as error:
        raise ModelError(
            f"the external data of {path} cannot be read ({onnx_run.first_line(error)}): "
            "keep the weight files beside the model, unchanged"
        ) from error
    return proto


def _fingerprint(proto: onnx.ModelProto, shapes: Mapping[str, Any], constants: Mapping[str, Any]) -> str:
    """The same for the same graph, weights and shapes, wherever the weights are kept."""
    digest = hashlib.blake2b(digest_size=16)
    weights = [tensor for graph in _graphs(proto.graph) for tensor in graph.initializer]
    for tensor in weights:
        digest.update(tensor.name.encode())
        digest.update(tensor.raw_data if tensor.HasField("raw_data") else tensor.SerializeToString(deterministic=True))
    skeleton = onnx.GraphProto()
    for field in ("node", "input", "output"):
        getattr(skeleton, field).extend(getattr(proto.graph, field))
    digest.update(skeleton.SerializeToString(deterministic=True))
    digest.update(repr((sorted(shapes.items()), sorted(constants.items()))).encode())
    digest.update(repr([(opset.domain, opset.version) for opset in proto.opset_import]).encode())
    return digest.hexdigest()


def _lower_versions(proto: onnx.ModelProto) -> None:
    """Label a model that is newer than ONNX Runtime as one it reads.

    Later versions have further types and attributes; a model that uses these is refused when it is loaded.
    """
    proto.ir_version = min(proto.ir_version, onnx_run.NEWEST_IR)
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = min(opset.version, onnx_run.NEWEST_OPSET)


def _bind_constants(graph: onnx.GraphProto, constants: Mapping[str, Any]) -> None:
    """Turn inputs such as a sample rate into constants."""
    inputs = {value.name: value for value in graph.input}
    for name, number in constants.items():
        if name not in inputs:
            raise ShapeError(f"no input is called {name!r}: the inputs are {', '.join(sorted(inputs))}")
        tensor = inputs[name].type.tensor_type
        shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
        array = np.full(shape, number).astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        graph.input.remove(inputs[name])
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))


def _fix_shapes(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
    """Give every real input a static shape: the one asked for, its own, or its own with a batch of one.

    A dimension of the same name in an input that was not asked for is as long as in one that was.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    unknown = [name for name in shapes if name not in {value.name for value in inputs}]
    if unknown:
        names = ", ".join(value.name for value in inputs)
        raise ShapeError(f"--shape names an input {unknown[0]!r} the model does not have: it has {names}")
    _follow_names(inputs, shapes)
    problems = [problem for value in inputs if (problem := _fix_shape(value, shapes.get(value.name)))]
    if problems:
        raise ShapeError("; ".join(problems))
    # Recorded shapes of inner tensors may contradict the new ones; ONNX Runtime infers them afresh.
    del graph.value_info[:]
    for output in graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return inputs


def _follow_names(inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]) -> None:
    lengths: dict[str, int] = {}
    for value in (value for value in inputs if value.name in shapes):
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=False):
            if dim.dim_param:
                lengths.setdefault(dim.dim_param, extent)
    for dim in (dim for value in inputs if value.name not in shapes for dim in value.type.tensor_type.shape.dim):
        if dim.dim_param in lengths:
            dim.dim_value = lengths[dim.dim_param]


def _fix_shape(value: onnx.ValueInfoProto, wanted: Sequence[int] | None) -> str | None:
    """Fix one input in place; what is wrong with it, if something is."""
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value")
        raise UnsupportedModelError(f"input {value.name!r} is a {kind}: only tensors can be compiled")
    tensor = value.type.tensor_type
    if tensor.elem_type == onnx.TensorProto.STRING:
        raise UnsupportedModelError(f"input {value.name!r} holds strings: only numbers can be compiled")
    if wanted is not None:
        return _impose(value.name, tensor, wanted)
    if not tensor.HasField("shape"):
        return f"input {value.name!r} has no shape: give one, for example --shape {value.name}=1x3x224x224"
    dims = tensor.shape.dim
    dynamic = [axis for axis, dim in enumerate(dims) if not dim.HasField("dim_value") or dim.dim_value < 0]
    if dynamic == [0]:
        dims[0].Clear()
        dims[0].dim_value = 1
        return None
    if not dynamic:
        return None
    example = "x".join(
        ("1" if axis == 0 else "?") if axis in dynamic else str(dim.dim_value) for axis, dim in enumerate(dims)
    )
    axes = ", ".join(f"{axis} ({dims[axis].dim_param or 'unnamed'})" for axis in dynamic)
    return f"input {value.name!r} is dynamic in axis {axes}: say --shape {value.name}={example} with numbers for '?'"


def _impose(name: str, tensor: Any, wanted: Sequence[int]) -> str | None:
    if tensor.HasField("shape"):
        own = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        shown = "x".join(str(extent) if extent >= 0 else "?" for extent in own)
        asked = "x".join(map(str, wanted))
        if len(own) != len(wanted):
            return f"--shape {name}={asked} has {len(wanted)} axes, but input {name!r} has {len(own)} ({shown})"
        # Some exporters write 0 for an extent that may change.
        clash = [axis for axis, extent in enumerate(own) if extent > 0 and extent != wanted[axis]]
        if clash:
            return f"--shape {name}={asked} contradicts input {name!r} ({shown}) in axis {clash[0]}"
    del tensor.shape.dim[:]
    tensor.shape.SetInParent()
    for extent in wanted:
        tensor.shape.dim.add().dim_value = extent
    return None


def _feeds(specs: tuple[TensorSpec, ...], given: str) -> dict[str, onnx_run.Array]:
    return feed_of(specs, read_archive(given), np.random.default_rng(0))


def _simplify(fixed: Path, clean: Path, folding: Folding, refused: dict[str, str]) -> onnx.ModelProto:
    """The model with everything constant folded by ONNX Runtime; large weights are in files beside `clean`.

    Operators that ONNX Runtime itself expands (GroupNormalization) show their shape arithmetic only after the
    first round, so that a second one is needed to fold it. The same holds for nodes that `rewrite` replaced.
    """
    try:
        onnx_run.session(fixed, save_to=clean, folding=folding)
    except ModelError:
        proto = onnx.load(str(fixed), load_external_data=False)
        if not rewrite_for_onnx_runtime(proto, fixed.parent):
            raise
        fixed.write_bytes(proto.SerializeToString())
        onnx_run.session(fixed, save_to=clean, folding=folding)
    simplified = onnx.load(str(clean), load_external_data=False)
    for again in range(_MOST_ROUNDS):
        folded = folding is not Folding.NOTHING and _fold_nonzero(simplified.graph, clean.parent)
        rewritten = rewrite(simplified, clean.parent, refused)
        if not rewritten and not folded and (again or not _computes_shapes(simplified.graph)):
            break
        clean.write_bytes(simplified.SerializeToString())
        next_round = clean.with_name(f"again{again}.onnx")
        onnx_run.session(clean, save_to=next_round, folding=folding)
        simplified = onnx.load(str(next_round), load_external_data=False)
        next_round.unlink()
    return simplified


def _computes_shapes(graph: onnx.GraphProto) -> bool:
    return any(node.op_type == "Shape" for node in graph.node)


def _fold_nonzero(graph: onnx.GraphProto, directory: Path) -> bool:
    """Fold NonZero of constants, the `arange` of opset 9, which ONNX Runtime leaves alone."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    foldable = [node for node in graph.node if node.op_type == "NonZero" and node.input[0] in constants]
    for node in foldable:
        array = onnx.numpy_helper.to_array(constants[node.input[0]], str(directory))
        places = np.array(np.nonzero(array), np.int64)
        graph.initializer.append(onnx.numpy_helper.from_array(places, node.output[0]))
        graph.node.remove(node)
    return bool(foldable)


def _keep_only_inputs(graph: onnx.GraphProto, interface: set[str]) -> None:
    """Weights that were listed as inputs (before IR version 4) are not inputs once folded."""
    for value in list(graph.input):
        if value.name not in interface:
            graph.input.remove(value)


def _spec(value: onnx.ValueInfoProto, graph: onnx.GraphProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    return TensorSpec(value.name, shape, onnx_run.dtype_of(tensor.elem_type), _index_limit(value.name, graph))


def _index_limit(name: str, graph: onnx.GraphProto) -> int | None:
    """Rows of the smallest table that the input indexes: token ids have to stay below it."""
    rows = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    aliases, limits = {name}, []
    for node in graph.node:
        if node.op_type in _KEEPS_INTEGERS and node.input and node.input[0] in aliases:
            aliases.update(node.output)
        if node.op_type == "Gather" and node.input[1] in aliases and node.input[0] in rows:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            limits.append(rows[node.input[0]][axis])
    return min(limits, default=None)


def _is_unchanged(fixed: Path, clean: Path, feeds: Mapping[str, onnx_run.Array]) -> bool:
    """Whether ONNX Runtime's simplification, which has had bugs, changed what the model computes."""
    try:
        before = onnx_run.run(onnx_run.session(fixed, optimise=False), feeds)
    except ModelError:
        return True  # the model itself cannot be run on random inputs; verification says so
    after = onnx_run.run(onnx_run.session(clean, optimise=False), feeds)
    pairs = [pair for outputs in zip(before, after, strict=True) for pair in zip_longest(*map(arrays_of, outputs))]
    return all(e is not None and a is not None and e.shape == a.shape and _close(e, a) for e, a in pairs)


def _close(expected: onnx_run.Array, actual: onnx_run.Array) -> bool:
    if expected.dtype.kind not in "fV":
        return bool(np.array_equal(expected, actual))
    e, a = expected.astype(np.float64), actual.astype(np.float64)
    scale = np.abs(e[np.isfinite(e)]).max(initial=0.0)
    loose = 1e-2 if expected.dtype.itemsize < 4 else 1e-3
    return bool(np.allclose(e, a, rtol=loose, atol=loose * scale, equal_nan=True))


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every graph inside its control flow."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(inner)
