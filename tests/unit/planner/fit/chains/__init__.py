"""Chains in parts."""
