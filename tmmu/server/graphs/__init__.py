"""Recorded graphs of clients: checked before anything is allocated, run call by call or inside a plan."""
