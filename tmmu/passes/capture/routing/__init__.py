"""The routing of tokens to experts that a declared capacity stands for: how many tokens an expert gets is data."""
