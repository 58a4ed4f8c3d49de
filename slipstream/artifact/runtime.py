"""Calling compiled code: checked arguments in, named outputs out. Needs no tuner, and on a CPU no TVM."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np

from slipstream.errors import ArtifactError, InputError, first_line
from slipstream.frontends.inputs import Array, TensorSpec
from slipstream.machine.threads import use_threads
from slipstream.runtime.library import ModelLibrary

CPU = (1, 0)  # DLPack's name of it


class Outputs(tuple[Any, ...]):
    """The results of one call, by position (`out[0]`) or by name (`out["logits"]`)."""

    names: tuple[str, ...]

    def __new__(cls, values: Sequence[Any], names: Sequence[str]) -> Outputs:
        self = super().__new__(cls, values)
        self.names = tuple(names)
        return self

    def __getnewargs__(self) -> Any:
        """What a copy is made from, and one in another process."""
        return tuple(self), self.names

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self.names:
                raise InputError(f"there is no output {key!r}: the outputs are {', '.join(self.names)}")
            key = self.names.index(key)
        return super().__getitem__(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        return zip(self.names, self, strict=True)


class Executor:
    """Compiled code with its weights: checks what it is called with, and names what it returns."""

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._names = tuple(spec.name for spec in outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run on NumPy arrays or DLPack tensors, by position, by keyword, or as one mapping of names.

        NumPy arrays in, NumPy arrays out; other tensors in, tensors that speak DLPack out.
        """
        values = self._bind(args, kwargs)
        results = self._run([self._to_device(spec, value) for spec, value in zip(self.inputs, values, strict=True)])
        if all(isinstance(value, np.ndarray) for value in values):
            results = [self._to_numpy(result) for result in results]
        return Outputs(results, self._names)

    def on_device(self, *args: Any, **kwargs: Any) -> Callable[[], Outputs]:
        """A call on these inputs, copied to the device once: it runs the model there and waits for it to finish.

        The outputs stay on the device, as tensors that speak DLPack.
        """
        values = self._bind(args, kwargs)
        tensors = [self._to_device(spec, value) for spec, value in zip(self.inputs, values, strict=True)]
        # Nobody else has tensors that were made here: they do not change.
        own = object() if all(isinstance(value, np.ndarray) for value in values) else None

        def run() -> Outputs:
            results = self._run(tensors, own)
            self._wait()
            return Outputs(results, self._names)

        return run

    def run_arrays(self, arrays: list[Array]) -> list[Array]:
        """The outputs for dense arrays of the right types and shapes, by position."""
        tensors = [self._to_device(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]
        return [self._to_numpy(result) for result in self._run(tensors)]

    def _to_device(self, spec: TensorSpec, value: Any) -> Any:
        raise NotImplementedError

    def _run(self, tensors: list[Any], same: object = None) -> list[Any]:
        """The results for these tensors, which have the content of the last call with the same `same`."""
        raise NotImplementedError

    def _to_numpy(self, result: Any) -> Any:
        return result

    def _wait(self) -> None:
        """Until the device has finished what it was asked to run."""

    def close(self) -> None:
        """Give back what the model holds; it cannot be called afterwards."""

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
            args, kwargs = [], args[0]
        if len(args) == len(self.inputs) and not kwargs:
            return list(args)
        names = [spec.name for spec in self.inputs]
        expected = ", ".join(map(str, self.inputs)) or "none"
        if len(args) > len(names):
            raise InputError(f"{len(args)} inputs were given, the model takes {len(names)}: {expected}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise InputError(f"there is no input {name!r}: the model takes {expected}")
            if name in given:
                raise InputError(f"input {name!r} was given twice")
            given[name] = value
        missing = [str(spec) for spec in self.inputs if spec.name not in given]
        if missing:
            raise InputError(f"missing input: {', '.join(missing)}")
        return [given[name] for name in names]


class LibraryExecutor(Executor):
    """A model that is a library of its own. Calls from several threads run at the same time and share its pool."""

    def __init__(self, library: ModelLibrary, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        super().__init__(inputs, outputs)
        self._library = library

    def run_arrays(self, arrays: list[Array]) -> list[Array]:
        return self._library.run(arrays)

    def _to_device(self, spec: TensorSpec, value: Any) -> Any:
        return dense_array(spec, value)

    def _run(self, tensors: list[Any], same: object = None) -> list[Any]:
        return self._library.run(tensors)

    def close(self) -> None:
        self._library.close()


class TvmExecutor(Executor):
    """A model that TVM's virtual machine runs; safe to call from several threads, which take turns.

    On a GPU it always gets the same tensors, into which inputs are copied: its CUDA graph reads fixed addresses.
    """

    def __init__(
        self,
        executable: Any,
        weights: Sequence[Array],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        threads: int | None = None,
        device: Any = None,
    ) -> None:
        import tvm

        super().__init__(inputs, outputs)
        self.threads = threads
        self._lock = threading.Lock()
        self._is_broken = False
        _taking_turns.add(self)
        use_threads(threads)
        self._device = device or tvm.cpu()
        self._on_gpu = self._device.dlpack_device_type() != tvm.cpu().dlpack_device_type()
        # DLPack cannot take bfloat16 from NumPy: these are copied.
        shared = [
            tvm.runtime.from_dlpack(weight) if weight.dtype.kind in "biuf" else tvm.runtime.tensor(weight)
            for weight in weights
        ]
        self._weights = tvm.runtime.convert([w.copyto(self._device) for w in shared] if self._on_gpu else shared)
        self._mapped = list(weights)
        self._main = tvm.relax.VirtualMachine(executable, self._device)["main"]
        self._from_dlpack = tvm.runtime.from_dlpack
        self._tensor = tvm.runtime.tensor
        self._tensor_type = tvm.runtime.Tensor
        self._empty = tvm.runtime.empty
        self._held: list[Any] = []
        self._own_memory = {weight.data_ptr() for weight in self._weights} - {0}  # which is nobody's
        self._filled_with: object = None

    def _run(self, tensors: list[Any], same: object = None) -> list[Any]:
        if self._is_broken:
            raise ArtifactError(
                "this process was forked while another thread called the model, which TVM's virtual machine runs: "
                "load it again in the child"
            )
        with self._lock:
            if self._on_gpu:
                tensors = self._fill_inputs(tensors, same)
            else:
                use_threads(self.threads)
            returned = self._main(*tensors, self._weights)
            results = [returned] if isinstance(returned, self._tensor_type) else list(returned)
            # What is given away must not be a constant of the model, nor what the next call writes its inputs to.
            return [one.copyto(self._device) if one.data_ptr() in self._own_memory else one for one in results]

    def after_fork(self) -> None:
        """In the child: a call of a thread that has stayed in the parent has left the virtual machine half-way."""
        self._is_broken = self._is_broken or self._lock.locked()
        self._lock = threading.Lock()

    def _fill_inputs(self, tensors: list[Any], same: object) -> list[Any]:
        if not self._held:
            self._held = [self._empty(spec.shape, spec.dtype, self._device) for spec in self.inputs]
            self._own_memory |= {held.data_ptr() for held in self._held} - {0}
        if same is None or same is not self._filled_with:
            for held, tensor in zip(self._held, tensors, strict=True):
                tensor.copyto(held)
        self._filled_with = same
        return self._held

    def _to_numpy(self, result: Any) -> Any:
        return np.asarray(result.numpy())

    def _wait(self) -> None:
        self._device.sync()

    def _to_device(self, spec: TensorSpec, value: Any) -> Any:
        _check(spec, value)
        if self._on_gpu and not is_on_host(spec, value):
            with _readable(spec):
                tensor = self._from_dlpack(_detached(value))
            check_indices(spec, tensor)
            return tensor
        # Compiled code wants 64-byte alignment and contiguous memory, which only a copy can promise.
        return self._tensor(dense_array(spec, value), self._device)


_taking_turns: WeakSet[TvmExecutor] = WeakSet()


def _after_fork() -> None:
    for executor in _taking_turns:
        executor.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def dense_array(spec: TensorSpec, value: Any) -> Array:
    """An input as a dense array, after checking that it is one the model takes; the same memory if it can be."""
    # A call of a small model takes no longer than to write the name of an array's type.
    if not (isinstance(value, np.ndarray) and value.shape == spec.shape and value.dtype == spec.dtype):
        _check(spec, value)
    array = host_array(spec, value)
    check_indices(spec, array)
    return np.asarray(array, order="C")


def host_array(spec: TensorSpec, value: Any) -> Array:
    """An input as an array on the same memory."""
    if isinstance(value, np.ndarray):
        return value
    with _readable(spec):
        return np.from_dlpack(_detached(value))


def is_on_host(spec: TensorSpec, value: Any) -> bool:
    """Whether an input is in the CPU's memory."""
    if isinstance(value, np.ndarray):
        return True
    with _readable(spec):
        return bool(value.__dlpack_device__() == CPU)


def _detached(value: Any) -> Any:
    """PyTorch gives away no tensor that takes part in its differentiation; compiled code does not."""
    return value.detach() if getattr(value, "requires_grad", False) else value


@contextmanager
def _readable(spec: TensorSpec) -> Iterator[None]:
    """What a tensor raises that has no memory, or none that can be read here, as an error of ours."""
    try:
        yield
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        said = first_line(error).rstrip(".")
        raise InputError(
            f"the memory of input {spec.name!r} cannot be read here ({said}): give a dense tensor that is in the CPU's "
            "memory, or a NumPy array"
        ) from error


def check_tensor(spec: TensorSpec, value: Any) -> None:
    """Raises if `value` is no tensor."""
    if not isinstance(value, np.ndarray) and not hasattr(value, "__dlpack__"):
        raise InputError(f"input {spec.name!r} is a {type(value).__name__}: give a NumPy array or a DLPack tensor")


def _check(spec: TensorSpec, value: Any) -> None:
    check_tensor(spec, value)
    dtype = str(value.dtype).removeprefix("torch.")
    shape = tuple(int(extent) for extent in value.shape)
    if dtype != spec.dtype or shape != spec.shape:
        got = f"{dtype}[{'x'.join(map(str, shape))}]"
        raise InputError(f"input {spec.name!r} has to be {str(spec).partition(': ')[2]}, not {got}")


def check_indices(spec: TensorSpec, value: Any) -> None:
    """Compiled code looks tables up without a bounds check: an index outside would read foreign memory.

    `value` is an array, or a tensor whose `numpy()` is one: indices on a GPU, some kilobytes, are copied to be checked.
    """
    if spec.limit is None:
        return
    indices: Array = value if isinstance(value, np.ndarray) else value.numpy()
    if indices.size and not -spec.limit <= indices.min() <= indices.max() < spec.limit:
        raise InputError(
            f"input {spec.name!r} holds {indices.min()} to {indices.max()}: it indexes a table of {spec.limit} rows"
        )
