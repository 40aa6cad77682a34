"""Capture and lowering: from a model to ``ir.Graph``. torch lives here and in the runtime alone."""

from tmmu.passes.capture import capture
from tmmu.passes.lower import lower, lower_with_calls
from tmmu.passes.request import CaptureRequest, Progress, no_progress

__all__ = ["CaptureRequest", "Progress", "capture", "lower", "lower_with_calls", "no_progress"]
