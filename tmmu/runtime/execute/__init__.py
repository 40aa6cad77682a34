"""A plan bound to memory and run: executors, and step memory for forward and backward."""
