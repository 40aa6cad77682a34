"""The command line: options in, a summary and files out."""
