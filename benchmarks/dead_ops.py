"""Which architectures have dead ops: ``python -m benchmarks.dead_ops [--only TEXT]`` from the repository root.

One line each, for inference and for a training step: ops as they were lowered, ops after the pass table, and which
operators went. An architecture that is not listed as changed has the plan that it had before there was such a pass.
"""

import argparse
import tempfile
from collections import Counter

from benchmarks.architectures import ARCHITECTURES, Architecture
from benchmarks.corpus import config_of
from tmmu.errors import TmmuError
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import capture
from tmmu.passes.lowering.eliminate_dead_ops import live_ops
from tmmu.passes.lowering.lower import lower
from tmmu.passes.pipeline import LOWERED, PASSES, run_passes


def measure(architecture: Architecture, mode: str) -> str:
    """The line of one architecture."""
    with tempfile.TemporaryDirectory() as folder:
        config_of(architecture).save_pretrained(folder)
        request = CaptureRequest(
            model=f"hf:{folder}", device="cuda", mode=mode, seq=architecture.seq, dtype=architecture.dtype
        )
        try:
            program = lower(capture(request))
        except TmmuError as error:
            return error.code
    live = set(live_ops(program))
    dead = Counter(target for op, target in enumerate(program.graph.ops.target) if op not in live)
    after = run_passes(program, PASSES, LOWERED)
    gone = ", ".join(f"{count} {target}" for target, count in dead.most_common(4))
    return f"{len(program.calls):6} {len(after.calls):6}  {gone}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="architectures whose name holds this text")
    only = parser.parse_args().only.lower()
    for architecture in ARCHITECTURES:
        if only in architecture.name.lower():
            for mode in ("inference", "backward"):
                print(f"{architecture.name:24} {mode:9} {measure(architecture, mode)}", flush=True)


if __name__ == "__main__":
    main()
