"""The plan of a model as C: tables for `native/executor.c`, and the header that callers include."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipstream.frontends.inputs import TensorSpec
from slipstream.runtime.plan import Place, Plan, PlannedTensor, aligned, type_code

_PLACES = {Place.INPUT: "IN_CALLER", Place.OUTPUT: "IN_CALLER", Place.WEIGHTS: "IN_WEIGHTS", Place.ARENA: "IN_ARENA"}

# Libraries, macros, headers and the beginnings of functions of C that a model's files and functions must not hide.
_TAKEN = """
    c m dl rt gcc_s pthread slipstream_pool linux unix main
    timer sem mtx cnd thrd tss epoll key
    alloca assert complex ctype dirent dlfcn elf endian errno fcntl features fenv float ftw glob iconv inttypes limits
    link locale malloc math memory mntent monetary net netdb nl_types poll pty pwd regex resolv sched search semaphore
    setjmp signal spawn stdint stdio stdlib string strings syslog termios threads time uchar unistd utime values wait
    wchar wctype
"""

_TYPES = """\
typedef struct {
  const char *name, *type;
  int ndim;
  const int64_t *shape;
  size_t bytes, staging, element_bytes;
} TensorInfo;

enum { IN_CALLER, IN_WEIGHTS, IN_ARENA };

typedef struct {
  int place;
  size_t offset;
  int ndim;
  const int64_t *shape;
  uint8_t code, bits;
} TensorPlan;

typedef struct {
  int (*function)(void *, void *, int, void *);
  const char *name;
  int first, count, threads;
} Step;

typedef struct {
  int index, tensor;
} View;
"""


def symbol_prefix(name: str) -> str:
    """A C identifier for a model's name."""
    word = re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_") or "model"
    return f"model_{word}" if word[0].isdigit() or word in _TAKEN.split() else word


def model_source(
    plan: Plan,
    prefix: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    weight_offsets: Sequence[int],
    weights_bytes: int,
    threads: int,
    processor: Sequence[str] = (),
) -> str:
    """The C file of a model: its tables, then `executor.c`. `processor`: what /proc/cpuinfo has to name."""
    shapes = _Shapes()
    staging, arena = [], plan.arena_bytes
    for spec in (*inputs, *outputs):  # where an input or output whose elements are not aligned is copied to
        staging.append(arena)
        arena += aligned(_nbytes(spec))
    plans = [
        f"{{{_PLACES[t.place]}, {_offset(t, weight_offsets)}, {len(t.shape)}, "
        f"{shapes.name(t.shape)}, {', '.join(map(str, type_code(t.dtype)))}}}"
        for t in plan.tensors
    ]
    arguments = [index for step in plan.steps for index in step.arguments]
    starts = [sum(len(s.arguments) for s in plan.steps[:i]) for i in range(len(plan.steps))]
    steps = [
        f'{{__tvm_ffi_{step.function}, "{step.function}", {start}, {len(step.arguments)}, {step.threads}}}'
        for step, start in zip(plan.steps, starts, strict=True)
    ]
    functions = sorted({step.function for step in plan.steps})
    copies = [
        index if plan.tensors[index].place is not Place.OUTPUT or plan.tensors[index].offset != number else -1
        for number, index in enumerate(plan.outputs)
    ]
    infos = [_info(spec, shapes, place) for spec, place in zip((*inputs, *outputs), staging, strict=True)]
    return "\n".join(
        [
            "#define _GNU_SOURCE",
            "#include <stddef.h>",
            "#include <stdint.h>",
            f"#define PREFIX {prefix}",
            f"#define THREADS {threads}",
            f"#define MOST_STEP_THREADS {max((step.threads for step in plan.steps), default=1)}",
            f"#define WEIGHTS_BYTES ((size_t){weights_bytes})",
            f"#define ARENA_BYTES ((size_t){max(arena, 1)})",
            *(f"extern int __tvm_ffi_{name}(void *, void *, int, void *);" for name in functions),
            _TYPES,
            *shapes.lines(),
            *_table("TensorPlan", "tensor_plans", "TENSORS", plans),
            *_table("int", "argument_tensors", "ARGUMENTS", arguments),
            *_table("Step", "steps", "STEPS", steps),
            *_table("TensorInfo", "input_infos", "INPUTS", infos[: len(inputs)]),
            *_table("TensorInfo", "output_infos", "OUTPUTS", infos[len(inputs) :]),
            *_table("View", "input_views", "INPUT_VIEWS", _views(plan, Place.INPUT)),
            *_table("View", "output_views", "OUTPUT_VIEWS", _views(plan, Place.OUTPUT)),
            *_table("int", "output_copies", "", copies),
            *_table("char *const", "processor", "", [*(f'"{word}"' for word in processor), 0]),
            '#include "executor.c"',
            "",
        ]
    )


