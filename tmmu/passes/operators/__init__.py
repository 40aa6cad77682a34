"""What is known about an operator: one row each, its schema, its arithmetic."""
