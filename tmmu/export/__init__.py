"""A plan in formats that other tools read (docs/spec/export.md)."""
