"""Shapes of results without values: what an operator would return on a CPU."""
