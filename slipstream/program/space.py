"""All programs of one operator: its sketches, what each leaves to decide, and how a choice becomes a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, tirx

from slipstream.graph.cpu.default_schedule import may_rewrite_layout, schedule_default
from slipstream.graph.forms import Start, direct_start, function_in, untuned_start, vector_start, winograd_starts
from slipstream.machine.target import Target
from slipstream.program import decisions as d
from slipstream.program.decisions import Decisions, Points
from slipstream.program.gpu_draw import draw_on_gpu
from slipstream.program.gpu_limits import GpuLimits, find_limits
from slipstream.program.gpu_sketches import generators
from slipstream.program.sketch import Sketch, SketchError
from slipstream.program.trace import apply, block_names, read_trace
from slipstream.program.triton_templates import TemplateSketch
from slipstream.tvm_bridge.intrinsics import import_intrinsics
from slipstream.tvm_bridge.native_output import quiet_native_code

# More copies of the innermost statement take LLVM seconds and were never the fastest. Diffusion, the default search,
# has always drawn the line here.
MOST_WRITTEN_OUT = 768
# So many random programs are tried until one is a legal schedule.
_MOST_DRAWS = 64

# How a schedule primitive refuses, and how we do; anything else is a bug and must be seen.
_REFUSALS = (s_tir.schedule.ScheduleError, SketchError, d.IllegalDecisionError)


@dataclass(frozen=True)
class Program:
    """One way to compute an operator: a sketch and its decisions. `origin` says who came up with it."""

    operator: str
    sketch: Sketch
    decisions: Decisions
    origin: str = ""

    @property
    def identity(self) -> tuple[str, Decisions]:
        """Equal for equal programs of one operator, whoever proposed them."""
        return self.sketch.digest, self.decisions


@dataclass(frozen=True)
class Realized:
    """A program as scheduled TIR. Its decisions are those TVM really took: a location may have been moved."""

    program: Program
    module: tvm.IRModule

    @cached_property
    def text(self) -> str:
        return str(tvm.ir.save_json(self.module))


class Space:
    """The design space of one operator for one target.

    `default` is the program it has untuned; what cannot be scheduled at all has the empty sketch. `own` are examples
    of all our sketches, in all forms of the operator, the default's first; `direct` is the one in its own form.
    `stock` are MetaSchedule's sketches with one random example each.
    """

    def __init__(self, key: str, func: tirx.PrimFunc, target: Target, seed: int = 1) -> None:
        self.key = key
        self.target = target
        self.func = func
        self.mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        self.names = block_names(func)
        self._seed = seed
        self._forms = {"": (self.mod, self.names)}
        self._limits: dict[str, GpuLimits] = {}

    @cached_property
    def default(self) -> Program:
        if self._template is not None:
            return Program(self.key, self._template.sketch, self._template.start, "default")
        return self._program(untuned_start(self.func, self.target), "default")

    @cached_property
    def _template(self) -> TemplateSketch | None:
        return TemplateSketch.of(self.func, self.target)

    @cached_property
    def direct(self) -> Program:
        if not self.default.sketch.form or self._template is not None:
            return self.default
        return self._program(direct_start(self.func, self.target), "form")

    @cached_property
    def own(self) -> tuple[Program, ...]:
        starts: list[Start | None] = [*winograd_starts(self.func, self.target)]
        if self.target.has_tiles:
            starts.append(vector_start(self.func, self.target))
        forms = [self._program(start, "form") for start in starts]
        others = {example.sketch.text: example for example in (self.direct, *forms)}
        others.pop(self.default.sketch.text, None)
        return (self.default, *others.values())

    def _program(self, start: Start | None, origin: str) -> Program:
        if start is None:
            return Program(self.key, Sketch("[]"), (), origin)
        sketch, decisions = read_trace(start.schedule.trace, self.in_form(start.form)[1], start.form)
        return Program(self.key, sketch, decisions, origin)

    def in_form(self, form: str) -> tuple[tvm.IRModule, tuple[str, ...]]:
        """The operator in that form, and its blocks' names."""
        if form not in self._forms:
            func = function_in(form, self.func, self.target)
            if func is None:
                raise SketchError(f"operator {self.key} has no form {form}")
            self._forms[form] = tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), block_names(func)
        return self._forms[form]

    def _default_module(self) -> tvm.IRModule:
        """What the empty sketch stands for: the operator as it is, or a GPU's default program, which has no trace."""
        if self.target.gpu is None:
            return self.mod
        return tvm.IRModule({"main": schedule_default(self.mod["main"], self.target)})

    @cached_property
    def stock(self) -> tuple[Program, ...]:
        found: dict[str, Program] = {}
        for generator in self._generators:
            # TVM warns of every custom rule it does not have.
            with self.target.tvm_for_search, quiet_native_code():
                try:
                    schedules = self.context(self._seed, space_generator=generator()).generate_design_space()
                except (RuntimeError, ValueError, IndexError):  # attention on a GPU, for one
                    continue
            for schedule in schedules:
                try:
                    sketch, decisions = read_trace(schedule.trace, self.names)
                except SketchError:
                    continue
                found.setdefault(sketch.digest, Program(self.key, sketch, decisions, "sketch"))
        return tuple(found.values())

    @cached_property
    def sketches(self) -> tuple[Program, ...]:
        """An example program of every sketch that leaves something to decide, the default's first.

        Beside sketches with an instruction for the operator, such as a dot product, MetaSchedule's have none.
        """
        if self._template is not None and self._template.template.alone:
            return self.own
        with_instruction = any(example.sketch.has_instruction for example in self.own)
        examples = self.own if with_instruction else (*self.own, *self.stock)
        return tuple(e for e in examples if any(point.is_open for point in self.points(e)))

    @property
    def made_sketches(self) -> Mapping[str, tuple[Program, ...]]:
        """What has been made of `own` and `stock` so far, for `keep_sketches` of the same space in another process."""
        return {name: vars(self)[name] for name in ("own", "stock") if name in vars(self)}

    def keep_sketches(self, made: Mapping[str, tuple[Program, ...]]) -> None:
        vars(self).update({**made, **self.made_sketches})

    @property
    def default_may_be_wrong(self) -> bool:
        """Whether the default program comes from a compiler that has made wrong code of some: another may be right."""
        return self._template is not None

    @property
    def leaves_something_to_decide(self) -> bool:
        """Whether there are programs besides the default one; sketches are made only if that takes them to tell."""
        return any(point.is_open for point in self.points(self.default)) or bool(self.sketches)

    def context(self, seed: int, **options: Any) -> Any:
        """A TVM tuning context for this operator."""
        import_intrinsics()
        from tvm.s_tir import meta_schedule as ms

        generator = options.pop("space_generator", None) or self._generators[0]()
        return ms.TuneContext(
            self.mod,
            target=self.target.tvm_for_search,
            space_generator=generator,
            rand_state=seed % (2**31 - 2) + 1,
            **options,
        )

    @cached_property
    def _generators(self) -> list[Callable[[], Any]]:
        """What makes MetaSchedule's sketches for the target; the first is the one of searches by TVM itself."""
        return [_on_cpu] if self.target.gpu is None else generators(self.func)

    @cached_property
    def _postprocs(self) -> Sequence[Any]:
        with self.target.tvm_for_search:
            return list(self.context(1).space_generator.postprocs)

    def points(self, program: Program) -> Points:
        return program.sketch.points(program.decisions)

    def check(self, program: Program) -> None:
        """Raise `IllegalDecisionError` if no schedule can come of the program; needs no TVM."""
        self.check_decisions(program.sketch, self._points_of(program.sketch), program.decisions)

    def check_decisions(self, sketch: Sketch, points: Points, decisions: Decisions) -> None:
        """Raise `IllegalDecisionError` for illegal values, too much code, and what the GPU cannot hold."""
        d.check(points, decisions)
        if (size := sketch.body_size(decisions)) > MOST_WRITTEN_OUT:
            raise d.IllegalDecisionError(f"{size} copies of the innermost statement are more than {MOST_WRITTEN_OUT}")
        if (limits := self.limits(sketch)) is not None:
            limits.check(decisions)

    def allowed(self, sketch: Sketch, drawn: Sequence[Decisions]) -> list[bool]:
        """Which of many legal values `check_decisions` would let pass, a GPU's limits in one go."""
        limits = self.limits(sketch)
        fit = [True] * len(drawn) if limits is None or not drawn else limits.allowed(drawn).tolist()
        return [one and sketch.body_size(values) <= MOST_WRITTEN_OUT for one, values in zip(fit, drawn, strict=True)]

    def limits(self, sketch: Sketch) -> GpuLimits | TemplateSketch | None:
        """What programs of the sketch may ask of the GPU; None on a CPU and for the default program."""
        if self.target.gpu is None or not sketch.instructions:
            return None
        if self._template is not None and sketch == self._template.sketch:
            return self._template
        if sketch.digest not in self._limits:
            self._limits[sketch.digest] = find_limits(sketch, self._points_of(sketch), self.func, self.target)
        return self._limits[sketch.digest]

    def _points_of(self, sketch: Sketch) -> Points:
        for example in self._examples():
            if example.sketch.text == sketch.text:
                return self.points(example)
        raise SketchError(f"operator {self.key} has no sketch {sketch.digest}")

    def _examples(self) -> Iterator[Program]:
        yield from self.own
        yield from self.stock

    def draw(self, rng: np.random.Generator, examples: Sequence[Program] | None = None) -> Program:
        """A program at random: a sketch, then its decisions."""
        examples = self.sketches if examples is None else examples
        example = examples[int(rng.integers(len(examples)))]
        return replace(example, decisions=self.draw_decisions(example, rng), origin="random")

    def draw_decisions(self, example: Program, rng: np.random.Generator) -> Decisions:
        """Decisions for the example's sketch at random; on a GPU such that it can run them."""
        limits = self.limits(example.sketch)
        if isinstance(limits, TemplateSketch):
            return limits.draw(rng)
        return d.draw(self.points(example), rng) if limits is None else draw_on_gpu(limits, rng)

    def realize(self, program: Program) -> Realized | None:
        """Replay the program and post-process it; None if it turns out not to be a legal schedule."""
        if not program.sketch.instructions:
            return Realized(program, self._default_module())
        if self._template is not None and program.sketch == self._template.sketch:
            return Realized(program, self._template.module(program.decisions)) if self._fits(program) else None
        scheduled = self.schedule(program)
        return scheduled and Realized(replace(program, decisions=scheduled[1]), scheduled[0].mod)

    def _fits(self, program: Program) -> bool:
        try:
            self.check(program)
        except _REFUSALS:
            return False
        return True

    def schedule(self, program: Program) -> tuple[s_tir.Schedule, Decisions] | None:
        """The same as a schedule, whose trace has all steps, and the decisions that TVM really took."""
        try:
            mod, names = self.in_form(program.sketch.form)
            schedule = s_tir.Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
            apply(program.sketch, program.decisions, schedule, names)
            _, decisions = read_trace(schedule.trace, names)
            schedule.enter_postproc()
            left_out = self._left_out(program, schedule)
            kept = [one for one in self._postprocs if not any(name in str(one) for name in left_out)]
            if not all(_applies(postproc, schedule) for postproc in kept):
                return None
        except _REFUSALS:
            return None
        return schedule, decisions

    def _left_out(self, program: Program, schedule: s_tir.Schedule) -> list[str]:
        """Postprocessors that would undo what the program says, or check slowly what its decisions say."""
        left_out = [] if may_rewrite_layout(schedule) else ["RewriteLayout"]
        limits = self.limits(program.sketch)
        if limits is not None and limits.says_all:
            limits.check(program.decisions)
            left_out.append("VerifyGPUCode")
        return left_out


