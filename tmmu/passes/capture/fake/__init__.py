"""Operators, modules and devices as the target has them, on fake tensors."""
