"""Log lines as JSON on standard error; nothing is written before `enable` is called."""

import json
import logging
import sys
from datetime import UTC, datetime

MAX_FIELD = 1_000  # maximum length of a text field, in characters
_LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
}

# Without this, a program that doesn't set up logging would print the library's errors.
logging.getLogger("memories").addHandler(logging.NullHandler())


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: `ts`, `level`, `logger`, `event`, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line of JSON."""
        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": "WARN" if record.levelno == logging.WARNING else record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _redact(value) for name, value in line.items()}, default=str)


def _redact(value: object) -> object:
    """Return a value without secrets; an error may quote a user's text."""
    from memories.guard.redactor import redact

    if isinstance(value, list | tuple):
        return [_redact(element) for element in value]
    if isinstance(value, str):
        return redact(value).text
    return value


class _StandardError(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current standard error, which tests and programs may replace."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def enable(level: str) -> None:
    """Write the library's logs to standard error; a second call only changes the level.

    Args:
        level: The lowest level: `DEBUG`, `INFO`, `WARN` or `ERROR`.
    """
    logger = logging.getLogger("memories")
    logger.setLevel(_LEVELS[level])
    if not any(isinstance(handler, _StandardError) for handler in logger.handlers):
        logger.addHandler(_StandardError())
        logger.propagate = False


def event(logger: logging.Logger, level: int, name: str, **fields: object) -> None:
    """Log an event; long text fields are truncated. Fields must not contain users' texts."""
    shortened: dict[str, object] = {}
    for key, value in fields.items():
        if isinstance(value, str):
            shortened[key] = value[:MAX_FIELD]
        elif value is not None:
            shortened[key] = value
    logger.log(level, name, extra={"fields": shortened})
