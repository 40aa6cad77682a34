"""Weights that stream through a ring: the host's image of them, the loop that moves it, and who calls the loop."""
