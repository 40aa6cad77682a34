"""Golden files: recorded digests and plans of fixed graphs, compared byte for byte with what the planner makes now."""
