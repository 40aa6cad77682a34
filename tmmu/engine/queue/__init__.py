"""Who waits for a step, on which terms, and who is next."""
