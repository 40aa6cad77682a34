"""Tools for whoever works on the tree."""
