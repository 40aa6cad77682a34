"""What goes out to a client, and is counted."""
