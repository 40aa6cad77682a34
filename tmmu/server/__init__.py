"""``tmmu serve``: engines behind an HTTP door. It adds no memory code, and no queue but the engine's."""
