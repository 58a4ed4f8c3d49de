"""Building and timing programs: quickly, fairly, and whatever they do."""

from slipstream.measure.config import MeasureConfig, Racing
from slipstream.measure.engine import LocalMeasurer, Settled
from slipstream.measure.gpu_engine import GpuMeasurer
from slipstream.measure.reference import reference_text
from slipstream.measure.summary import count_failures
from slipstream.measure.timing.settling import Settling
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement, Measurer

__all__ = [
    "Candidate",
    "Failure",
    "FailureKind",
    "GpuMeasurer",
    "LocalMeasurer",
    "MeasureConfig",
    "Measurement",
    "Measurer",
    "Racing",
    "Settled",
    "Settling",
    "count_failures",
    "reference_text",
]
