"""The client for a memory server's store: each method sends an HTTP request to the server."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from memories import errors
from memories.core.batches import by_weight
from memories.core.http import Address, JsonClient, NoAnswer, ServerResponse, TimedOut, Unusable
from memories.core.urls import is_loopback
from memories.errors import ConfigError, InvalidInput, MemoriesError, StoreError, StoreUnreachable
from memories.settings import Config
from memories.stores.damage import Damaged
from memories.stores.protocol import Store
from memories.stores.records import Filter, Record, Ref, Space, StoreInfo
from memories.stores.wire import KINDS, from_wire, to_wire

# Maximum size of the texts and vectors in one request; a larger write is split into several
# requests in one transaction.
BATCH_BYTES = 16_777_216
MAX_ANSWER_BYTES = 268_435_456
SECONDS = 120.0
_TRIES = 8  # maximum number of attempts while the server is overloaded
_UNSURE = "the write may or may not be stored; check before you write it again"
_WRITES = ("append", "patch", "remove", "stage", "switch", "repair", "commit")


def _remote(method: str) -> Any:
    """Return a method that calls the method with this name in the server's store."""

    def call(store: "HttpStore", *arguments: Any, **named: Any) -> Any:
        return store._ask(method, *arguments, **named)

    return call


def _as_list(argument: Any) -> Any:
    """Return a list if the argument is a sequence; otherwise return the argument unchanged."""
    is_sequence = isinstance(argument, Iterable) and not isinstance(argument, str | Mapping)
    if is_sequence and type(argument).__name__ not in KINDS and not hasattr(argument, "dtype"):
        return list(argument)
    return argument


