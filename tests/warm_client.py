"""The program that a test starts in place of Python: a server with all modules imported runs what it is asked to.

It takes Python's arguments (``-P``, ``-c CODE``, ``-m MODULE`` or a script, and what follows). Its streams, folder and
environment are those of the process that runs; its exit code or signal is that process's. It imports little, since
each run pays for it.
"""

import array
import json
import os
import signal
import socket
import sys


def main(path: str, first: list[str]) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    folder = os.getcwd()  # noqa: PTH109 - pathlib takes longer to import than this program to run
    request = json.dumps(
        {"arguments": first + sys.argv[1:], "folder": folder, "environment": dict(os.environ)}
    ).encode()
    streams = array.array("i", (0, 1, 2))
    connection.sendmsg(
        [len(request).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams.tobytes())]
    )
    connection.sendall(request)
    answer = connection.makefile("rb").read()
    if not answer:
        os._exit(70)
    code = int(answer)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)
