"""What the user's code raises while a model is traced or run, as one error with a line and a hint."""
