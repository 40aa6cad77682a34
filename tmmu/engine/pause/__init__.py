"""Steps that pause behind a module of the model, for somebody to look at values and replace them."""
