"""Building and timing programs: quickly, under equal conditions, and in processes that may fail."""

from slipstream.measure.choose import cpu_measurer, fleet_measurer, gpu_measurer, make_measurer, rpc_measurer
from slipstream.measure.config import MeasureConfig, Racing, RemoteConfig
from slipstream.measure.engine import Engine
from slipstream.measure.reference import reference_text
from slipstream.measure.timing.settling import Settling
from slipstream.measure.types import Candidate, Failure, FailureKind, Measurement, Measurer, Settled

__all__ = [
    "Candidate",
    "Engine",
    "Failure",
    "FailureKind",
    "MeasureConfig",
    "Measurement",
    "Measurer",
    "Racing",
    "RemoteConfig",
    "Settled",
    "Settling",
    "cpu_measurer",
    "fleet_measurer",
    "gpu_measurer",
    "make_measurer",
    "reference_text",
    "rpc_measurer",
]