def _on_cpu() -> Any:
    """The rules for any CPU: those for one with dot products use TVM's intrinsics, which do not compile."""
    from tvm.s_tir import meta_schedule as ms

    return ms.space_generator.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm")


def _applies(postproc: Any, schedule: s_tir.Schedule) -> bool:
    """Whether a postprocessor takes the schedule. Where extents multiply to more than 32 bits, TVM's raise."""
    try:
        return bool(postproc.apply(schedule))
    except ValueError as error:
        if "exceeds range of int32" not in str(error):
            raise
        return False


class StockSpace(Space):
    """The same without our sketches: what a tuner with MetaSchedule's alone starts from.

    Its default is a random program. An operator of which MetaSchedule leaves nothing open keeps ours.
    """

    @cached_property
    def default(self) -> Program:
        rng = np.random.default_rng(self._seed)
        if any(point.is_open for example in self.stock for point in self.points(example)):
            for _ in range(_MOST_DRAWS):
                program = self.draw(rng, self.stock)
                if self.realize(program) is not None:
                    return replace(program, origin="default")
        return self._program(untuned_start(self.func, self.target), "default")

    @cached_property
    def direct(self) -> Program:
        return self._program(direct_start(self.func, self.target), "form")

    @cached_property
    def own(self) -> tuple[Program, ...]:
        return () if self.default.sketch in [example.sketch for example in self.stock] else (self.default,)
