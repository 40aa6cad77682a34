"""Sizes: the largest batch or sequence whose step fits, from few traces."""
