"""Shadows: local modules that are uploaded in the background, and run on the server once they are there."""
