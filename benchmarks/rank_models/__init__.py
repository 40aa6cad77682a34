"""Sharded models of ``python -m benchmarks.published_ranks``, each a file that ``tmmu plan`` takes as it is."""