class HttpStore(Store):
    """Implements `Store` on a memory server.

    Each thread can keep a transaction open on the server. The server undoes it after ten seconds
    without a request, for example if this process dies.
    """

    def __init__(self, url: str, space: Space | None, config: Config | None = None) -> None:
        """Initialize; the first request opens the connection.

        Args:
            url: `http://host:port` or `https://host`.
            space: The space of the vectors to write and search; None in keyword-only mode.
            config: The settings, with the token.

        Raises:
            ConfigError: The URL is invalid, or the token is missing.
        """
        parts = urlsplit(url)
        address = _parse_address(parts, config)
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._path = f"{parts.path.rstrip('/')}/store/v1/"
        self._client = JsonClient(address, max_bytes=MAX_ANSWER_BYTES)
        self._space = to_wire(space)
        self._local = threading.local()
        self.damaged = Damaged()

    @property
    def _transaction(self) -> Any:
        return getattr(self._local, "transaction", None)

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the server's store and return its result.

        Raises:
            MemoriesError: The error of the server's store, or `StoreUnreachable`.
        """
        body: dict[str, Any] = {
            "call": os.urandom(12).hex(),  # the server carries out a repeated request only once
            "space": self._space,
            "arguments": to_wire([_as_list(argument) for argument in arguments]),
            "named": to_wire({name: _as_list(argument) for name, argument in named.items()}),
        }
        if self._transaction is not None:
            body["transaction"] = self._transaction
        answer = self._send(method, body)
        if answer.status != 200:
            raise self._refusal(answer, method)
        try:
            for finding in from_wire(answer.value.get("damaged", [])):
                self.damaged.note(finding)
            return from_wire(answer.value["value"])
        except (AttributeError, InvalidInput, LookupError, TypeError) as exc:
            raise StoreError(
                f"{self._client.address} sent a response that this version does not understand; "
                "check the URL of the store, and update the older of the two programs"
            ) from exc

    def _send(self, method: str, body: dict[str, Any]) -> ServerResponse:
        address = self._client.address
        for count in range(1, _TRIES + 1):
            try:
                answer = self._client.ask("POST", self._path + method, body, seconds=SECONDS)
            except NoAnswer as exc:
                is_in_doubt = (exc.sent or exc.sent_before) and method in _WRITES
                advice = _UNSURE if is_in_doubt else address.hint
                reason = address.quoted(str(exc))
                if not isinstance(exc, TimedOut | Unusable):
                    reason = f"does not answer: {reason}"
                raise StoreUnreachable(f"{address} {reason}; {advice}") from exc
            if answer.status != 429 or count == _TRIES:
                break
            time.sleep(min(5.0, max(0.1, answer.retry_after)))
        return answer

    def _refusal(self, answer: ServerResponse, method: str) -> Exception:
        address = self._client.address
        if answer.sent_before and method in _WRITES:  # the first request may have been carried out
            return StoreUnreachable(f"the connection to {address} was lost; {_UNSURE}")
        value = answer.value
        detail = value if isinstance(value, str) else json.dumps(value)
        if isinstance(value, dict):
            detail = value.get("detail") or detail
        error = _find_error(value)
        if error is not None:
            return error(str(detail))
        reason = address.quoted(str(detail)) or "no reason given"
        if answer.status in (401, 403):
            return ConfigError(f"{address} refused the token: {reason}")
        if answer.status in (408, 429, 502, 503, 504):
            may_be_done = method in _WRITES and answer.status in (408, 502, 504)
            advice = _UNSURE if may_be_done else "try again later"
            return StoreUnreachable(
                f"{address} is not ready (status {answer.status}): {reason}; {advice}"
            )
        return StoreError(f"{address} refused the request with status {answer.status}: {reason}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See `Store.transaction`."""
        if self._transaction is not None:
            self._ask("enter")
            with self._end_with("leave", "undo"):
                yield
            return
        self._local.transaction = self._ask("begin")
        try:
            with self._end_with("commit", "rollback"):
                yield
        finally:
            self._local.transaction = None

    @contextlib.contextmanager
    def _end_with(self, step: str, step_after_error: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # If this fails, the server undoes the transaction itself; raise only the first error.
            with contextlib.suppress(MemoriesError):
                self._ask(step_after_error)
            raise
        self._ask(step)

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        batches = list(by_weight(records, _estimate_bytes, most=len(records), heaviest=BATCH_BYTES))
        if len(batches) <= 1:
            self._ask("append", records)
            return
        with self.transaction():
            for batch in batches:
                self._ask("append", batch)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self._transaction is not None:
            raise StoreError("records can't be permanently removed inside a transaction")
        places: tuple[str, ...] = self._ask("remove", refs)
        self.damaged.remove(set(refs).__contains__)
        return places

    patch = _remote("patch")
    touch = _remote("touch")
    used = _remote("used")
    scan = _remote("scan")
    groups = _remote("groups")
    candidates = _remote("candidates")
    matches = _remote("matches")
    read = _remote("read")
    values = _remote("values")
    count = _remote("count")
    labels = _remote("labels")
    days = _remote("days")
    namespaces = _remote("namespaces")
    vectors = _remote("vectors")
    unstaged = _remote("unstaged")
    stage = _remote("stage")
    switch = _remote("switch")
    refs = _remote("refs")
    check = _remote("check")
    repair = _remote("repair")

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._space = to_wire(space)

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        info: StoreInfo = self._ask("info", where)
        return info._replace(url=self._url)

    def close(self) -> None:
        """See `Store.close`."""
        self._client.close()


def _estimate_bytes(record: Record) -> int:
    vector_bytes = 0 if record.vectors is None else record.vectors.nbytes
    return 2 * len(record.text) + 1_000 + 2 * vector_bytes


def _parse_address(parts: SplitResult, config: Config | None) -> Address:
    """Return a server's address, with the token.

    Raises:
        ConfigError: The URL is invalid, or the token is missing.
    """
    is_tls = parts.scheme == "https"
    try:
        port = parts.port or (443 if is_tls else 80)
    except ValueError:
        raise ConfigError(
            "the port in the URL of the store is not a number from 1 to 65535"
        ) from None
    if not parts.hostname or parts.query or parts.fragment:
        raise ConfigError("the URL of a server is http://host:port or https://host, with no query")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the URL of a store must not contain a token; put it into MEMORY_TOKEN")
    allows_plain = config is not None and config.plain_http
    if not is_tls and not is_loopback(parts.hostname) and not allows_plain:
        raise ConfigError(
            f"memories and the token would cross the network to {parts.hostname} unencrypted; use "
            "https://, or set MEMORY_PLAIN_HTTP=true if you control the network"
        )
    return Address(
        "the memory server",
        parts.hostname,
        port,
        is_tls,
        headers={"Authorization": f"Bearer {_find_token(config, parts.hostname)}"},
        hint="check that memory serve is running there",
        proxies=True,
    )


def _find_token(config: Config | None, host: str) -> str:
    """Return the token from the settings, or from the token file of a server on this machine.

    Raises:
        ConfigError: The token is missing.
    """
    from memories.core.trust import read_secret

    if config is not None:
        if config.token is not None:
            return config.token.reveal()
        if config.token_file is not None:
            return read_secret(config.token_file)
        server_token = config.home / "server.token"
        if is_loopback(host) and server_token.exists():
            return read_secret(server_token)
    raise ConfigError(
        "the server requires a token; set MEMORY_TOKEN, or MEMORY_TOKEN_FILE to a file that only "
        "you can read"
    )


def _find_error(value: Any) -> type[MemoriesError] | None:
    """Return the error class that a response names; None if this client can't raise it."""
    kind = value.get("kind") if isinstance(value, dict) else None
    error = getattr(errors, str(kind), None)
    if not isinstance(error, type) or not issubclass(error, MemoriesError):
        return None
    return None if error is errors.AmbiguousId else error  # it can't be created without ids
