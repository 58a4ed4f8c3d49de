"""Policies for giving slots to operators. One small file each; the protocol is in `types.py`, names in `plugins.py`."""

from slipstream.schedulers.types import OperatorState, Scheduler, SchedulerError

__all__ = ["OperatorState", "Scheduler", "SchedulerError"]
