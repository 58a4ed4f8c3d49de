"""Which operators of a model are computed by one kernel on a GPU.

A kernel has at most one reduction (matmul, convolution, pool, softmax, norm), or the three of an attention. After it
come element-wise functions and changes of layout; before it, what its operands are read through: padding, transposes,
slices, cheap arithmetic. A reshape on either side is a view and no kernel. A group has one result, its last node, so
groups in the order of their results never wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from slipstream.graph.gpu.kernel_facts import KernelFacts, Role, facts_of
from slipstream.graph.relax_walk import bindings_of_main, is_call_tir

# A group that reads more tensors than this has more arguments than a kernel's registers hold comfortably.
_MOST_INPUTS = 24


@dataclass(eq=False)
class Node:
    """A binding of `main`: `arguments` are expressions, `inputs` the nodes among them."""

    index: int
    binding: Any
    facts: KernelFacts
    arguments: list[Any] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    users: list[Node] = field(default_factory=list)
    is_output: bool = False

    @property
    def var(self) -> Any:
        return self.binding.var

    @property
    def only_user(self) -> Node | None:
        return self.users[0] if len(set(self.users)) == 1 and not self.is_output else None


@dataclass(eq=False)
class Group:
    """Nodes that become one kernel. `anchor` is its reduction, if it has one."""

    nodes: list[Node]
    anchor: Node | None = None
    is_attention: bool = False

    @property
    def result(self) -> Node:
        return max(self.nodes, key=lambda node: node.index)


def read_nodes(mod: tvm.IRModule) -> list[Node]:
    """The bindings of `main`, which is one dataflow block, as a graph."""
    known: dict[Any, KernelFacts] = {}
    by_var: dict[Any, Node] = {}
    found = []
    for index, binding in enumerate(bindings_of_main(mod)):
        value = binding.value
        facts, arguments = KernelFacts(Role.OPAQUE, 0), list(relax.analysis.free_vars(value))
        if is_call_tir(value) and len(value.args) == 2 and isinstance(binding.var.ty, relax.TensorType):
            function = value.args[0]
            if function not in known:
                known[function] = facts_of(mod[function])
            facts, arguments = known[function], list(value.args[1].fields)
        node = Node(index, binding, facts, arguments, [by_var[a] for a in arguments if a in by_var])
        for used in node.inputs:
            used.users.append(node)
        by_var[binding.var] = node
        found.append(node)
    for var in relax.analysis.free_vars(mod["main"].body.body):
        by_var[var].is_output = True
    return found


def find_groups(nodes: Sequence[Node], *, with_attention: bool) -> list[Group]:
    """The kernels, in an order in which they can run."""
    owners: dict[Node, list[Group]] = {}

    def own(group: Group) -> None:
        for node in group.nodes:
            owners.setdefault(node, []).append(group)

    if with_attention:
        for node in nodes:
            found = _attention(node)
            if found is not None and not any(each in owners for each in found.nodes):
                own(_with_epilogue(found, owners))
    for node in reversed(nodes):
        if node.facts.role is Role.REDUCTION and node not in owners:
            own(_with_epilogue(Group([node], node), owners))
    for node in reversed(nodes):
        if node not in owners:
            for group in _readers(node, owners) or [Group([])]:
                group.nodes.append(node)
                owners.setdefault(node, []).append(group)
    groups = {id(group): group for of_node in owners.values() for group in of_node}
    separated = [part for group in groups.values() for part in _without_views(group)]
    unique = {group.result: group for group in separated}  # a view may have been read by several groups
    return [unique[node] for node in sorted(unique, key=lambda node: node.index)]


def _with_epilogue(group: Group, owners: dict[Node, list[Group]]) -> Group:
    """The group with the functions that follow, as far as it then still has one result."""
    members, best = set(group.nodes), list(group.nodes)
    moves_too = group.result.facts.contracts
    waiting = set(group.result.users)
    while waiting:
        node = min(waiting, key=lambda each: each.index)
        waiting.remove(node)
        if node in owners or not _follows(node, members, moves_too):
            continue
        members.add(node)
        waiting.update(user for user in node.users if user not in members)
        results = [each for each in members if each.is_output or not members.issuperset(each.users)]
        if results == [node]:
            best = sorted(members, key=lambda each: each.index)
    return Group(best, group.anchor, group.is_attention)


def _follows(node: Node, members: set[Node], moves_too: bool) -> bool:
    """Whether a node can be computed from each element of a kernel's result as soon as that is there."""
    facts = node.facts
    if facts.role is not Role.POINTWISE or facts.gathers:
        return False
    places = [place for place, a in enumerate(node.arguments) if any(a.same_as(m.var) for m in members)]
    return (facts.moves and (moves_too or facts.is_view)) or facts.aligned.issuperset(places)


