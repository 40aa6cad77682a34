"""Values of a step that are in host memory between two of their readers: which, when, and what that takes in time."""
