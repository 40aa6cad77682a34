"""Calls compiled to steps, validated against their operators, and launched on an execution stream."""
