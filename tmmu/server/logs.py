"""The log of a server: one JSON object in each line of stderr. No key, prompt or generated text is ever in it."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

LOGGER: Final = logging.getLogger("tmmu.server")
_FIELDS: Final = "tmmu_fields"


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``event``, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class StderrHandler(logging.Handler):
    """Writes to what stderr is when something is written: who starts a server may send it elsewhere afterwards."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


def log_event(event: str, *, level: int = logging.INFO, failure: BaseException | None = None, **fields: Any) -> None:
    """Writes one line. ``failure``: an exception whose traceback belongs to it."""
    LOGGER.log(level, event, exc_info=failure, extra={_FIELDS: fields})


def set_up_logs(level: str) -> None:
    """Sends this log and uvicorn's warnings to stderr as JSON; other programs' loggers stay as they are."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter())
    for name, lowest in (("tmmu.server", level.upper()), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(lowest)
