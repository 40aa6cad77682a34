"""Clients of a server over the wire: ghosts of its models, sessions from afar, references to what lies there."""
