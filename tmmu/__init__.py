"""A deterministic memory-planning compiler for PyTorch."""
