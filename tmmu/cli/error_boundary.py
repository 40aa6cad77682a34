"""The error boundary of the program: every exception becomes one line on stderr, one JSON record and an exit code."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import typer

from tmmu.codec.printable import printable
from tmmu.errors import InternalError, InvalidConfig, TmmuError, error_record

BROKEN_PIPE_EXIT: Final = 141
"""128 + SIGPIPE: what a shell reports for a program whose reader went away."""


class Interrupted(TmmuError):
    """SIGINT."""

    code = "INTERRUPTED"
    exit_code = 130


def run_guarded(step: Callable[[], int], *, as_json: bool) -> int:
    """The exit code of ``step``; a failure is reported in one line, with ``as_json`` also as a record on stdout."""
    try:
        code = step()
        sys.stdout.flush()  # a full disk or a closed pipe must show here, and not when the interpreter exits
    except BrokenPipeError:
        _forget_stdout()
        return BROKEN_PIPE_EXIT
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the edge of the program
        return _report(translate(error), as_json=as_json)
    return code


def translate(error: BaseException) -> TmmuError:
    """The ``TmmuError`` for any exception; prints the traceback if ``TMMU_TRACEBACK`` is set."""
    if os.environ.get("TMMU_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, TmmuError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("stopped before the end")
    if isinstance(error, typer.TyperException):
        return InvalidConfig(error.format_message().rstrip("."), fix="see --help")
    if isinstance(error, OSError):
        return InvalidConfig(_system_fault(error), fix="mend that and run it again")
    message = f"{type(error).__name__}: {_message_of(error)}"
    return InternalError(message, fix="this is a fault of tmmu: set TMMU_TRACEBACK=1 and report what it shows")


def one_line(error: TmmuError) -> str:
    """``tmmu: CODE: what (fix)``, whitespace collapsed and unprintable characters escaped."""
    return "tmmu: " + printable(" ".join(str(error).split()))


def _message_of(error: BaseException) -> str:
    """The message of any exception, also of one whose ``__str__`` raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - a fault in the message must not hide the one that it tells of
        return "its message cannot be made"


def _system_fault(error: OSError) -> str:
    """The operating system's reason, and the file."""
    reason = error.strerror or _message_of(error)
    return f"{error.filename}: {reason}" if error.filename is not None else f"the output cannot be written: {reason}"


def _report(error: TmmuError, *, as_json: bool) -> int:
    try:
        if as_json:
            print_json(error_record(error))
        sys.stdout.flush()
    except OSError:
        _forget_stdout()
    except ValueError:
        pass  # closed by what failed
    with suppress(OSError, ValueError):
        sys.stderr.write(one_line(error) + "\n")
    return error.exit_code


def conclude(error: TmmuError | None) -> int:
    """The exit code of a command that has printed its result; an error adds its line on stderr."""
    if error is None:
        return 0
    sys.stdout.flush()
    sys.stderr.write(one_line(error) + "\n")
    return error.exit_code


def print_json(value: object) -> None:
    """One JSON object on one line of stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=True) + "\n")


def _forget_stdout() -> None:
    """Point stdout at the null device, so that the flush at interpreter exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
