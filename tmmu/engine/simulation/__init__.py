"""Sessions in virtual time: what a policy does to a workload of agents, by the code that swaps for real."""
