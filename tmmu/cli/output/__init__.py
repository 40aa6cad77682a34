"""What commands say: reports as values, and their renderings as text, Markdown and JSON."""
