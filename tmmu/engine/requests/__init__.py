"""What sessions wait for, and what runs it."""
