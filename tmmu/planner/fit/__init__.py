"""Rewrites of a graph that need less memory; what they mean is for the judge of rewrites to say."""
