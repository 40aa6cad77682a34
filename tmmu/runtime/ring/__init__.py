"""Weights that stream through a ring: the host image, the loop that issues copies, and its two callers.

``stream_module`` streams a plain module; ``tmmu.runtime.ring.executor.bind_ring`` a plan.
"""

from tmmu.runtime.ring.modules import StreamedModule, StreamOptions, stream_module

__all__ = ["StreamOptions", "StreamedModule", "stream_module"]
