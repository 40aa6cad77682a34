"""Errors: one class per cause, in three families by who must act (docs/spec/errors.md).

``UserError`` is the caller's to fix (exit 2), ``PlanError`` says that a plan is wrong or does not fit
(exit 3), ``InternalError`` is ours (exit 70). Each class has a lasting ``code``; each instance has the
fields that explain it, a message that says what and where, and a ``fix`` that says what to do.
"""

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

Field: TypeAlias = "int | str | bool | list[Field] | dict[str, Field] | None"


class TmmuError(Exception):
    """An error with a lasting ``code``, ``what`` happened, the ``fields`` that explain it, and the ``fix``."""

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, fix: str = "", **fields: Field) -> None:
        super().__init__(message)
        self.what = message
        self.fix = fix
        self.fields: Mapping[str, Field] = fields

    def __str__(self) -> str:
        return f"{self.code}: {self.what}" + (f" ({self.fix})" if self.fix else "")


class UserError(TmmuError):
    """The caller can fix it: a model, an option, an input file."""

    exit_code = 2


class PlanError(TmmuError):
    """A plan is wrong, or what it asks for does not fit."""

    exit_code = 3


class InternalError(TmmuError):
    """A promise of ours is broken; please report it."""

    code = "INTERNAL"
    exit_code = 70


class InvalidIrShapes(UserError):
    """The graph is malformed: a window leaves its buffer, an id dangles, a role is unknown."""

    code = "INVALID_IR_SHAPES"


class LivenessCycle(UserError):
    """No order runs every op after what it needs."""

    code = "LIVENESS_CYCLE"


class AllocationOverflow(UserError):
    """A size or offset does not fit in 64 unsigned bits."""

    code = "ALLOCATION_OVERFLOW"


class AlignmentViolation(UserError):
    """An alignment is not a power of two, or an offset does not obey it."""

    code = "ALIGNMENT_VIOLATION"


class InvalidToken(UserError):
    """The replay token is too short or not what it claims to be."""

    code = "INVALID_TOKEN"


class InvalidConfig(UserError):
    """An option, arena entry or file name makes no sense."""

    code = "INVALID_CONFIG"


class CaptureFailed(UserError):
    """The model could not be traced; ``where`` is the user's own file and line."""

    code = "CAPTURE_FAILED"


class UnsupportedOp(UserError):
    """The model uses an operator that the compiler does not model."""

    code = "UNSUPPORTED_OP"


class CapacityUndeclared(UserError):
    """How many tokens each expert gets decides the step, and no capacity is declared for a plan to go by."""

    code = "CAPACITY_UNDECLARED"


class RoutingAssumed(UserError):
    """The program holds for one routing of tokens to experts alone: it is planned, and does not run."""

    code = "ROUTING_ASSUMED"


class SessionUnknown(UserError):
    """No session of that name is open."""

    code = "SESSION_UNKNOWN"


class DeviceMissing(UserError):
    """The device that was asked for is not there, or torch was built without it."""

    code = "DEVICE_MISSING"


class PortTaken(UserError):
    """Another program listens where a server was told to."""

    code = "PORT_TAKEN"


class InvalidRequest(UserError):
    """What a client sent to a server is malformed, or asks for what it does not do."""

    code = "INVALID_REQUEST"


class PromptTooLong(UserError):
    """A prompt and what is to follow it have no room in the longest session of a model."""

    code = "PROMPT_TOO_LONG"


class RequestTooLarge(UserError):
    """A request is larger than a server reads."""

    code = "REQUEST_TOO_LARGE"


class RequestTimeout(UserError):
    """A client did not send its request in time."""

    code = "REQUEST_TIMEOUT"


class KeyRefused(UserError):
    """A request has no key, or one that the server does not know."""

    code = "KEY_REFUSED"


class ModelUnknown(UserError):
    """A server has no model of that name."""

    code = "MODEL_UNKNOWN"


class ReferenceStale(UserError):
    """What a remote reference named is no longer there: its session went on, or it was freed."""

    code = "REFERENCE_STALE"


class DeviceTaken(UserError):
    """The one device type that a process may add to torch belongs to somebody else, or is in use already."""

    code = "DEVICE_TAKEN"


class AddressCollision(PlanError):
    """Two slots of one plan have the same virtual address."""

    code = "ADDRESS_COLLISION"


class ArenaTooSmall(PlanError):
    """An arena's capacity is below what the plan needs."""

    code = "ARENA_TOO_SMALL"


class BudgetTooSmall(PlanError):
    """No form of a step that is known has a plan within a budget."""

    code = "BUDGET_TOO_SMALL"


class PlanCorrupt(PlanError):
    """A file is not a canonical, complete file of its format."""

    code = "PLAN_CORRUPT"


class PlanMismatch(PlanError):
    """A plan belongs to another graph, token or program."""

    code = "PLAN_MISMATCH"


class PlanUnsound(PlanError):
    """The judge found faults in a plan."""

    code = "PLAN_UNSOUND"


class RewriteUnsound(PlanError):
    """A rewritten graph does not mean the graph that it came from."""

    code = "REWRITE_UNSOUND"


class GoldenMismatch(PlanError):
    """What the planner says is not what golden files recorded, or the files are not as they were written."""

    code = "GOLDEN_MISMATCH"


class PeakOverLimit(PlanError):
    """A plan needs more than the one it is compared with, by more than was allowed."""

    code = "PEAK_OVER_LIMIT"


class SegmentFull(PlanError):
    """A runtime segment has no room left."""

    code = "SEGMENT_FULL"


class DeviceMemory(PlanError):
    """The device has less memory than the segments need."""

    code = "DEVICE_MEMORY"


class ServerBusy(PlanError):
    """A server has as many requests as it takes, or is about to start or to end."""

    code = "SERVER_BUSY"


class DeadlineExceeded(PlanError):
    """A request was not done by its deadline, or had no answer by then."""

    code = "DEADLINE_EXCEEDED"


class QuotaExceeded(PlanError):
    """A client has had all that its key may have for now."""

    code = "QUOTA_EXCEEDED"


class ServerGone(PlanError):
    """A server is not there, or no longer: nobody listens, or the connection broke."""

    code = "SERVER_GONE"


class WireBroken(PlanError):
    """What came over a connection is none of the wire's frames, of another version, or not as it was sent."""

    code = "WIRE_BROKEN"


class HostUnfit(PlanError):
    """A machine is not as a server wants it, and whoever looked said ``--strict``."""

    code = "HOST_UNFIT"


def error_record(error: TmmuError) -> dict[str, Field]:
    """The canonical error record (``UML_OS.Error.Emit_v1``): same fields, same order, every time."""
    fields = {name: error.fields[name] for name in sorted(error.fields)}
    return {"code": error.code, "exit": error.exit_code, "what": error.what, "fix": error.fix, "fields": fields}
