"""Offset packing (dynamic storage allocation): pure functions from a problem to a placement."""
