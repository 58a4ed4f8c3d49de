"""Where compiled graphs are kept: by content, so that the next process neither compiles nor tunes them again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from slipstream.artifact.manifest import WEIGHTS, Manifest
from slipstream.machine.cpu import cpu_model
from slipstream.runtime.link import cache_folder
from slipstream.version import VERSION

if TYPE_CHECKING:
    from slipstream.torch.options import Options


def folder_of(digest: str) -> Path:
    """The folder of a graph; `SLIPSTREAM_TORCH_CACHE` moves all of them."""
    return Path(os.environ.get("SLIPSTREAM_TORCH_CACHE") or cache_folder() / "torch") / digest


@contextmanager
def compiling(folder: Path) -> Iterator[None]:
    """While one process writes to the folder of a graph, others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        yield


def share_weights(artifact: Path) -> None:
    """Let artifacts with the same weights, as those of one graph for several shapes, have one file in memory."""
    own = artifact / WEIGHTS
    if not own.exists():
        return
    shared = artifact.parents[1] / "weights" / Manifest.read(artifact).checksums[WEIGHTS]
    shared.parent.mkdir(exist_ok=True)
    with suppress(OSError):  # a file system without links keeps copies
        try:
            os.link(own, shared)
        except FileExistsError:
            os.link(shared, linked := own.with_name(".weights"))
            linked.replace(own)


def digest_of(module: Any, values: Sequence[Any], static: Collection[int], options: Options, device: str) -> str:
    """The same for the same graph, shapes, parameters, options and machine."""
    import torch

    machine = torch.cuda.get_device_name(0) if device == "cuda" else cpu_model()
    versions = [VERSION, torch.__version__, importlib.metadata.version("apache-tvm")]
    digest = hashlib.blake2b(digest_size=16)
    said = [module.code, machine, *versions, str(len(os.sched_getaffinity(0))), repr((options.dtype, options.threads))]
    for text in said:
        digest.update(text.encode() + b"\0")
    held = [tensor for _, tensor in sorted([*module.named_parameters(), *module.named_buffers()])]
    for position, value in enumerate([*values, *held]):
        if not isinstance(value, torch.Tensor):
            digest.update(repr(value).encode() + b"\0")
            continue
        digest.update(repr((tuple(value.shape), str(value.dtype))).encode())
        if position in static or position >= len(values):
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
