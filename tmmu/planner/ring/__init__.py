"""The planner of the weight ring: residency, device addresses and copy schedule for weights that do not fit."""
