"""Segments of a device: text (weights), data (state of sessions), stack (activations); allocators, bytes, views."""
