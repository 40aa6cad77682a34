"""Eager: what a model holds when it is run as it is, and what torch's allocator reserves for it."""
