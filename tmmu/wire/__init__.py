"""The wire: typed requests with raw bytes beside them, over one connection (docs/spec/wire.md). No torch."""
