"""Kernels of a model on a GPU: `main` calls one function for each, and views are no kernels."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import transform

from slipstream.graph.fuse import fuse_as_tvm
from slipstream.graph.gpu.kernel_groups import Group, Node, find_groups, read_nodes

ATTENTION = "slipstream.attention"
"""Marks a function that computes softmax(Q K + ...) V."""


def fuse_kernels(mod: tvm.IRModule, *, with_attention: bool) -> tvm.IRModule:
    """A legalised module in which each group of functions (see `kernel_groups`) is one."""
    main = mod["main"]
    blocks = main.body.blocks
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return fuse_as_tvm(mod)
    builder = relax.BlockBuilder(mod)
    nodes = read_nodes(mod)
    bindings, marked = [], []
    for group in find_groups(nodes, with_attention=with_attention):
        binding = _bind(builder, group)
        bindings.append(binding)
        if group.is_attention:
            marked.append(str(binding.value.op.name_hint))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], main.body.body)
    builder.update_func(mod.get_global_var("main"), relax.Function(main.params, body, main.ret_ty, attrs=main.attrs))
    fused = tvm.transform.Sequential([transform.FuseTIR(), transform.DeadCodeElimination()])(builder.finalize())
    for name in marked:
        variable = fused.get_global_var(name)
        fused.update_func(variable, fused[variable].with_attr(ATTENTION, True))
    return fused


def _bind(builder: relax.BlockBuilder, group: Group) -> Any:
    result = group.result
    if len(group.nodes) == 1:
        if result.facts.is_view:
            view = builder.normalize(relax.op.reshape(result.arguments[0], result.var.ty.shape))
            return relax.VarBinding(result.var, view)
        return result.binding
    nodes = sorted(group.nodes, key=lambda node: node.index)
    members = {node.var for node in nodes}
    inputs: list[Any] = []
    for argument in (a for node in nodes for a in node.arguments):
        if argument not in members and not any(argument.same_as(known) for known in inputs):
            inputs.append(argument)
    function = _primitive(builder, nodes, inputs)
    name = "_".join(["fused", *(node.binding.value.args[0].name_hint for node in nodes)])
    return relax.VarBinding(result.var, builder.normalize(relax.Call(builder.add_func(function, name[:100]), inputs)))


def _primitive(builder: relax.BlockBuilder, nodes: list[Node], inputs: list[Any]) -> relax.Function:
    """The nodes as a function of what they read, for TVM to make one loop nest after the other of it."""
    inside: list[tuple[Any, Any]] = [(a, relax.Var(f"p_{place}", a.ty)) for place, a in enumerate(inputs)]
    bindings = []
    for node in nodes:
        last = node is nodes[-1]
        var = relax.Var("result", node.var.ty) if last else relax.DataflowVar(node.var.name, node.var.ty)
        call = node.binding.value
        arguments = relax.Tuple([next(new for old, new in inside if old.same_as(a)) for a in node.arguments])
        moved = relax.Call(call.op, [call.args[0], arguments], call.attrs, call.ty_args)
        bindings.append(relax.VarBinding(var, builder.normalize(moved)))
        inside.append((node.var, var))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], bindings[-1].var)
    parameters = [new for _, new in inside[: len(inputs)]]
    function = relax.Function(parameters, body, nodes[-1].var.ty, attrs=None)
    return function.with_attr("Primitive", 1)
