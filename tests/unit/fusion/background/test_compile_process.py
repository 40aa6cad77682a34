"""The process that compiles beside a program: it, and what it started, end with that program."""

import os
import signal
import subprocess
import sys

from tests.waiting import PATIENCE

_CHILD = """
import os, subprocess, sys
from threading import Thread
from tmmu.fusion.background.compile_process import end_with
compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
Thread(target=end_with, args=(int(sys.argv[1]),), daemon=True).start()
os.write(int(sys.argv[2]), b"compiling")
compiler.wait()
"""
_PARENT = """
import os, subprocess, sys, time
pipe = int(sys.argv[1])
subprocess.Popen([sys.executable, "-c", sys.argv[2], str(os.getpid()), str(pipe)], close_fds=False,
                 start_new_session=True)
time.sleep(600)
"""


def test_a_killed_parent_leaves_no_process_and_no_compiler() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(writing), _CHILD], pass_fds=(writing,))
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        assert pipe.read(9) == b"compiling"
        parent.send_signal(signal.SIGKILL)
        parent.wait(PATIENCE)
        assert pipe.read(1) == b"", "each of the three held the other end, and none does"
