"""Proves that a plan is sound for its graph, by executing it abstractly. Knows nothing of who made the plan."""
