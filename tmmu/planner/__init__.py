"""The planner: order, liveness, slots, addresses and offsets, from a graph to a plan."""
