"""What a session must be for what is asked of it."""

from typing import TYPE_CHECKING

from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, SessionUnknown

if TYPE_CHECKING:
    from tmmu.engine.engine import Engine


def require_own(engine: "Engine", session: Session) -> None:
    """``SESSION_UNKNOWN`` for what is no session of this engine, open or not."""
    if not isinstance(session, Session):
        raise SessionUnknown(f"a {type(session).__name__} is no session", fix="give what Engine.open returned")
    if session.engine is not engine:
        raise SessionUnknown("the session is of another engine", fix="use the engine that opened it")


def require_session(engine: "Engine", session: Session) -> None:
    """``SESSION_UNKNOWN`` beside that for a session that is closed, or of which a step failed half way."""
    require_own(engine, session)
    session.require_open()
    if session.is_broken:
        raise SessionUnknown("a step of the session failed half way", fix="close it, and open another one")


def require_no_pause(session: Session) -> None:
    """``INVALID_CONFIG`` for a session whose step is paused."""
    if session.paused is not None:
        raise InvalidConfig(
            f"the session is paused behind {session.paused.module}", fix="resume that step, or cancel it"
        )


def require_room(session: Session, tokens: int, longest: int) -> None:
    """``INVALID_CONFIG`` for more tokens than fit. ``longest``: positions that the model has; 0: no limit."""
    end = session.length + tokens
    if end > session.capacity:
        has_no_positions = 0 < longest < end
        raise InvalidConfig(
            f"{tokens} tokens behind {session.length} do not fit in a session of {session.capacity}",
            fix=f"the model has positions for at most {longest}"
            if has_no_positions
            else f"open it with max_tokens={end} or more",
            tokens=tokens,
            length=session.length,
            capacity=session.capacity,
        )
