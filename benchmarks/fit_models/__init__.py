"""Models of ``python -m benchmarks.fit``, each a file that ``tmmu fit`` takes as it is."""
