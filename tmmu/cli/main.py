"""The console script. Heavy imports come after the handler of KeyboardInterrupt is in place."""

import gc
import os
import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        gc.disable()  # one command, one process: what it makes it keeps to the end
        _prepare_streams()
        from tmmu.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("tmmu: INTERRUPTED: stopped before the end\n")
        code = 130
    if "triton" not in sys.modules:  # whose bindings name on stderr each object that is left at the end
        gc.freeze()  # the interpreter's last collection need not walk a model to leave it to the operating system
    sys.exit(code)


def _prepare_streams() -> None:
    """Open missing standard streams, and let them print any path."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115 - open for as long as the program runs
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
