"""The weight ring's planner: layers of a graph, which of them stay, where the others land, how long a pass takes."""
