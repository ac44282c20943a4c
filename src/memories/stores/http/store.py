"""The store of a memory server, used over HTTP: each method is one request."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from memories import errors
from memories.core.batches import by_weight
from memories.core.http import Address, Answer, JsonClient, NoAnswer
from memories.core.urls import is_loopback
from memories.errors import ConfigError, MemoriesError, StoreError, StoreUnreachable
from memories.settings import Config
from memories.stores.damage import Damaged
from memories.stores.records import (
    Candidate,
    Collection,
    Filter,
    Finding,
    Patch,
    Record,
    Ref,
    Space,
    StoreInfo,
)
from memories.stores.wire import from_wire, to_wire

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memories.stores.records import Matches, TurnQuery

# Texts and vectors in one request; more are split into several requests in one transaction.
BATCH_BYTES = 16_777_216
MAX_ANSWER_BYTES = 268_435_456
SECONDS = 120.0
_TRIES = 8  # if the server is overloaded
_UNSURE = "the write may or may not be stored; read it before you write it again"
_Result = TypeVar("_Result")
_WRITES = ("append", "patch", "remove", "stage", "switch", "repair", "commit")


class HttpStore:
    """Stores records in a server's store; see `Store` for the rules.

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
        """The id of this thread's running transaction; None outside one."""
        return getattr(self._local, "transaction", None)

    def _ask(self, method: str, *arguments: Any, **named: Any) -> _Result:  # type: ignore[type-var]
        """Call a method of the server's store and return its result, of the type that it has there.

        Raises:
            MemoriesError: The error of the server's store, or `StoreUnreachable`.
        """
        body: dict[str, Any] = {
            "call": os.urandom(12).hex(),  # the server carries out a repeated request only once
            "space": self._space,
            "arguments": to_wire(list(arguments)),
            "named": to_wire(named),
        }
        if self._transaction is not None:
            body["transaction"] = self._transaction
        answer = self._send(method, body)
        if answer.status != 200 or not isinstance(answer.value, dict):
            raise self._refusal(answer, method)
        for finding in from_wire(answer.value.get("damaged", [])):
            self.damaged.note(finding)
        result: _Result = from_wire(answer.value.get("value"))
        return result

    def _send(self, method: str, body: dict[str, Any]) -> Answer:
        address = self._client.address
        for count in range(1, _TRIES + 1):
            try:
                answer = self._client.ask("POST", self._path + method, body, seconds=SECONDS)
            except NoAnswer as exc:
                advice = _UNSURE if exc.sent and method in _WRITES else address.hint
                raise StoreUnreachable(f"{address} {address.quoted(str(exc))}; {advice}") from exc
            if answer.status != 429 or count == _TRIES:
                break
            time.sleep(min(5.0, max(0.1, answer.retry_after)))
        return answer

    def _refusal(self, answer: Answer, method: str) -> Exception:
        """Return the error for a refused request."""
        address = self._client.address
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
        return StoreError(f"{address} refused with status {answer.status}: {reason}")

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
            # If this fails, the server undoes the transaction by itself; the first error is raised.
            with contextlib.suppress(MemoriesError):
                self._ask(step_after_error)
            raise
        self._ask(step)

    def append(self, records: Sequence[Record]) -> None:
        """See `Store.append`."""
        batches = list(by_weight(records, _estimate_bytes, most=len(records), heaviest=BATCH_BYTES))
        if len(batches) <= 1:
            self._ask("append", list(records))
            return
        with self.transaction():
            for batch in batches:
                self._ask("append", batch)

    def patch(self, patches: Sequence[Patch]) -> None:
        """See `Store.patch`."""
        self._ask("patch", list(patches))

    def touch(self, refs: Sequence[Ref], batch: str = "") -> bool:
        """See `Store.touch`."""
        return self._ask("touch", list(refs), batch)

    def used(self, where: Filter) -> list[tuple[Ref, int]]:
        """See `Store.used`."""
        return self._ask("used", where)

    def remove(self, refs: Sequence[Ref]) -> tuple[str, ...]:
        """See `Store.remove`."""
        if self._transaction is not None:
            raise StoreError("records can't be permanently removed inside a transaction")
        places: tuple[str, ...] = self._ask("remove", list(refs))
        self.damaged.forget(set(refs).__contains__)
        return places

    def scan(
        self,
        where: Filter,
        *,
        limit: int,
        after: tuple[str, int] | None = None,
        newest_first: bool = False,
    ) -> list[Record]:
        """See `Store.scan`."""
        return self._ask("scan", where, limit=limit, after=after, newest_first=newest_first)

    def groups(self, where: Filter, *, limit: int) -> list[tuple[str, str]]:
        """See `Store.groups`."""
        return self._ask("groups", where, limit=limit)

    def candidates(
        self, where: Filter, *, vector: "NDArray[np.float32] | None", terms: Sequence[str], k: int
    ) -> list[Candidate]:
        """See `Store.candidates`."""
        return self._ask("candidates", where, vector=vector, terms=list(terms), k=k)

    def matches(self, where: Filter, query: "TurnQuery") -> "Matches":
        """See `Store.matches`."""
        return self._ask("matches", where, query)

    def read(self, refs: Sequence[Ref]) -> list[Record]:
        """See `Store.read`."""
        return self._ask("read", list(refs))

    def values(self, collection: Collection, namespaces: Sequence[str], key: str) -> list[str]:
        """See `Store.values`."""
        return self._ask("values", collection, list(namespaces), key)

    def count(self, where: Filter, *, at_most: int | None = None) -> int:
        """See `Store.count`."""
        return self._ask("count", where, at_most=at_most)

    def labels(self, where: Filter, key: str | None) -> Mapping[str, int]:
        """See `Store.labels`."""
        return self._ask("labels", where, key)

    def days(self, where: Filter) -> Mapping[int, int]:
        """See `Store.days`."""
        return self._ask("days", where)

    def namespaces(self, collection: Collection) -> list[str]:
        """See `Store.namespaces`."""
        return self._ask("namespaces", collection)

    def vectors(self, refs: Sequence[Ref]) -> "dict[Ref, NDArray[np.float32]]":
        """See `Store.vectors`."""
        return self._ask("vectors", list(refs))

    def unstaged(self, space: Space, collection: Collection, *, limit: int) -> list[Record]:
        """See `Store.unstaged`."""
        return self._ask("unstaged", space, collection, limit=limit)

    def stage(self, space: Space, vectors: "Mapping[Ref, NDArray[np.float32]]") -> None:
        """See `Store.stage`."""
        self._ask("stage", space, dict(vectors))

    def switch(self, space: Space) -> None:
        """See `Store.switch`."""
        self._ask("switch", space)

    def use_space(self, space: Space) -> None:
        """See `Store.use_space`."""
        self._space = to_wire(space)

    def info(self, where: Filter) -> StoreInfo:
        """See `Store.info`."""
        info: StoreInfo = self._ask("info", where)
        return info._replace(url=self._url)

    def refs(self, where: Filter) -> list[Ref]:
        """See `Store.refs`."""
        return self._ask("refs", where)

    def check(self, *, deep: bool) -> Iterable[Finding]:
        """See `Store.check`."""
        return self._ask("check", deep=deep)

    def repair(self) -> list[str]:
        """See `Store.repair`."""
        return self._ask("repair")

    def close(self) -> None:
        """See `Store.close`."""
        self._client.close()


def _estimate_bytes(record: Record) -> int:
    """Return a record's approximate size in a request."""
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
        raise ConfigError("the URL of a server is http://host:port or https://host, without a path")
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
        hint="check whether memory serve runs there",
        proxies=True,
    )


def _find_token(config: Config | None, host: str) -> str:
    """Return the token in the settings or, on this machine, that of the server's own user.

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
    """Return the class of the error that an answer names; None if it can't be raised here."""
    kind = value.get("kind") if isinstance(value, dict) else None
    error = getattr(errors, str(kind), None)
    if not isinstance(error, type) or not issubclass(error, MemoriesError):
        return None
    return None if error is errors.AmbiguousId else error  # which requires the ids
