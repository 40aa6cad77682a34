"""Golden traces: what plans of fixed graphs have said since they were recorded, byte for byte."""
