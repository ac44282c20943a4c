"""Log lines as JSON on standard error; the library itself writes none before `enable` is called."""

import json
import logging
import sys
from datetime import UTC, datetime

MAX_FIELD = 1_000  # characters
_LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
}

# Without this, Python would print the library's errors in a program that set up no logging.
logging.getLogger("memories").addHandler(logging.NullHandler())


class JsonLines(logging.Formatter):
    """One JSON object a line: `ts`, `level`, `logger`, `event`, and what the event knows of
    itself.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        shape = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": "WARN" if record.levelno == logging.WARNING else record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            shape["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _shown(value) for name, value in shape.items()}, default=str)


def _shown(value: object) -> object:
    """Return a value of an event without secrets: an error may quote what somebody wrote."""
    from memories.guard.redactor import redact

    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return redact(value).text if isinstance(value, str) else value


class _Standard(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what standard error is at the time."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def enable(level: str) -> None:
    """Write what the library logs to standard error, from this level on; a second call only changes
    the level.

    Args:
        level: `DEBUG`, `INFO`, `WARN` or `ERROR`.
    """
    logger = logging.getLogger("memories")
    logger.setLevel(_LEVELS[level])
    if not any(isinstance(handler, _Standard) for handler in logger.handlers):
        logger.addHandler(_Standard())
        logger.propagate = False


def event(logger: logging.Logger, level: int, name: str, **fields: object) -> None:
    """Log an event with what is known of it, long values cut; never what anybody said or wrote."""
    known = {
        key: value[:MAX_FIELD] if type(value) is str else value for key, value in fields.items()
    }
    logger.log(
        level,
        name,
        extra={"fields": {key: value for key, value in known.items() if value is not None}},
    )
