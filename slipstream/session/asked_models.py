"""What a session is asked to tune: which models, how to read each, and how much each counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.artifact.padding_check import check_padding
from slipstream.artifact.write import check_partition, tvm_errors, verification_feeds
from slipstream.errors import SlipstreamError
from slipstream.frontends import Model, load_model
from slipstream.frontends.inputs import Array
from slipstream.frontends.model import describe_parts
from slipstream.frontends.shape_lists import Shapes, shape_sets
from slipstream.frontends.shape_variants import variant_labels
from slipstream.machine.target import Target
from slipstream.session.directory import SessionDirectory
from slipstream.session.model_names import by_name, default_name
from slipstream.session.models import SessionModel, errors_of
from slipstream.store import SessionRecord

_OF_EACH = ("shapes", "constants", "input_data", "example_inputs")


class AskedModelsError(SlipstreamError):
    """Options that do not fit the models."""


@dataclass(frozen=True)
class AskedModel:
    """A model and how to read it; `name` and `weight` as of a `SessionModel`.

    `load` is what `load_model` is given and fit for JSON. With a `fingerprint` it has to be that very model.
    """

    model: Any
    load: dict[str, Any]
    name: str = ""
    weight: int = 1
    pad: bool = False
    input_data: dict[str, Array] | None = None
    example_inputs: Sequence[Any] | None = None
    fingerprint: str = ""

    def read(self, target: Target) -> SessionModel:
        """Load and prepare it; what is wrong with it is said now rather than when the session is over."""
        from slipstream.graph.prepare import prepare_parts
        from slipstream.tvm_bridge.native_output import quiet_native_code

        with errors_of(self.name):
            model = self._loaded()
            verification_feeds(model, self.input_data)
            # Of several models, those of one shape have nothing that could be filled up.
            pad = self.pad and (bool(model.variants) or not self.name)
            if pad:
                check_padding(model)
            check_partition(model, target)
            with tvm_errors(model.name), quiet_native_code():
                prepared, reports = prepare_parts(model, target)
        messages = (*_cuts(model), *(report.warning for report in reports if report.warning))
        return SessionModel(model, tuple(prepared), self.name, self.weight, self.input_data, pad, messages)

    def _loaded(self) -> Model:
        model = self.model
        if not isinstance(model, Model):
            model = load_model(model, example_inputs=self.example_inputs, input_data=self.input_data, **self.load)
        if self.fingerprint not in ("", model.fingerprint):
            raise SlipstreamError(
                f"{model.source} is not the model this session was started with (its content has changed): "
                "start a new session"
            )
        return model

    def to_json(self, read: SessionModel) -> dict[str, Any]:
        """What is needed to read it again, as the session's options have it: one model's alone, several in a list."""
        found = {"source": read.model.source, "load": self.load, "pad": self.pad}
        if self.name:
            found |= {"name": self.name, "weight": self.weight, "fingerprint": read.model.fingerprint}
        return found


def _cuts(model: Model) -> list[str]:
    """A line for each part of a model that was cut."""
    return [
        f"{label and f'{label}: '}{name}, {nodes} nodes: {by}{why and f' ({why})'}"
        for variant, label in zip(model.shape_variants, variant_labels(model), strict=True)
        for name, by, nodes, why in describe_parts(variant.parts)
    ]


def ask(
    model: Any, *, weights: Mapping[str, int] | None = None, partition: bool = True, pad: bool = False, **of_each: Any
) -> list[AskedModel]:
    """The models that `slipstream.tune` was given: one, or a list or a mapping of several.

    `of_each` are `shapes`, `constants`, `input_data` and `example_inputs`; of several models, each by the model's name.
    """
    if not is_several(model):
        if weights:
            raise AskedModelsError("weights are for several models: give a list of them, or leave the weights out")
        return [_asked(model, partition=partition, pad=pad, **of_each)]
    named = _named(model)
    given = {option: _by_name(option, of_each.get(option), named) for option in _OF_EACH}
    counted = _by_name("weights", weights, named)
    for name, weight in counted.items():
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise AskedModelsError(
                f"a weight of {weight!r} for {name} makes no sense: give a whole number from 1, how often it runs"
            )
    asked = []
    for name, one in named.items():
        own = {option: values.get(name) for option, values in given.items()}
        with errors_of(name):
            asked.append(_asked(one, partition=partition, pad=pad, name=name, weight=counted.get(name, 1), **own))
    return asked


def read_models(asked: Sequence[AskedModel], target: Target) -> tuple[SessionModel, ...]:
    """Read all of them before anything is tuned or written."""
    models = tuple(one.read(target) for one in asked)
    if any(one.pad for one in asked) and not any(one.pad for one in models):
        raise AskedModelsError("--pad needs several shapes to fill inputs up to: give --shape a list or a range")
    return models


def is_several(model: Any) -> bool:
    """Whether several models were given, even if it is a list of one."""
    return isinstance(model, list | tuple | Mapping)


def ask_again(record: SessionRecord, directory: SessionDirectory, model: Any, example_inputs: Any) -> list[AskedModel]:
    """The models of a stored session; `model` and `example_inputs`, of several by name, are those it cannot read."""
    options = record.options
    if "models" not in options:
        return [_stored({**options, "fingerprint": record.model}, directory, model, example_inputs)]
    names = [row["name"] for row in options["models"]]
    given, examples = _by_name("model", model, names), _by_name("example_inputs", example_inputs, names)
    return [_stored(row, directory, given.get(row["name"]), examples.get(row["name"])) for row in options["models"]]


def _stored(row: Mapping[str, Any], directory: SessionDirectory, model: Any, example_inputs: Any) -> AskedModel:
    name, source = row.get("name", ""), row["source"]
    if model is None and not source.startswith("zoo:") and not Path(source).exists():
        raise SlipstreamError(
            f"the session's model {source!r} is not there any more: put it back, or pass it to slipstream.resume"
        )
    return AskedModel(
        source if model is None else model,
        row["load"],
        name,
        row.get("weight", 1),
        row.get("pad", False),
        directory.read_inputs(name),
        example_inputs,
        row["fingerprint"],
    )


def _asked(
    model: Any,
    *,
    shapes: Shapes | None = None,
    constants: Mapping[str, float] | None = None,
    partition: bool = True,
    **others: Any,
) -> AskedModel:
    sets = shape_sets(shapes)
    load = {"shapes": (sets if len(sets) > 1 else sets[0]) or None, "constants": constants, "partition": partition}
    return AskedModel(model, load, **others)


def _named(models: Any) -> dict[str, Any]:
    """The models by their names, which are the folders of the artifacts."""
    if not models:
        raise AskedModelsError("there is no model to tune: give at least one")
    return by_name(models.items() if isinstance(models, Mapping) else ((_name_of(one), one) for one in models))


def _name_of(model: Any) -> str:
    if isinstance(model, Model):
        return model.name
    if isinstance(model, str | Path):
        return default_name(model)
    raise AskedModelsError(
        f"one of the models ({type(model).__name__}) is no file and has no name: give a mapping from names to models"
    )


def _by_name(option: str, values: Any, names: Iterable[str]) -> dict[str, Any]:
    """What was given for models by their names."""
    if values is None:
        return {}
    if not isinstance(values, Mapping) or set(values) - set(names):
        unknown = "" if not isinstance(values, Mapping) else f", not for {min(map(str, set(values) - set(names)))!r}"
        raise AskedModelsError(
            f"of several models, {option} is a mapping from their names ({', '.join(names)}){unknown}"
        )
    return dict(values)
