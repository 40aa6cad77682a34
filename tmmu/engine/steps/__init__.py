"""The steps of a model: planned by shape, summed up, sized, bound, and run on the state of sessions."""
