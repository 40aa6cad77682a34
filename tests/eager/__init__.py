"""Lifetimes of the trace beside those of a run on real tensors."""
