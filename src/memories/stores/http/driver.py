"""Client of a server's store: requests, tokens and errors."""

import json
import os
import time
from typing import Any
from urllib.parse import urlsplit

from memories import errors
from memories.core.http import Address, Answer, JsonClient, NoAnswer
from memories.core.urls import is_loopback
from memories.errors import ConfigError, StoreError, StoreUnreachable
from memories.settings import Config

MAX_ANSWER_BYTES = 268_435_456
SECONDS = 120.0
_TRIES = 8
_UNSURE = "what was written may be stored or not: read it before you write it again"
_WRITES = ("append", "patch", "remove", "stage", "switch", "repair", "commit")


class Driver:
    """Asks one server; many threads and forked processes may share it."""

    def __init__(self, url: str, config: Config | None) -> None:
        """Prepare; nothing is connected yet.

        Raises:
            ConfigError: The URL is not acceptable, or there is no token.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ConfigError(
                "the port in the URL of the store is not a number from 1 to 65535"
            ) from None
        if not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(
                "the URL of a server is http://host:port or https://host, and nothing behind it"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError("no token belongs into the URL of a store; put it into MEMORY_TOKEN")
        plain = config is not None and config.plain_http
        if parts.scheme == "http" and not is_loopback(parts.hostname) and not plain:
            raise ConfigError(
                f"memories and the token would cross the network to {parts.hostname} unencrypted; use https://, or set "
                "MEMORY_PLAIN_HTTP=true if the network is your own"
            )
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._path = f"{parts.path.rstrip('/')}/store/v1/"
        headers = {"Authorization": f"Bearer {_token(config, parts.hostname)}"}
        hint = "see whether memory serve runs there"
        address = Address(
            "the memory server",
            parts.hostname,
            port,
            parts.scheme == "https",
            headers,
            hint,
            proxies=True,
        )
        self._client = JsonClient(address, max_bytes=MAX_ANSWER_BYTES)

    def ask(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call a method of the store; return its answer.

        Raises:
            MemoriesError: As the store raised it, or `StoreUnreachable`.
        """
        address = self._client.address
        body |= {"call": os.urandom(12).hex()}
        for tries in range(1, _TRIES + 1):
            try:
                answer = self._client.ask("POST", self._path + method, body, seconds=SECONDS)
            except NoAnswer as exc:
                unsure = f"; {_UNSURE}" if exc.sent and method in _WRITES else f"; {address.hint}"
                raise StoreUnreachable(f"{address} {address.quoted(str(exc))}{unsure}") from exc
            if answer.status != 429 or tries == _TRIES:
                break
            time.sleep(min(5.0, max(0.1, answer.retry_after)))
        if answer.status == 200 and isinstance(answer.value, dict):
            return answer.value
        raise self._refusal(answer, method)

    def _refusal(self, answer: Answer, method: str) -> Exception:
        address = self._client.address
        value = answer.value if isinstance(answer.value, dict) else {}
        said = value.get("detail") or (
            answer.value if isinstance(answer.value, str) else json.dumps(answer.value)
        )
        kind = getattr(errors, str(value.get("kind")), None)
        if (
            isinstance(kind, type)
            and issubclass(kind, errors.MemoriesError)
            and kind is not errors.AmbiguousId
        ):
            return kind(str(said))
        because = address.quoted(str(said)) or "no reason given"
        if answer.status in (401, 403):
            return ConfigError(f"{address} refused the token: {because}")
        if answer.status in (408, 429, 502, 503, 504):
            unsure = (
                f"; {_UNSURE}"
                if method in _WRITES and answer.status in (408, 502, 504)
                else "; try again later"
            )
            return StoreUnreachable(
                f"{address} is not ready (status {answer.status}): {because}{unsure}"
            )
        return StoreError(f"{address} refused with status {answer.status}: {because}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _token(config: Config | None, host: str) -> str:
    """Return the token to show: the one of the settings, or on this machine that of the server's
    own user.

    Raises:
        ConfigError: There is none.
    """
    from memories.core.trust import read_secret

    if config is not None and config.token is not None:
        return config.token.reveal()
    if config is not None and config.token_file is not None:
        return read_secret(config.token_file)
    own = None if config is None else config.home / "server.token"
    if own is not None and is_loopback(host) and own.exists():
        return read_secret(own)
    raise ConfigError(
        "the server wants a token; set MEMORY_TOKEN, or MEMORY_TOKEN_FILE to a file of your own"
    )
