"""Capture and lowering: from a model to ``ir.Graph``. torch lives here and in the runtime alone."""
