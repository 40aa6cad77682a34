"""A real run as torch's allocator sees it: each call of eager, and the bytes that it makes and drops."""
