"""From a captured program to ``ir.Graph``: one file is one pass."""
