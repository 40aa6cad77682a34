"""Whatever the user's code raises, as one ``CaptureFailed`` with the model's line and a hint that fits the cause."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tmmu.errors import CaptureFailed, TmmuError, UnsupportedOp
from tmmu.passes.capture.activities import Activity, activity_of
from tmmu.passes.capture.failures.causes import advice_for
from tmmu.passes.capture.failures.failure import Failure, frames_of
from tmmu.passes.capture.failures.parallelism import refusal_of_count, refusal_of_parallelism
from tmmu.passes.capture.routing.routing import Routing
from tmmu.passes.capture.sources import display_name, failing_source, optimizer_source

_NESTED: Final = re.compile(r"no rule registered for HOP|HigherOrderOperator")
"""What torch says when a mode meets cond, while_loop or another operator that takes graphs."""
_NATIVE_FRAMES: Final = re.compile(r"\s*\(?Exception raised from \S+ at .*", re.DOTALL)
"""Where in torch's C++ an error was raised, which some of its messages end with."""
_SCRIPT_FRAMES: Final = re.compile(
    r'^The following operation failed in the (?P<kind>TorchScript) interpreter.*File "(?:[^"]*/)?(?P<file>[^"/]+)", '
    r"line (?P<line>\d+),.*<--- HERE\s*",
    re.DOTALL,
)
"""How a scripted module tells its own frames, above the reason."""
_STAGE_FAILURE: Final = re.compile(r"\s*\[Stage \d+\] failed to run forward:")
"""How torch begins what it says of the forward pass of a stage."""
_MESSAGE_MAX: Final = 300


@contextmanager
def translate_errors(
    folder: str, activity: Activity = Activity.FORWARD, *, routing: Routing | None = None
) -> Iterator[None]:
    """Block in which whatever the user's code raises becomes one error; of ``activity``, if no block inside named it.

    Source lines are relative to ``folder``. ``routing`` knows whether a failure is one of a look at a gate.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, another one is raised of it
        reason = _reason_of(error)
        if isinstance(reason, TmmuError):
            refusal = refusal_of_parallelism(_failure_of(reason, folder, activity))
            if refusal is not None:
                raise refusal from reason
            _locate(reason, folder)
            raise reason  # noqa: B904 - it is the error itself, or what torch has put another one around
        if isinstance(reason, SyntaxError):
            location = _location_of(reason, folder)
            what = f"{location}: {reason.msg}" if location else str(reason.msg)
            raise CaptureFailed(what, fix="correct the file", where=location) from reason
        raise _translation(reason, folder, activity, routing) from reason


def _reason_of(error: BaseException) -> BaseException:
    """The error itself; of one by which torch tells what a stage of a pipeline was called with, its cause."""
    cause = error.__cause__
    return error if cause is None or _STAGE_FAILURE.match(_text_of(error)) is None else cause


def _translation(error: BaseException, folder: str, activity: Activity, routing: Routing | None) -> TmmuError:
    failure = _failure_of(error, folder, activity)
    message = failure.message
    if _NESTED.search(message):
        return UnsupportedOp("nested control flow is not modelled yet", fix="plan the branches apart")
    refusal = refusal_of_parallelism(failure) or (refusal_of_count(failure, routing) if routing else None)
    if refusal is not None:
        return refusal
    where = failure.source
    if not where and failure.activity is Activity.OPTIMIZER:
        where = optimizer_source(error.__traceback__)
    what = f"{failure.kind}: {message}" if message else failure.kind
    return CaptureFailed(f"{where + ': ' if where else ''}{what}", fix=advice_for(failure), where=where)


def _failure_of(error: BaseException, folder: str, activity: Activity) -> Failure:
    return Failure(
        error=error,
        activity=activity_of(error, activity),
        source=failing_source(error.__traceback__, folder),
        message=_message_of(error),
        frames=frames_of(error),
    )


def _locate(error: TmmuError, folder: str) -> None:
    """Put the user's line before what happened, where there is one and the error does not name it."""
    location = failing_source(error.__traceback__, folder)
    if location and "where" not in error.fields:
        error.what, error.fields = f"{location}: {error.what}", {**error.fields, "where": location}


def _location_of(error: SyntaxError, folder: str) -> str:
    """The file that Python cannot read and the line in it, or the line that gave Python a text which is in no file."""
    if not error.filename or error.filename.startswith("<"):
        return failing_source(error.__traceback__, folder)
    name = display_name(error.filename, folder)
    return f"{name}:{error.lineno}" if error.lineno else name


def _message_of(error: BaseException) -> str:
    """One line of at most 300 characters; of a group, its first exception follows."""
    text = _SCRIPT_FRAMES.sub(r"\g<kind>, \g<file>:\g<line>: ", _NATIVE_FRAMES.sub("", _text_of(error)))
    message = " ".join(text.split())[:_MESSAGE_MAX]
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return message if first is error else f"{message}: {type(first).__name__}: {_message_of(first)}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - a user's exception may do anything
        return "its message cannot be printed"