def _readers(node: Node, owners: dict[Node, list[Group]]) -> list[Group]:
    """The groups that compute the node themselves where they read it: all that read it, or none."""
    if node.facts.role is not Role.POINTWISE or node.is_output:
        return []
    groups = list({id(group): group for user in node.users for group in owners[user]}.values())
    if not all(_takes(group, node) for group in groups):
        return []
    return groups if len(groups) == 1 or node.facts.copies else []


def _takes(group: Group, node: Node) -> bool:
    if any(each.facts.role is Role.OPAQUE for each in group.nodes) or _count_inputs(group.nodes) >= _MOST_INPUTS:
        return False
    if group.anchor is None:
        return True
    facts, anchor = node.facts, group.anchor.facts
    if anchor.slides and (facts.moves or facts.aligned) and not facts.is_view:
        return False  # it would be computed for every window, in a layout that cannot be loaded in whole vectors
    return not facts.costly and not (facts.gathers and anchor.contracts)


def _count_inputs(nodes: Iterable[Node]) -> int:
    members = {node.var for node in nodes}
    return len({a for node in nodes for a in node.arguments if a not in members})


def _without_views(group: Group) -> list[Group]:
    """The group without reshapes of what it reads and of what it writes, and these by themselves."""
    views: list[Group] = []
    kept = list(group.nodes)
    changed = True
    while changed and len(kept) > 1:
        changed = False
        last = max(kept, key=lambda node: node.index)
        for node in kept:
            first = node.facts.is_view and not any(used in kept for used in node.inputs)
            final = node is last and node.facts.is_view and node.inputs and node.inputs[0].only_user is node
            if first or final:
                kept.remove(node)
                views.append(Group([node]))
                changed = True
                break
    return [*views, Group(kept, group.anchor, group.is_attention)]


def _attention(softmax: Node) -> Group | None:
    """softmax(Q K + ...) V as one group, if `softmax` is in the middle of it."""
    if softmax.facts.role is not Role.REDUCTION or softmax.facts.contracts or len(softmax.inputs) != 1:
        return None
    if len(softmax.arguments) != 1 or tuple(softmax.var.ty.shape) != tuple(softmax.arguments[0].ty.shape):
        return None
    before: list[Node] = []
    node = softmax.inputs[0]
    while node.facts.role is Role.POINTWISE and node.only_user is not None:
        before.append(node)
        producers = [node.inputs[place] for place in range(len(node.inputs)) if _is_aligned_input(node, place)]
        if len(producers) != 1:
            return None
        node = producers[0]
    scores, after = node, []
    user = softmax.only_user
    while user is not None and user.facts.role is Role.POINTWISE and user.facts.aligned and len(user.arguments) == 1:
        after.append(user)
        user = user.only_user
    if user is None or scores.only_user is None or not (scores.facts.contracts and user.facts.contracts):
        return None
    weights = after[-1] if after else softmax
    if len(user.arguments) != 2 or not user.arguments[0].same_as(weights.var):
        return None
    return Group([scores, *reversed(before), softmax, *after, user], user, is_attention=True)


def _is_aligned_input(node: Node, place: int) -> bool:
    var = node.inputs[place].var
    return any(a.same_as(var) and at in node.facts.aligned for at, a in enumerate(node.arguments))
