"""Proves that a rewritten graph means the graph that it came from. Knows nothing of who rewrote it."""
