"""Offers the store itself over HTTP to commands and libraries on other machines, at `POST
/store/v1/METHOD`; see `stores.http`.

Reading requires the right to read each namespace in the request. Writing requires the `admin`
right, since a writer could forge the origins that records contain.
"""

import contextlib
import functools
import queue
import threading
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import Response

from memories.errors import InvalidInput, StoreBusy, StoreError
from memories.guard.validate import namespace as checked_namespace
from memories.models import SHARED
from memories.scratchpad import file
from memories.scratchpad.mirror import Mirror
from memories.server.api.access import Principal
from memories.server.api.middleware import READS, Named
from memories.server.api.problems import Refused, decode_json, encode_json
from memories.server.api.server import ServerState
from memories.stores import Store, open_store
from memories.stores.logged import Change, ref_of
from memories.stores.records import Collection, Finding, Record, Space, StoreInfo
from memories.stores.wire import fits, from_wire, namespaces_of, read_arguments, to_wire

IDLE_SECONDS = 10.0  # seconds without a request after which a transaction is rolled back
MAX_OPEN = 16
MAX_SPACES = 8  # maximum number of open stores for vector spaces other than the server's own
_WRITES = frozenset("append patch touch remove".split())
_CHANGES = frozenset("append patch remove".split())
_WHOLE = frozenset("namespaces unstaged stage switch check repair".split())
_STEPS = frozenset("begin enter leave undo commit rollback".split())
_REMEMBERED = 1_000
_STOPPING = "the server is stopping; nothing was written; try again in a second"
_UNHEARD = (
    "there is no such transaction; it was rolled back after ten seconds without requests, or the "
    "server was restarted"
)


class _StoreRequest(NamedTuple):
    """A validated request to the store."""

    method: str
    space: Space | None
    arguments: Mapping[str, Any]
    transaction: str | None
    call: str


class _Rollback(Exception):
    """Raised to roll a transaction back. If a client waits for the rollback, the argument is the
    future that the client waits on.
    """


class _Transaction:
    """A client's transaction. It runs in its own thread, because a store ties each transaction to a
    thread.
    """

    store: Store  # set once the transaction has begun

    def __init__(self, lent: AbstractContextManager[Store], who: Principal) -> None:
        self._lent, self.who = lent, who
        self.changes: list[Change] = []
        self._inner: list[tuple[AbstractContextManager[None], int]] = []
        self._work: queue.Queue[tuple[Callable[[], Any], Future[Any], bool]] = queue.Queue()
        self.ended = threading.Event()
        self.rollback_error = StoreError(_UNHEARD)  # raised for requests after the rollback
        self._begun: Future[None] = Future()
        threading.Thread(target=self._run, daemon=True, name="memories-transaction").start()

    def wait(self) -> None:
        """Wait until the transaction has begun."""
        self._begun.result()

    def end(self) -> None:
        """Roll back after the current step; if the transaction has not begun, prevent it from
        beginning. Return immediately.
        """
        self.rollback_error = StoreBusy(_STOPPING)
        with contextlib.suppress(InvalidStateError):
            self._begun.set_exception(self.rollback_error)
        self._work.put((self._rollback, Future(), False))

    @property
    def has_begun(self) -> bool:
        """Whether the transaction has begun in the store."""
        return self._begun.done() and self._begun.exception() is None

    @staticmethod
    def _rollback() -> None:
        raise _Rollback

    def _run(self) -> None:
        result: Any = None
        last: Future[Any] | None = None
        try:
            with self._lent as self.store, self.store.transaction():
                # raises an error if the transaction was prevented from beginning
                self._begun.set_result(None)
                result, last = self._until_the_end()
        except _Rollback as exc:
            last = exc.args[0] if exc.args else None
        except BaseException as exc:  # noqa: BLE001 - passed on to the client that waits
            if not self._begun.done():
                self._begun.set_exception(exc)
            elif last is not None:
                last.set_exception(exc)
                last = None
        finally:
            self.ended.set()
        if last is not None:
            last.set_result(result)

    def _until_the_end(self) -> tuple[Any, "Future[Any]"]:
        """Run steps in order until one ends the transaction; return that step's result and
        future.

        Raises:
            _Rollback: The transaction must be rolled back.
        """
        while True:
            try:
                run, future, is_last = self._work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                raise _Rollback from None
            try:
                result = run()
            except _Rollback:
                raise _Rollback(future) from None
            except BaseException as exc:  # noqa: BLE001 - the client that sent the step gets it
                future.set_exception(exc)
                continue
            if is_last:
                return result, future
            future.set_result(result)

    def do(self, run: Callable[[], Any], *, is_last: bool = False) -> Any:
        """Run a step in the transaction."""
        future: Future[Any] = Future()
        self._work.put((run, future, is_last))
        while True:
            try:
                return future.result(timeout=1.0)
            except TimeoutError:
                if self.ended.is_set() and not future.done():
                    raise self.rollback_error from None

    def step(self, name: str) -> None:
        """Begin or end a nested transaction, or end the outer one."""

        def enter() -> None:
            inner = self.store.transaction()
            inner.__enter__()
            self._inner.append((inner, len(self.changes)))

        def leave() -> None:
            self._inner.pop()[0].__exit__(None, None, None)

        def undo() -> None:
            error, (inner, count) = _Inner(), self._inner.pop()
            del self.changes[count:]
            with contextlib.suppress(_Inner):
                inner.__exit__(_Inner, error, None)

        steps = {
            "enter": enter,
            "leave": leave,
            "undo": undo,
            "rollback": self._rollback,
            "commit": lambda: None,
        }
        self.do(steps[name], is_last=name == "commit")


