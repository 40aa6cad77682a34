"""Tensors that clients have sent and come back to: in a folder, by the hash of their bytes."""
