"""The exceptions Slipstream raises for users. Each message says what was wrong, where, and what to do about it."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """What an exception says first; its kind where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def cannot_access(error: OSError) -> str:
    """What an error with a `filename` is to a person: the file or folder and the reason."""
    return f"cannot access {error.filename}: {error.strerror or error}"


class SlipstreamError(Exception):
    """Base of everything Slipstream raises on purpose; the command line prints it as one line, exit code 2."""


class ModelError(SlipstreamError):
    """The model could not be read, prepared or imported."""


class UnsupportedModelError(ModelError):
    """The model is valid but uses something TVM cannot import."""


class ShapeError(ModelError):
    """An input's shape is unknown, impossible or was given wrongly."""


class TargetError(SlipstreamError):
    """The target is unknown or this machine cannot build for it."""


class BuildError(SlipstreamError):
    """The compiler failed on a prepared model."""


class VerificationError(SlipstreamError):
    """The compiled model does not compute what the reference computes.

    `may_be_rounding` says whether it is so close that more exact arithmetic may do.
    """

    may_be_rounding: bool = False


class ArtifactError(SlipstreamError):
    """An artifact directory is missing, damaged, made for another machine, or not writable."""


class InputError(SlipstreamError):
    """A compiled model was called with arguments it does not take."""


class MissingDependencyError(SlipstreamError):
    """An optional package is needed and not installed."""
