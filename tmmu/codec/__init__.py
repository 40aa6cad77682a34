"""Files: graphs and plans read back as hostile bytes, written whole by atomic rename, printed as text."""
