"""What a remote device has done, in numbers."""

from collections import Counter
from dataclasses import dataclass, field

from tmmu.client.device.operator_classes import OperatorClass


@dataclass(slots=True)
class DeviceCounts:
    """``requests``: round trips of any kind. ``looks``: values that were asked for, ``cached`` of them known here.

    ``calls`` recorded, by class; ``views`` are none. ``equal``: calls that were not recorded, since an equal one was.
    ``runs`` of graphs, of which ``planned`` inside a plan. ``uploaded``, ``fetched``: bytes of values; ``reused``:
    bytes that were there and did not travel. ``moved``: calls for which a local operand was uploaded;
    ``materialized``: those that ran here, on fetched ones.
    """

    requests: int = 0
    looks: int = 0
    cached: int = 0
    calls: Counter[OperatorClass] = field(default_factory=Counter)
    views: int = 0
    equal: int = 0
    runs: int = 0
    planned: int = 0
    uploaded: int = 0
    fetched: int = 0
    reused: int = 0
    moved: int = 0
    materialized: int = 0
