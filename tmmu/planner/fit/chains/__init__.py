"""Chains of ops that take items of a batch, or rows, by themselves."""
