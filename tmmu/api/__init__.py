"""The Python interface: plans of models and steps that are there as objects."""
