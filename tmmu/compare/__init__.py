"""Differences between two planned graphs: which ops and buffers correspond, and what raised the peak."""
