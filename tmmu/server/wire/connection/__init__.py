"""What one connection of a client is made of, beside its streams."""
