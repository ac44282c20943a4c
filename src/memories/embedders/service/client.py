"""Requests vectors from a service, retries if that may help, and interprets the responses."""

import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

from memories.core.http import (
    Address,
    Failed,
    JsonClient,
    NoAnswer,
    Retry,
    ServerResponse,
    TimedOut,
    Unusable,
)
from memories.embedders.protocol import EmbedderUnavailable
from memories.embedders.service.providers import Patience, Service
from memories.errors import EmbedderError
from memories.guard.validate import shown

MAX_ANSWER_BYTES = 64 * 1_048_576
MAX_TRIES = 8
MAX_REFUSED_TRIES = 3  # maximum number of attempts if no server listens at the address

Value = TypeVar("Value")


class ServiceClient:
    """Sends requests to one service; threads and forked processes may share it. Nothing is opened
    before the first request.
    """

    def __init__(self, service: Service, retry: Retry | None = None) -> None:
        """Initialize a client.

        Args:
            service: The service.
            retry: How failed requests are retried.
        """
        self.service = service
        self._retry = retry or Retry()
        self._key = service.key.reveal() if service.key else ""
        url = urlsplit(service.url)
        self._path = f"{url.path}?{url.query}" if url.query else url.path
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        port = url.port or (443 if url.scheme == "https" else 80)
        address = Address(
            service.title, url.hostname or "", port, url.scheme == "https", headers, proxies=True
        )
        self._client = JsonClient(address, max_bytes=MAX_ANSWER_BYTES)

    def post(
        self, body: Mapping[str, Any], patience: Patience, read: Callable[[Any], Value]
    ) -> Value:
        """Post a request, and return the values in the response.

        Args:
            body: The request.
            patience: How long to wait; `total` bounds the whole call.
            read: Extracts the values from the response; raises LookupError, TypeError or ValueError
                if they are missing.

        Raises:
            EmbedderUnavailable: The service can't be used at present.
            EmbedderError: The service refused the request, or its response contains no vectors.
        """
        try:
            answer = self._retry.run(
                lambda seconds: self._try(body, seconds),
                patience.request,
                patience.total,
                tries=patience.tries,
            )
        except Failed as exc:
            raise EmbedderUnavailable(
                str(exc), after_seconds=exc.after_seconds, quoted=exc.quoted
            ) from exc
        try:
            return read(answer.value)
        except (LookupError, TypeError, ValueError):
            kind = answer.headers.get("content-type", "").partition(";")[0] or "something"
            message = self._message(answer)
            because = f" ({message})" if message else ""
            raise EmbedderError(
                f"{self.service.shown} answered with {shown(kind)} that contains no vectors"
                f"{because}; check EMBEDDER_URL"
            ) from None

    def _try(self, body: Mapping[str, Any], seconds: float) -> ServerResponse:
        name = self.service.shown
        try:
            answer = self._client.ask("POST", self._path, body, seconds=seconds, whole=True)
        except Unusable as exc:
            raise EmbedderError(f"{name} {exc}") from exc
        except TimedOut as exc:
            raise Failed(f"{name} {exc}", tries=MAX_TRIES) from exc
        except NoAnswer as exc:
            is_unreachable = isinstance(exc.__cause__, ConnectionRefusedError | socket.gaierror)
            tries = MAX_REFUSED_TRIES if is_unreachable else MAX_TRIES
            raise Failed(
                f"{name} can't be reached: {self._client.address.quoted(str(exc))}", tries=tries
            ) from exc
        if answer.status != HTTPStatus.OK:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: ServerResponse) -> Failed | EmbedderError:
        """Return the error for a response without vectors: `Failed` if the service may work
        later, else an `EmbedderError`.
        """
        name, status, message = self.service.shown, answer.status, self._message(answer)
        quoted = f": {message}" if message else ""
        because = f" ({status}){quoted}"
        if status in (401, 403):
            what = "refused the key" if self._key else "requires a key"
            return Failed(f"{name} {what}{because}; set {self.service.key_from}", quoted=quoted)
        if status == 404:
            model = self.service.model
            return EmbedderError(
                f"{name} doesn't know the requested path or the model {model}{because}; check "
                "EMBEDDER and EMBEDDER_URL"
            )
        if status == 429 and "insufficient_quota" in str(answer.value):
            return Failed(
                f"{name} reports that the account has no credit left{because}", quoted=quoted
            )
        if status in (408, 425, 429) or status >= 500:
            what = "limits the rate of requests" if status == 429 else "has a problem"
            return Failed(
                f"{name} {what}{because}",
                tries=MAX_TRIES,
                after_seconds=answer.retry_after,
                quoted=quoted,
            )
        if 300 <= status < 400:
            to = shown(answer.headers.get("location", "elsewhere"))
            return EmbedderError(
                f"{name} redirects to {to}, but a key is never forwarded; set EMBEDDER_URL to the "
                "right address"
            )
        return EmbedderError(f"{name} refused the request{because}")

    def _message(self, answer: ServerResponse) -> str:
        """Return the error message in a response, shortened to one line."""
        shape = answer.value
        if not isinstance(shape, dict):
            return ""
        message = next(
            (shape[name] for name in ("error", "message", "detail") if shape.get(name)), ""
        )
        if isinstance(message, dict):
            message = message.get("message", "")
        return self._client.address.quoted(message) if isinstance(message, str) else ""
