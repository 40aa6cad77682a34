"""Capture and lowering: from a model to ``ir.Graph``. torch lives here and in the runtime alone."""

from tmmu.passes.capture import capture
from tmmu.passes.lower import lower
from tmmu.passes.request import CaptureRequest, Progress, no_progress

__all__ = ["CaptureRequest", "Progress", "capture", "lower", "no_progress"]
