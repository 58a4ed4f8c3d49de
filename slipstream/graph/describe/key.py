"""The key of an operator: equal computations have equal keys, in every process and on every platform.

The key is a hash of a canonical text of the TIR. In that text variables and buffers are numbered in the order
they are met, blocks and functions have no names, and everything else (iteration domains, types, constants,
annotations) stands as it is. TVM's structural hash will not do: it differs between platforms.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

# Part of the hashed text: change it together with the text, so that old and new keys are never equal.
_SCHEME = "slipstream operator 1"
_KEY_BYTES = 10

# Attributes that are not part of the computation: where it runs, its name, how it was fused.
_IGNORED_ATTRIBUTES = frozenset({"global_symbol", "target", "op_pattern", "tirx.noalias"})

_IGNORED_FIELDS = frozenset({("SBlock", "name_hint")})


def operator_key(func: tirx.PrimFunc) -> str:
    """Twenty hex digits that `func` shares with every function computing the same under other names.

    Shapes, types (also of indices), constants and block annotations count. So does the attribute
    `layout_free_buffers`: it names the constant operands that a program may repack, and a program that repacks
    one does not fit a function whose caller will not.
    """
    return hashlib.blake2b(canonical_text(func).encode(), digest_size=_KEY_BYTES).hexdigest()


def canonical_text(func: tirx.PrimFunc) -> str:
    """What `operator_key` hashes: the function without its names."""
    attributes = dict(func.attrs.items()) if func.attrs else {}
    kept = {str(name): value for name, value in attributes.items() if name not in _IGNORED_ATTRIBUTES}
    writer = _Writer()
    parts = [writer.text(part) for part in (func.params, func.ret_type, func.body, kept)]
    return "\n".join([_SCHEME, *parts, *writer.declarations()])


@cache
def fields_of(node_type: type) -> tuple[str, ...]:
    """The fields of a TVM node that carry meaning, base class first."""
    info = node_type.__tvm_ffi_type_info__  # type: ignore[attr-defined]
    names: list[str] = []
    while info is not None:
        names[:0] = [field.name for field in info.fields or ()]
        info = info.parent_type_info
    kind = node_kind(node_type)
    return tuple(name for name in names if name != "span" and (kind, name) not in _IGNORED_FIELDS)


@cache
def node_kind(node_type: type) -> str:
    """A node type's own name, without the dialect TVM files it under."""
    return str(node_type.__tvm_ffi_type_info__.type_key).rpartition(".")[2]  # type: ignore[attr-defined]


class _Writer:
    """Writes nodes as text in which a variable is a number."""

    def __init__(self) -> None:
        self._types: list[str] = []
        # By address, with the node itself so that the address stays its own.
        self._written: dict[int, tuple[Any, str]] = {}

    def declarations(self) -> list[str]:
        """The type of each variable met so far, in order."""
        return self._types

    def text(self, value: Any) -> str:
        if not isinstance(value, tvm_ffi.Object):
            return self._map(value) if isinstance(value, dict) else _plain(value)
        address = tvm_ffi.Object.__hash__(value)
        if address not in self._written:
            self._written[address] = (value, self._node(value))
        return self._written[address][1]

    def _node(self, value: Any) -> str:
        node_type: Any = type(value)
        if issubclass(node_type, tvm_ffi.Array):
            return f"[{','.join([self.text(item) for item in value])}]"
        if issubclass(node_type, tvm_ffi.Map):
            return self._map(value)
        if issubclass(node_type, tvm.ir.Var):
            return self._variable(value)
        if issubclass(node_type, tvm.ir.Op):
            return str(value.name)
        parts = [self.text(getattr(value, name)) for name in fields_of(node_type)]
        return f"{node_kind(node_type)}({','.join(parts)})"

    def _map(self, value: Any) -> str:
        items = sorted((str(name), item) for name, item in value.items())
        return f"{{{','.join([f'{json.dumps(name)}:{self.text(item)}' for name, item in items])}}}"

    def _variable(self, variable: Any) -> str:
        number = len(self._types)
        self._types.append("")
        self._types[number] = f"v{number}:{self.text(variable.ty)}"
        return f"v{number}"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(str(value))
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    # Leaving it out would give different computations one key.
    raise TypeError(f"no canonical text for a {type(value).__name__} in TIR")
