"""How full the room of sessions is, what is done about it, and how much of it classes keep."""
