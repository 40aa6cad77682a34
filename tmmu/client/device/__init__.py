"""``device="remote"``: tensors whose bytes lie on a server, recorded here and run there."""
