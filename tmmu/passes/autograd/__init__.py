"""Graphs of AOTAutograd: forward and backward of a compiled step recorded as one graph in two halves."""
