"""Running programs on a GPU as a compiled model does: in CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from slipstream.measure.devices.cuda_graph import CaptureError, GraphTimer
from slipstream.measure.devices.launcher import Launcher, Loaded


class GraphLauncher(Launcher):
    """Times programs in CUDA graphs; those that cannot be captured, launched one by one."""

    @cached_property
    def _timer(self) -> GraphTimer:
        return GraphTimer(self._device)

    def _take(self, loaded: Loaded, number: int, repeat: int) -> Sequence[float]:
        function, tensors = loaded.module["main"], loaded.tensors
        try:
            return self._timer.seconds(lambda: function(*tensors), number, repeat)
        except CaptureError:
            return super()._take(loaded, number, repeat)
