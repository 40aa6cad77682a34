"""What the user's code reads from outside while it is traced: it is observed, not guessed from what the code says.

A trace that read nothing but objects is decided by them, and so is every later one of the same objects. One that did is
planned, and not kept. What the user's code calls is seen as it is called: every function of Python's own and every
compiled one; files that anything opens are seen by the interpreter's audit events. What a call does not show is looked
for in each function of the user's when it runs for the first time.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

from tmmu.passes.capture.fingerprint.homes import PYTHON, home_of_code, home_of_module
from tmmu.passes.capture.fingerprint.outside import code_outside, compiled_outside, is_pure
from tmmu.passes.capture.fingerprint.scan import NAMED_TUPLE
from tmmu.passes.capture.fingerprint.unseen import unseen
from tmmu.passes.capture.sources import display_name
from tmmu.passes.capture.watched import WATCHES

_LIBRARY, _PURE, _USERS, _OUTSIDE = range(4)
"""Whose code it is: a library's, not looked at; pure, of Python's own; the user's; a library's that looks outside."""
_EVENTS: Final = frozenset({
    *("open", "os.listdir", "os.scandir", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn"),
    *("subprocess.Popen", "socket.__new__", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostname"),
    *("ctypes.dlopen", "ctypes.dlsym", "ctypes.call_function", "mmap.__new__", "sqlite3.connect"),
})  # fmt: skip
"""Audit events of reading from outside, by whatever code."""
_IMPORTING: Final = "<frozen importlib._bootstrap>"
_SOURCES: Final = ("tokenize", "linecache")
_identity: Final = object.__hash__
"""Which object it is; ``id`` would say the same, and have all audit hooks called."""
_active: "list[Watch]" = []
_hooked: list[bool] = []


class Watch:
    """While inside, what this thread's code looks at is watched; ``seen`` says what was seen first, empty if nothing.

    ``told`` is the code that a fingerprint covers, where there is one: other code of the user's may be any code. A
    profile function that is there already is left alone: then nothing can be said, and ``seen`` says that.
    """

    def __init__(self, folder: str, told: Collection[CodeType] | None = None) -> None:
        self.seen = ""
        self._folder = folder
        self._told = None if told is None else {_identity(code) for code in told}
        self._kinds: dict[int, int] = {}
        self._codes: list[CodeType] = []
        self._profile = self._watcher()

    def __enter__(self) -> "Watch":
        if sys.getprofile() is not None:
            self.seen = "a profiler is on, so that nobody could watch"
            return self
        if not _hooked:
            sys.addaudithook(_audited)
            _hooked.append(True)
        _active.append(self)
        WATCHES.append(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self in _active:
            if sys.getprofile() is not self._profile:
                self._see("nobody knows what: the watch was turned off", None)
            _active.remove(self)
            WATCHES.remove(self._profile)
            sys.setprofile(None)

    def _watcher(self) -> Callable[[FrameType, str, Any], None]:
        """The function that is called for each call and return, a million times a step: it looks at little."""
        known, identity, outside, users = self._kinds.get, _identity, _OUTSIDE, _USERS

        def watch(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                kind = known(identity(frame.f_code))
                if kind is None:
                    kind = self._entered(frame)
                if kind == outside and self._is_called_by_user(frame):
                    self._see(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}", frame)
            elif event == "c_call" and known(identity(frame.f_code)) == users:
                said = compiled_outside(argument)
                if said:
                    self._see(said, frame)

        return watch

    def _entered(self, frame: FrameType) -> int:
        """Whose the code is that runs for the first time; of the user's, also what no call will show."""
        code = frame.f_code
        kind = self._kinds[_identity(code)] = _kind_of(frame)
        self._codes.append(code)  # so that no other takes its place
        if kind == _USERS:
            said = self._unseen(code, frame)
            if said:
                self._see(said, frame)
        return kind

    def _unseen(self, code: CodeType, frame: FrameType) -> str:
        if code.co_name == "<module>" and not code.co_filename.startswith("<"):
            return "a module that is imported only now"
        if self._told is not None and _identity(code) not in self._told:
            return f"{code.co_qualname}, to which no object leads"
        try:
            return unseen(code, frame.f_globals)
        except Exception as error:  # noqa: BLE001 - a module may make what it has when asked
            return f"names that cannot be had: {type(error).__name__}"

    def _is_called_by_user(self, frame: FrameType) -> bool:
        """Whether the user's code has called the function, by itself or through pure functions alone."""
        kinds = (self._kinds.get(_identity(one.f_code)) for one in _outwards(frame.f_back))
        return next((kind for kind in kinds if kind != _PURE), _LIBRARY) == _USERS

    def _see(self, what: str, frame: FrameType | None) -> None:
        self.seen = self.seen or f"the model reads {what}{self._place(frame)}"

    def _place(self, frame: FrameType | None) -> str:
        """The line of the user's innermost function."""
        users = (one for one in _outwards(frame) if self._kinds.get(_identity(one.f_code)) == _USERS)
        found = next(users, None)
        return f" at {display_name(found.f_code.co_filename, self._folder)}:{found.f_lineno}" if found else ""

    def audited(self, event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        """Something was read, by whatever code; unless it is code itself."""
        if event == "open" and frame.f_globals.get("__name__") in _SOURCES and str(arguments[0]).endswith(".py"):
            return
        if any(one.f_code.co_filename == _IMPORTING for one in _outwards(frame)):
            return
        what = str(arguments[0]) if event == "open" and isinstance(arguments[0], str) else event
        self._see(what, frame)


def _kind_of(frame: FrameType) -> int:
    home, module = home_of_code(frame.f_code), str(frame.f_globals.get("__name__"))
    if home is None and frame.f_code.co_filename.startswith("<"):  # generated: whose names it reads, its code is
        home = PYTHON if module.startswith(NAMED_TUPLE) else home_of_module(sys.modules.get(module))
    if home is None:
        return _USERS
    if home == PYTHON and (is_pure(module) or module.startswith(NAMED_TUPLE)):
        return _PURE
    return _OUTSIDE if code_outside(module, frame.f_code.co_qualname, home) else _LIBRARY


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if _active and event in _EVENTS:
        _active[-1].audited(event, arguments, sys._getframe(1))
