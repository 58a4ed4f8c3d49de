"""The files of a model that each runtime is given."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from slipstream.frontends import zoo
from slipstream.frontends.inputs import TensorSpec, random_inputs
from slipstream.frontends.onnx_import import clean_onnx

_LIGHT = "light_"


def model_files(name: str, folder: Path) -> dict[str, str]:
    """Write the model, one of the zoo or the onnx package or a file, and what to run it on into `folder`; name -> path.

    `source` is what Slipstream is given, `model` the same with its input shapes fixed, `clean` simplified by ONNX
    Runtime, as Slipstream does before it imports a model. `feeds` are inputs, `expected` ONNX Runtime's outputs.
    """
    if not (folder / "expected.npz").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if name.startswith(_LIGHT):
            onnx.save(light_model(name), str(folder / "source.onnx"))
            reference, facts = clean_onnx(folder / "source.onnx", {}, {})
        elif name.endswith(".onnx"):
            reference, facts = clean_onnx(Path(name), {}, {})
        else:
            reference, facts = clean_onnx(zoo.build(name), {}, {}, disposable=True)
        shutil.copytree(reference.directory, folder, dirs_exist_ok=True)
        specs = tuple(TensorSpec(n, tuple(shape), dtype, limit) for n, shape, dtype, limit in facts["inputs"])
        feeds = random_inputs(specs, np.random.default_rng(0))
        np.savez(folder / "feeds.npz", **feeds)
        np.savez(folder / "expected.npz", *reference.outputs([feeds])[0])
    own = str(folder / "source.onnx") if name.startswith(_LIGHT) else f"zoo:{name}"
    return {
        "source": name if name.endswith(".onnx") else own,
        "model": str(folder / "fixed.onnx"),
        "clean": str(folder / "clean.onnx"),
        "feeds": str(folder / "feeds.npz"),
        "expected": str(folder / "expected.npz"),
    }


def light_model(name: str) -> Any:
    """A model of the onnx package with its constants folded and its weights, all alike as shipped, drawn at random."""
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"{name}.onnx"
    reference, _ = clean_onnx(path, {}, {})
    model = onnx.load(str(reference.clean_path))
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        old = onnx.numpy_helper.to_array(tensor)
        if old.dtype != np.float32:
            continue
        if old.ndim > 1:
            new = rng.standard_normal(old.shape) * np.sqrt(2.0 / np.prod(old.shape[1:]))
        else:
            new = rng.uniform(0.5, 1.5, old.shape)
        tensor.CopyFrom(onnx.numpy_helper.from_array(new.astype(np.float32), tensor.name))
    return model