class _Inner(Exception):
    """Raised to roll a nested transaction back."""


class Records:
    """The stores that remote clients use, one for each vector space, and their open transactions.

    Every change updates the scratchpads in the server's home. Records are deleted from the
    scratchpads before they are removed from the store.
    """

    def __init__(self, server: ServerState) -> None:
        self._server, config = server, server.config
        self._mirror = Mirror(
            lambda name: file.pad_file_of(config, name),
            lambda: datetime.now(UTC),
            makes_file=lambda _: False,
        )
        self._lock = threading.Lock()
        embedder = server.handles.embedder
        self._own = (None, embedder.space if embedder else None)
        self._stores: dict[Space | None, Store] = {}
        self._users: Counter[Space | None] = Counter()
        self._transactions: dict[str, _Transaction] = {}
        self._ending = False
        self._answers: OrderedDict[str, Future[bytes]] = OrderedDict()

    def _update_scratchpads(self, changes: Sequence[Change]) -> None:
        """Delete changed and removed records from the scratchpads; new records appear at the next
        refresh.

        Raises:
            StoreError: A scratchpad still shows a removed record.
        """
        self._mirror([change for change in changes if not isinstance(change, Record)])
        refs = map(ref_of, changes)
        for namespace in {ref.namespace for ref in refs if ref.collection is Collection.MEMORY}:
            pad_file = file.pad_file_of(self._server.config, namespace)
            if file.exists(pad_file):
                with contextlib.suppress(
                    OSError
                ):  # if the folder is not writable, neither is the file
                    file.mark_stale(pad_file)

    @contextlib.contextmanager
    def _lend(self, space: Space | None) -> Iterator[Store]:
        """Yield the store for a space. It is opened if necessary, and stays open for the next
        request.
        """
        with self._lock:
            store = self._stores.pop(space, None) or self._open(space)
            self._stores[space] = store  # the most recently used store is last
            self._users[space] += 1
        try:
            yield store
        finally:
            with self._lock:
                self._users[space] -= 1

    def _open(self, space: Space | None) -> Store:
        """Open a store. If too many are open, close the least recently used one.

        Raises:
            StoreBusy: All of them are in use.
        """
        config = self._server.config
        others = [other for other in self._stores if other not in self._own]
        if space not in self._own and len(others) >= MAX_SPACES:
            idle = next((other for other in others if not self._users[other]), None)
            if idle is None:
                raise StoreBusy(f"{MAX_SPACES} vector spaces are in use; try again in a second")
            self._stores.pop(idle).close()
            del self._users[idle]
        return open_store(config.store, space, config)

    def answer(self, who: Principal, request: _StoreRequest) -> bytes:
        """Handle a request; return the response's JSON.

        When a connection breaks, the client sends its request again, perhaps before the first
        request has been handled. The second request then waits for the response to the first.
        """
        if request.method not in _WRITES | _STEPS:
            return self._carry_out(who, request)
        call_id = f"{who.id}/{request.call}"
        with self._lock:
            first = self._answers.get(call_id)
            if first is None:
                answer = self._answers[call_id] = Future()
                if len(self._answers) > _REMEMBERED:
                    self._answers.popitem(last=False)
        if first is not None:
            return first.result()
        try:
            answer.set_result(self._carry_out(who, request))
        except BaseException as exc:
            with self._lock:
                self._answers.pop(call_id, None)
            answer.set_exception(exc)
            raise
        return answer.result()

    def _carry_out(self, who: Principal, request: _StoreRequest) -> bytes:
        _permit(who, request)
        if request.method in _STEPS:
            value, findings = self._step(who, request), list[Finding]()
        else:
            value, findings = self._call(who, request)
        shape = {"value": to_wire(value)}
        if findings:
            shape["damaged"] = to_wire(findings)
        return encode_json(shape)

    def _call(self, who: Principal, request: _StoreRequest) -> tuple[Any, list[Finding]]:
        if request.transaction is None:
            with self._lend(request.space) as store:
                return self._use(store, None, who, request)
        transaction = self._transaction(who, request.transaction)
        return self._use(transaction.store, transaction, who, request)

    def _use(
        self, store: Store, transaction: _Transaction | None, who: Principal, request: _StoreRequest
    ) -> tuple[Any, list[Finding]]:
        mark = store.damaged.mark()
        run = functools.partial(getattr(store, request.method), **request.arguments)
        changes: list[Change] = []
        if request.method in _CHANGES:
            [given] = request.arguments.values()
            # Invalid namespaces have no scratchpads.
            changes = [change for change in given if _is_valid(ref_of(change).namespace)]
        if request.method == "remove":
            self._update_scratchpads(changes)
        value = run() if transaction is None else transaction.do(run)
        if request.method != "remove" and changes:
            if transaction is None:
                self._update_scratchpads(changes)
            else:
                transaction.changes += changes
        if isinstance(value, StoreInfo):
            value = value._replace(url="")
        if request.method == "check":
            value = [self._public_finding(finding, who) for finding in value]
        if request.method == "remove":
            value = tuple(self._server.access.without_folders(who, place) for place in value)
        namespaces = namespaces_of(request.arguments)
        findings = store.damaged.since(mark)
        return value, [
            finding
            for finding in findings
            if finding.ref is not None and finding.ref.namespace in namespaces
        ]

    def _public_finding(self, finding: Finding, who: Principal) -> Finding:
        """Return a finding without folders, and without details about namespaces that the sender
        may not read.
        """
        if finding.ref is None or who.level(finding.ref.namespace):
            what = self._server.access.without_folders(who, finding.what)
            return finding._replace(what=what)
        return Finding(
            "a record in another namespace is damaged",
            "run memory doctor for details",
            finding.derived,
        )

    def _step(self, who: Principal, request: _StoreRequest) -> str | None:
        if request.method == "begin":
            with self._lock:
                self._transactions = {
                    name: transaction
                    for name, transaction in self._transactions.items()
                    if not transaction.ended.is_set()
                }
                begun = [item for item in self._transactions.values() if item.has_begun]
                if len(begun) >= MAX_OPEN:
                    raise StoreBusy(f"{MAX_OPEN} transactions are open; try again in a second")
            return self._begin(_Transaction(self._lend(request.space), who))
        if request.transaction is None:
            raise InvalidInput("a step requires the id of an open transaction")
        transaction = self._transaction(who, request.transaction)
        try:
            transaction.step(request.method)
        finally:
            if request.method in ("commit", "rollback"):
                with self._lock:
                    self._transactions.pop(request.transaction, None)
        if request.method == "commit":
            self._update_scratchpads(transaction.changes)
        return None

    def _begin(self, transaction: _Transaction) -> str:
        name = uuid.uuid4().hex
        with self._lock:
            self._transactions[name] = transaction
            if self._ending:
                transaction.end()
        try:
            transaction.wait()
        except BaseException:
            with self._lock:
                self._transactions.pop(name, None)
            raise
        return name

    def _transaction(self, who: Principal, name: str) -> _Transaction:
        with self._lock:
            transaction = self._transactions.get(name)
        if transaction is None or transaction.who.id != who.id:
            raise StoreError(_UNHEARD)
        if transaction.ended.is_set():
            raise transaction.rollback_error
        return transaction

    def end(self) -> None:
        """Roll back the open transactions, because their clients can't reach a stopping server."""
        with self._lock:
            self._ending = True
            for transaction in self._transactions.values():
                transaction.end()

    def close(self) -> None:
        """Roll back the open transactions, and close the stores."""
        self.end()
        for transaction in self._transactions.values():
            if transaction.has_begun:
                transaction.ended.wait()
        for store in self._stores.values():
            store.close()


