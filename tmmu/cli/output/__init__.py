"""Reports of commands as values, and their renderings as text, Markdown and JSON."""
