"""The weight ring's planner: layers out of a graph, which of them stay, where the others land, and how long it takes."""
