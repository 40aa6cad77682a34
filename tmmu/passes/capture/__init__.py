"""Capture: one run of a model over fake tensors, every operator call recorded."""
