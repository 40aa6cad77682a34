"""Weights that stream through a ring: the host's image of them, the loop that moves it, and who calls the loop.

``stream_module`` is for a plain module; ``tmmu.runtime.ring.executor.bind_ring`` for a plan.
"""

from tmmu.runtime.ring.modules import StreamedModule, StreamOptions, stream_module

__all__ = ["StreamOptions", "StreamedModule", "stream_module"]
