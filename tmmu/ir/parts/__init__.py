"""Parts of tensors and of calls."""
