"""Types of ids and units: a position in one column is no position in another.

An id is the position of its row in the columns of the graph that owns it. The types cost nothing at run time; they
say which column an ``int`` indexes where a mix-up would be silent.
"""

from typing import NewType

OpId = NewType("OpId", int)
"""Position in ``Graph.ops``."""

ValueId = NewType("ValueId", int)
"""Position in ``Graph.values``."""

BufferId = NewType("BufferId", int)
"""Position in ``Graph.buffers``."""

Bytes = NewType("Bytes", int)
"""A size or an offset in bytes, where elements would be an ``int`` too."""