def _is_valid(namespace: str) -> bool:
    try:
        return checked_namespace(namespace) == namespace
    except ValueError:
        return False


def _permit(who: Principal, request: _StoreRequest) -> None:
    """Check the sender's rights.

    Raises:
        Refused: 403.
    """
    namespaces = namespaces_of(request.arguments) | set(request.arguments.get("namespaces", ()))
    is_quick_check = request.method == "check" and not request.arguments["deep"]
    if request.method in _WHOLE and not is_quick_check:
        who.require("admin")
    is_read = request.method in READS
    if is_read and SHARED in namespaces and not who.level(SHARED):
        raise Refused(
            403,
            "your token may not read namespace shared; leave it out with --no-shared, and name "
            "another with --namespace",
        )
    for namespace in namespaces:
        who.require("read" if is_read else "admin", namespace)
    if request.method in _STEPS and "admin" not in who.grants.values():
        raise Refused(403, "your token may not write records; that needs admin in some namespace")


def _parse_request(method: str, data: bytes) -> _StoreRequest:
    if method not in READS | _WRITES | _WHOLE | _STEPS:
        raise InvalidInput("the store has no such method")
    shape, wrong = decode_json(data), InvalidInput("the body is not a request to a store")
    if not isinstance(shape, dict):
        raise wrong
    try:
        parts = [from_wire(shape.get(name)) for name in ("space", "arguments", "named")]
    except RecursionError:
        raise wrong from None
    space, arguments, named = parts
    call: Any = shape.get("call")
    transaction = shape.get("transaction")
    is_valid = (
        fits("space", space, Space | None)
        and isinstance(arguments, list)
        and isinstance(named, dict)
        and isinstance(transaction, str | None)
        and isinstance(call, str)
        and len(call) <= 64
    )
    if not is_valid:
        raise wrong
    values = {} if method in _STEPS else read_arguments(method, space, arguments, named)
    return _StoreRequest(method, space, values, transaction, call)


def route() -> Named:
    """Return the route that serves all methods of the store."""

    async def answer(request: Request) -> Response:
        server: ServerState = request.app.state.server
        records: Records = request.app.state.records
        who = await anyio.to_thread.run_sync(
            server.access.principal, request.scope, limiter=server.limits["sign"]
        )
        store_request = _parse_request(str(request.path_params["method"]), await request.body())
        async with server.limit("store") as limiter:
            data = await anyio.to_thread.run_sync(
                records.answer, who, store_request, limiter=limiter
            )
        return Response(data, media_type="application/json")

    return Named("/store/v1/{method}", answer, methods=["POST"])
