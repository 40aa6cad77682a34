"""Runs a plan: segments, streams, devices. torch lives here and in ``passes`` alone."""
