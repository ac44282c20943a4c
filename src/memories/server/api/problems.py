"""Turns errors into HTTP responses: problem details (RFC 9457) with the command's messages, and a
status for each kind of error.
"""

import errno
import json
import logging
import traceback
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from memories import errors
from memories.answers.advice import complete_commands
from memories.core.disk import FULL
from memories.errors import InvalidInput
from memories.guard.redactor import redact
from memories.guard.validate import read_json

_logger = logging.getLogger(__name__)
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# The HTTP status and the command's exit code for each error. The first matching class applies.
# Status 500 is only for bugs.
STATUS: tuple[tuple[type[Exception], int, int], ...] = (
    (errors.InvalidInput, 400, 2),
    (errors.ConfigError, 503, 2),
    (errors.NotFound, 404, 1),
    (errors.RequestError, 409, 1),
    (errors.StoreFull, 507, 1),
    (errors.SystemFault, 503, 1),
)
# errors after which a retry may succeed without help from an operator
_TEMPORARY = (errors.StoreBusy, errors.StoreUnreachable, errors.EmbedderError)
TITLES = {
    400: "Bad request",
    401: "Not signed in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Conflict",
    411: "Length required",
    412: "Precondition failed",
    413: "Too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Unprocessable request",
    429: "Too many requests",
    431: "Header too large",
    500: "Internal error",
    503: "Unavailable",
    504: "Timeout",
    507: "Insufficient storage",
}


class Refused(Exception):
    """Raised when a request is refused before it reaches the memory.

    Attributes:
        status: The status of the response.
        headers: Additional headers for the response; see `problem`.
    """

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.headers = status, headers


# Keys in the ASGI scope of a request: a function that removes from a text the folders that the
# sender must not see, and the settings with the request's own namespace and store.
PUBLIC = "memories.public"
SETTINGS = "memories.settings"
_NO_SCOPE: Mapping[str, Any] = {}
_RETRY = {"retry_after": "1"}


def encode_json(value: Any) -> bytes:
    """Return JSON in UTF-8. A lone surrogate, which UTF-8 can't represent, becomes a JSON
    escape.
    """
    return _json(value).encode("utf-8", "backslashreplace")


def decode_json(data: bytes) -> Any:
    """Return the value of a JSON body.

    Raises:
        InvalidInput: The body is not JSON.
    """
    try:
        return read_json(data.decode())
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"the body is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start})"
        ) from None
    except InvalidInput as exc:
        raise InvalidInput(f"the body {exc}") from exc


def json_response(
    shape: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with JSON."""
    return Response(encode_json(shape), status, headers, media_type="application/json")


def problem(
    status: int, detail: str, more: Mapping[str, Any] | None = None, **headers: str
) -> Response:
    """Return an error as a response.

    Args:
        status: The HTTP status.
        detail: The error in one sentence. It is repeated under `error`, where the command has it.
        more: Additional members.
        **headers: Additional headers, with `_` for `-`.
    """
    detail = " ".join(redact(detail).text.split())
    shape = {
        "type": "about:blank",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
    }
    body = encode_json({**shape, "error": detail, **(more or {})})
    header_values = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, header_values, media_type="application/problem+json")


def error_response(exc: Exception, scope: Mapping[str, Any] = _NO_SCOPE) -> Response:
    """Return the response to a request that raised an error. The log says where an unexpected error
    was raised, but never contains content.
    """
    if isinstance(exc, Refused):
        return problem(exc.status, str(exc), None, **exc.headers)
    for kind, status, code in STATUS:
        if isinstance(exc, kind):
            public_kinds = [
                kind for kind in type(exc).__mro__ if kind.__module__ == errors.__name__
            ]
            more: dict[str, Any] = {"kind": public_kinds[0].__name__, "exit_code": code}
            if matches := getattr(exc, "matches", ()):
                more["matches"] = list(matches)
            detail = str(exc)
            if SETTINGS in scope:
                detail = complete_commands(detail, scope[SETTINGS])
            detail = scope.get(PUBLIC, str)(detail)
            # a client that uses the server as its store has an embedder of its own
            is_store_client = scope.get("path", "").startswith("/store/")
            if isinstance(exc, errors.EmbedderMismatch) and not is_store_client:
                detail = f"restart the server if memory reembed ran since it started: {detail}"
            is_temporary = isinstance(exc, _TEMPORARY)
            return problem(status, detail, more, **(_RETRY if is_temporary else {}))
    if isinstance(exc, ClientDisconnect):
        return problem(400, "the client disconnected before its request was complete")
    if isinstance(exc, OSError):
        is_temporary = exc.errno in (errno.EMFILE, errno.ENFILE)
        reason = exc.strerror or type(exc).__name__
        detail = f"the server's operating system reported an error: {reason}"
        _logger.error("%s (%s)", detail, exc.filename)
        status = 507 if exc.errno in FULL else 503
        return problem(status, detail, {"exit_code": 1}, **(_RETRY if is_temporary else {}))
    frames = traceback.extract_tb(exc.__traceback__)[-5:]
    places = [f"{frame.filename}:{frame.lineno}" for frame in reversed(frames)]
    _logger.error("%s at %s", type(exc).__name__, " < ".join(places))
    return problem(
        500, "something went wrong in the server; see the server's log", {"exit_code": 1}
    )


def stopping_response(*, in_doubt: bool) -> Response:
    """Return the response to a request that the server could not complete before it stopped.

    Args:
        in_doubt: Whether the request may have changed something.
    """
    advice = "try again in a second"
    if in_doubt:
        advice = "this may or may not have been done; check before you send it again"
    more = {"kind": "StoreUnreachable", "exit_code": 1}
    return problem(
        503, f"the server is stopping; {advice}", more, retry_after="1", connection="close"
    )
