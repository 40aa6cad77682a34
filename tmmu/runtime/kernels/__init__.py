"""Operator calls that write where the plan says: overloads, lowerings, straight-line code."""