def header(prefix: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """What a program in C or C++ includes."""
    guard = f"{prefix.upper()}_H"
    listed = [f"   input {i}: {_in_comment(spec)}" for i, spec in enumerate(inputs)]
    listed += [f"   output {i}: {_in_comment(spec)}" for i, spec in enumerate(outputs)]
    return f"""\
/* A compiled model. Tensors are dense, in row-major order:
{chr(10).join(listed)} */
#ifndef {guard}
#define {guard}

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {prefix}_model {prefix}_model;

typedef struct {{
  const char *name, *type;
  int ndim;
  const int64_t *shape;
  size_t bytes, reserved[2];
}} {prefix}_tensor;

/* A model with the weights in the file `weights`, on `threads` threads (0: as many as it was compiled for, or as there
   are processors if these are fewer). NULL on failure: then {prefix}_error says why. */
{prefix}_model *{prefix}_create(const char *weights, int threads);

/* No call of the model may be running, and none may follow. */
void {prefix}_destroy({prefix}_model *model);

/* Run the model; 0 on success. Several threads may run one model at a time. Memory that begins at a multiple of
   the size of its elements is used as it is, other memory is copied. Inputs and outputs must not overlap. Values of
   inputs are not checked: an index outside of the range named above reads foreign memory. */
int {prefix}_run({prefix}_model *model, const void *const *inputs, void *const *outputs);

/* For the calls that begin from now on. */
void {prefix}_set_threads({prefix}_model *model, int threads);

int {prefix}_inputs(void);
int {prefix}_outputs(void);
const {prefix}_tensor *{prefix}_input(int index);
const {prefix}_tensor *{prefix}_output(int index);

/* What went wrong in this thread's last call. */
const char *{prefix}_error(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


class _Shapes:
    """Each distinct shape once."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, ...], str] = {}

    def name(self, shape: tuple[int, ...]) -> str:
        return self._names.setdefault(shape, f"shape_{len(self._names)}")

    def lines(self) -> list[str]:
        return [
            f"static const int64_t {name}[] = {{{', '.join(map(str, shape)) or 0}}};"
            for shape, name in self._names.items()
        ]


def _table(kind: str, name: str, count: str, rows: Sequence[object]) -> list[str]:
    lines = [f"#define {count} {len(rows)}"] if count else []
    return [*lines, f"static const {kind} {name}[] = {{{', '.join(map(str, rows)) or '0'}}};"]


def _offset(tensor: PlannedTensor, weight_offsets: Sequence[int]) -> int:
    """Bytes from the beginning of the weights' file, of the arena, or of an input or output."""
    if tensor.place is Place.WEIGHTS:
        return weight_offsets[tensor.offset] + tensor.begin
    return tensor.offset + tensor.begin if tensor.place is Place.ARENA else tensor.begin


def _views(plan: Plan, place: Place) -> list[str]:
    """The tensors that are an input's or output's memory."""
    return [f"{{{t.offset}, {index}}}" for index, t in enumerate(plan.tensors) if t.place is place]


def _nbytes(spec: TensorSpec) -> int:
    size = type_code(spec.dtype)[1] // 8
    for extent in spec.shape:
        size *= extent
    return size


def _in_comment(spec: TensorSpec) -> str:
    text = str(spec) if spec.limit is None else f"{spec}, from {-spec.limit} to {spec.limit - 1}"
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


def _info(spec: TensorSpec, shapes: _Shapes, staging: int) -> str:
    name = " ".join(spec.name.split()).replace("\\", "\\\\").replace('"', '\\"')
    numbers = f"{_nbytes(spec)}, {staging}, {type_code(spec.dtype)[1] // 8}"
    return f'{{"{name}", "{spec.dtype}", {len(spec.shape)}, {shapes.name(spec.shape)}, {numbers}}}'
