"""The block in which a workload runs and everything that it does is recorded."""

from collections.abc import Iterator
from contextlib import contextmanager

from tmmu.kernel_switches import switches_restored
from tmmu.passes.capture.collection import collections_of_new_objects, garbage_collection_off
from tmmu.passes.capture.fake.scaler import ScaledSteps, updates_without_overflow
from tmmu.passes.capture.ranks.messages import messages_awaited
from tmmu.passes.capture.ranks.pipelines import stages_agreed, weight_gradients_in_order
from tmmu.passes.capture.ranks.rings import rings_noted
from tmmu.passes.capture.ranks.sharding import equal_shards_once, shapes_unrecorded
from tmmu.passes.capture.record.recorder import Recorder
from tmmu.passes.capture.record.unknown_numbers import unknown_items
from tmmu.passes.capture.workload import Workload


@contextmanager
def recording(recorder: Recorder, workload: Workload, device: str) -> Iterator[ScaledSteps]:
    """Block that the recorder records; yields the count of updates behind a scaler."""
    with (
        garbage_collection_off(),
        collections_of_new_objects(),
        switches_restored(device),
        workload.modules.track_calls(),
        recorder,
        recorder.unseen.watch_threads(),
        recorder.randomness.intercept(),
        recorder.storage_changes.intercept(),
        recorder.layouts.watch_reads(recorder.source),
        unknown_items(),
        shapes_unrecorded(recorder.pause),
        equal_shards_once(),
        messages_awaited(),
        stages_agreed(recorder.layouts, recorder.source),
        weight_gradients_in_order(),
        rings_noted(recorder.layouts, recorder.source),
        updates_without_overflow() as scaled,
    ):
        yield scaled
