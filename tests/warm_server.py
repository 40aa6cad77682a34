"""A server of processes that have imported torch and tmmu before they start: most of what a command costs is imports.

Each request is a fork of this process, which has imported modules and run nothing: models, caches and settings of one
run are not there for the next. What only a new interpreter has is not to be had: another hash seed, other variables of
Python or OpenMP, a module path of the environment's. Such a request is refused, and tests of these, and of what is
imported when, start Python itself.
"""

import array
import atexit
import gc
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from subprocess import PIPE, Popen
from types import ModuleType
from typing import Any, Final, NoReturn

CLIENT: Final = Path(__file__).with_name("warm_client.py")
TMMU: Final = "from tmmu.cli.main import main; main()"
PYTHON: Final = "python"
SOCKET: Final = "socket"
PACKAGES: Final = (
    "tmmu.cli",
    "tmmu.passes",
    "tmmu.planner",
    "tmmu.runtime",
    "tmmu.summary",
    "tmmu.cache",
    "tmmu.engine",
    "tmmu.server",
)
LATE: Final = ("typer._adapters", "pydantic.json_schema", "pydantic.plugin._loader")
"""Modules that a command imports as it reads its options, a third of what it takes. Some typers have none of them."""
FIXED: Final = ("PYTHONHASHSEED", "PYTHONPATH", "PYTHONIOENCODING", "OMP_NUM_THREADS")
"""Variables that act when Python or torch is loaded: a request must have them as the server was started."""


class WarmPython:
    """A server of one test process, started when a program of it is first taken, and ended by ``close``."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._server: Popen[bytes] | None = None

    def python(self) -> Path:
        """What is started in place of Python."""
        return self._started() / PYTHON

    def tmmu(self) -> Path:
        """What is started in place of the program ``tmmu``; alone in its folder, for a ``PATH``."""
        return self._started() / "bin" / "tmmu"

    def close(self) -> None:
        """End the server, if there is one."""
        if self._server is not None and self._folder is not None:
            self._server.communicate()
            shutil.rmtree(self._folder)

    def _started(self) -> Path:
        if self._folder is None:
            self._folder = folder = Path(tempfile.mkdtemp(prefix="warm-"))
            (folder / "bin").mkdir()
            for program, first in ((PYTHON, []), ("bin/tmmu", ["-P", "-c", TMMU])):
                client = CLIENT.read_text() + f"\n\nmain({str(folder / SOCKET)!r}, {first})\n"
                (folder / program).write_text(f"#!{sys.executable} -IS\n{client}")
                (folder / program).chmod(0o755)
            command = [sys.executable, "-m", "tests.warm_server", str(folder / SOCKET)]
            self._server = Popen(command, cwd=CLIENT.parents[1], stdin=PIPE, stdout=PIPE)
            assert self._server.stdout is not None
            assert self._server.stdout.readline() == b"ready\n"
        return self._folder


def serve(path: str) -> None:
    """Fork one process a request, and answer with its exit code, until stdin ends."""
    _import_all()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    gc.collect()  # and no freeze: a capture counts what is frozen, and freezes itself where nothing is
    os.write(1, b"ready\n")
    running: dict[socket.socket, int] = {}
    while True:
        ready = select.select([sys.stdin, listener, woken, *running], [], [])[0]
        if sys.stdin in ready:
            return
        if woken in ready:
            os.read(woken, 4096)
            _answer(running)
        for connection in running.keys() & set(ready):  # the client is gone
            os.kill(running.pop(connection), signal.SIGKILL)
            connection.close()
        if listener in ready:
            connection, _ = listener.accept()
            request, streams = _read(connection)
            child = os.fork()
            if child == 0:
                _become_child([listener, connection, *running], (woken, wakes))
                _run(streams, **request)
            for stream in streams:
                os.close(stream)
            running[connection] = child


def _import_all() -> None:

    for name in PACKAGES:
        package = import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            import_module(module.name)
    for name in LATE:
        with suppress(ImportError):
            import_module(name)


def _answer(running: dict[socket.socket, int]) -> None:
    """Tell the clients of processes that have ended."""
    clients = {child: connection for connection, child in running.items()}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        connection = clients.pop(child, None)  # none where it was killed
        if connection is not None:
            del running[connection]
            with suppress(BrokenPipeError):
                connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))
            connection.close()


def _become_child(sockets: Sequence[socket.socket], pipe: tuple[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end in sockets:
        end.close()
    for descriptor in pipe:
        os.close(descriptor)


def _read(connection: socket.socket) -> tuple[dict[str, Any], Sequence[int]]:
    """What a client asks for, and its three streams."""
    size, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * 4))
    text = connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
    return json.loads(text), array.array("i", ancillary[0][2])


def _run(streams: Sequence[int], arguments: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Become the process that a client asks for."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    other = [name for name in FIXED if environment.get(name) != os.environ.get(name)]
    if other:
        os.write(2, f"a warm process cannot have its own {' '.join(other)}\n".encode())
        os._exit(70)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.path.remove(str(CLIENT.parents[1]))
    sys.executable = str(Path(sys.argv[1]).with_name(PYTHON))
    raise _Start(arguments)


class _Start(BaseException):
    """Unwinds the server's frames, so that what the process runs is at the bottom of its stack, as in any Python."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments


def _exit_with(run: Callable[[], None]) -> NoReturn:
    """Run to the end, and leave the interpreter as it is: to take it down takes longer than most commands."""
    code = 0
    try:
        run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001 - what Python does with it
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def run_as_python(arguments: list[str]) -> None:
    """Run code, a module or a script as ``__main__``, with Python's arguments."""
    safe = arguments[:1] == ["-P"]
    kind, *rest = arguments[1:] if safe else arguments
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[:0] = [] if safe else [""]
        main = ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif kind == "-m":
        sys.argv = rest
        sys.path[:0] = [] if safe else [str(Path.cwd())]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        sys.path[:0] = [] if safe else [str(Path(kind).resolve().parent)]
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    try:
        serve(sys.argv[1])
    except _Start as start:
        arguments = start.arguments
    else:
        os._exit(0)
    _exit_with(lambda: run_as_python(arguments))
