"""How a model is trained for a step, and steps that users wrote."""
