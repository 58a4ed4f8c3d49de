"""Outputs that notice when a program writes beside them.

An array ends where a page begins that nobody may touch, up to 63 bytes for its alignment; what lies between the
array and its guard pages holds a pattern that must still be there after a run.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from math import prod

import numpy as np

from slipstream.measure.arena import Array, Slot, numpy_type

_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
_PATTERN = 0xA5
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Guarded:
    """An output of a program and the bytes around it."""

    array: Array
    margins: tuple[Array, Array]

    @property
    def intact(self) -> bool:
        return all(bool((margin == _PATTERN).all()) for margin in self.margins)


def poison(array: Array) -> None:
    """Fill an output with what no correct program leaves as it is."""
    array[...] = {"b": False, "i": 113, "u": 113}.get(array.dtype.kind, np.nan)


def guarded(slot: Slot) -> Guarded:
    """Memory for an output, filled with what no correct program leaves as it is."""
    dtype = numpy_type(slot.dtype)
    rounded = -(-max(slot.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
    pages = -(-rounded // _PAGE) * _PAGE
    memory = mmap.mmap(-1, pages + 2 * _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    everything = np.frombuffer(memory, np.uint8)
    for page in (0, pages + _PAGE):
        if _libc.mprotect(ctypes.c_void_p(everything.ctypes.data + page), _PAGE, _PROT_NONE):
            raise MemoryError("cannot protect a page")
    start, end = _PAGE + pages - rounded, _PAGE + pages - rounded + slot.nbytes
    before, after = everything[_PAGE:start], everything[end : _PAGE + pages]
    for margin in (before, after):
        margin[...] = _PATTERN
    array = np.frombuffer(memory, dtype, prod(slot.shape), start).reshape(slot.shape)
    poison(array)
    return Guarded(array, (before, after))
