"""Eager's peak by a trace, by weak references in a real run, and by torch's own MemTracker in another real run.

    python -m benchmarks.mem_tracker [--only TEXT]

Bytes that a step makes and holds at its worst moment, weights and inputs not among them: of models that keep tensors in
the ways in which Python does (``tests/eager/models.py``), inference and training, on a CPU. The last lines count how
often each has the peak of the real run.
"""

import argparse
import gc
import tempfile
from pathlib import Path

import torch
from torch.distributed._tools.mem_tracker import MemTracker

from tests.eager.interceptor import live_bytes
from tests.eager.models import BODIES, model_text
from tests.eager.test_lifetimes import step_of, traced
from tmmu.eager.peak import live_levels


def peak_of_tracker(path: Path, mode: str) -> int | str:
    """The most that MemTracker saw beyond what was there before; an exception's name where it had one."""
    step, net, x = step_of(path, mode)
    tracker = MemTracker()
    gc.collect()
    try:
        tracker.track_external(net, x)
        with tracker:
            kept = step()
    except Exception as error:  # noqa: BLE001 - a peer's failure is a result
        return type(error).__name__
    del kept
    before = sum(p.untyped_storage().nbytes() for p in [*net.parameters(), *net.buffers(), x])
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return int(snapshot["Total"]) - before


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    equal = {"trace": 0, "MemTracker": 0}
    rows = [(name, mode) for name in BODIES for mode in ("inference", "backward") if only in name]
    print(f"{'model':32}{'mode':12}{'real':>10}{'trace':>10}{'MemTracker':>20}")
    for name, mode in rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.py"
            path.write_text(model_text(name))
            step, net, x = step_of(path, mode)
            real = max(live_bytes(step, [*net.parameters(), *net.buffers(), x])[0])
            eager = traced(path, mode)
            trace = max(live_levels(eager.storages, eager.calls))
            tracker = peak_of_tracker(path, mode)
        equal["trace"] += trace == real
        equal["MemTracker"] += tracker == real
        print(f"{name:32}{mode:12}{real:>10}{trace:>10}{tracker!s:>20}")
    for who, count in equal.items():
        print(f"{who}: the peak of the real run in {count} of {len(rows)}")


if __name__ == "__main__":
    main()
