"""Columns as canonical CBOR: written in one way, scanned before anything is decoded, read back complete."""
