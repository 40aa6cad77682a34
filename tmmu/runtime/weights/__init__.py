"""Weights from files and tensors into the bytes of their buffers."""
