"""Models of the caching allocator with storages in them, and its bytes in MiB."""

from tmmu.eager.allocator import CachingAllocator
from tmmu.eager.allocator_config import MIB, AllocatorConfig

KIB = 1 << 10

FIRST = 2 * MIB
"""Where the first segment begins."""


def allocator(*mib: float, capacity: float | None = None, **settings: object) -> CachingAllocator:
    """Storages 0, 1, ... of so many MiB are allocated, in MiB of ``capacity``."""
    config = AllocatorConfig(**settings)  # type: ignore[arg-type]
    model = CachingAllocator(config, capacity=None if capacity is None else int(capacity * MIB))
    for storage, size in enumerate(mib):
        assert model.allocate(storage, int(size * MIB)) is not None
    return model


def free(model: CachingAllocator, *storages: int) -> None:
    for storage in storages:
        model.free(storage)


def mib(model: CachingAllocator) -> tuple[float, float, float]:
    return model.live / MIB, model.allocated / MIB, model.reserved / MIB
