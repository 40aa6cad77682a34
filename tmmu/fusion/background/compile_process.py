"""What a background process runs: compiles the kernels of one order, and ends with the process that started it.

Started by ``kernel_order``, which hands the order over by standard input. Of its output only the reason of a failure
leaves it. Libraries appear whole or not at all, so it may be ended anywhere.
"""

import os
import pickle
import signal
import sys
from threading import Thread
from time import sleep
from typing import Final

LOOK_SECONDS: Final = 0.5


def main() -> int:
    """Reads an order, compiles it; the exit status. Argument: the process that it ends with."""
    Thread(target=end_with, args=(int(sys.argv[1]),), daemon=True).start()
    os.nice(19)
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    data, forms, folder, threads = pickle.loads(sys.stdin.buffer.read())
    reason = _compile(data, forms, folder, threads)
    os.write(answer, reason.encode()[:300])
    return 1 if reason else 0


def end_with(parent: int) -> None:
    """Ends this process and all that it started, a compiler too, as soon as ``parent`` has ended, however it did."""
    while os.getppid() == parent:
        sleep(LOOK_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _compile(data: bytes, forms: dict[str, object], folder: str, threads: int) -> str:
    """Why the kernels do not compile; empty where they do."""
    from pathlib import Path

    import torch

    from tmmu.fusion.background.group_bytes import load_groups
    from tmmu.fusion.kernel_library import NoCompiler, load_kernels, load_sequence_operator

    torch.set_num_threads(threads)
    try:
        load_sequence_operator(Path(folder))
        load_kernels(load_groups(data), forms, Path(folder))  # type: ignore[arg-type]
    except NoCompiler as error:
        return str(error) or "no compiler"
    return ""


if __name__ == "__main__":
    sys.exit(main())
