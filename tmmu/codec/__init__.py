"""Files: graphs and plans read from bytes that may be hostile, written by atomic rename, printed as text."""
