"""The store itself over HTTP, for a command or a library elsewhere: `POST /store/v1/METHOD`; see `stores.http`.

Reading needs a token that may read each namespace that is named, writing one that manages it: who writes records says
by itself who wrote them.
"""

import contextlib
import functools
import json
import queue
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import Response

from memories.errors import InvalidInput, StoreBusy, StoreError
from memories.guard.validate import namespace as checked_namespace
from memories.scratchpad import scratchpad
from memories.scratchpad.at_hand import place_of
from memories.scratchpad.mirror import Change, Mirror
from memories.server.api.access import Principal
from memories.server.api.middleware import READS, Named
from memories.server.api.problems import Refused, encoded, failed
from memories.server.api.server import Server
from memories.stores import Store, open_store
from memories.stores.records import Collection, Finding, Patch, Record, Ref, Space, StoreInfo
from memories.stores.wire import from_wire, namespaces_of, to_wire

IDLE_SECONDS = 10.0  # after which a transaction that nothing is heard of is undone
MAX_OPEN = 16
MAX_SPACES = 8  # each has a store of its own, open as long as the server
_WRITES = frozenset("append patch touch remove".split())
_CHANGES = frozenset("append patch remove".split())
_WHOLE = frozenset("namespaces unstaged stage switch check repair".split())
_STEPS = frozenset("begin enter leave undo commit rollback".split())
_REMEMBERED = 1_000
_STOPPING = "the server is stopping; nothing was written; try again in a second"
_UNHEARD = "there is no such transaction: nothing was heard of it for too long, and it was undone"


class _Asked(NamedTuple):
    """A request to the store, checked."""

    method: str
    space: Space | None
    arguments: list[Any]
    named: Mapping[str, Any]
    transaction: str | None
    call: str


class _Undone(Exception):
    """Ends a transaction that is to be undone."""


class _Open:
    """A transaction of a client, in a thread of its own, since a transaction belongs to a thread."""

    def __init__(self, store: Store, who: Principal) -> None:
        self.store, self.who = store, who
        self.changes: list[Change] = []
        self._inner: list[tuple[AbstractContextManager[None], int]] = []
        self._work: queue.Queue[tuple[Callable[[], Any], Future[Any], bool]] = queue.Queue()
        self.ended = threading.Event()
        self.undone: StoreError = StoreError(_UNHEARD)  # why, if it is
        self._begun: Future[None] = Future()
        threading.Thread(target=self._run, daemon=True, name="memories-transaction").start()

    def wait(self) -> None:
        """Wait until it has begun."""
        self._begun.result()

    def end(self) -> None:
        """Undo it after what is being done, or keep it from beginning; return at once."""
        self.undone = StoreBusy(_STOPPING)
        with contextlib.suppress(InvalidStateError):
            self._begun.set_exception(self.undone)
        self._work.put((self._rollback, Future(), False))

    @property
    def has_begun(self) -> bool:
        """Whether it holds the store."""
        return self._begun.done() and self._begun.exception() is None

    @staticmethod
    def _rollback() -> None:
        raise _Undone

    def _run(self) -> None:
        result: Any = None
        last: Future[Any] | None = None
        try:
            with self.store.transaction():
                self._begun.set_result(None)  # raises if it was kept from beginning
                result, last = self._until_the_end()
        except _Undone as exc:
            last = exc.args[0] if exc.args else None
        except BaseException as exc:  # noqa: BLE001 - the one who waits for the end is told
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
        """Do what is asked for, one after the other, until the transaction is to end.

        Raises:
            _Undone: It is to be undone.
        """
        while True:
            try:
                run, done, ends = self._work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                raise _Undone from None
            try:
                result = run()
            except _Undone:
                raise _Undone(done) from None
            except BaseException as exc:  # noqa: BLE001 - whoever asked is told
                done.set_exception(exc)
                continue
            if ends:
                return result, done
            done.set_result(result)

    def do(self, run: Callable[[], Any], *, ends: bool = False) -> Any:
        """Run something in the transaction."""
        done: Future[Any] = Future()
        self._work.put((run, done, ends))
        while True:
            try:
                return done.result(timeout=1.0)
            except TimeoutError:
                if self.ended.is_set() and not done.done():
                    raise self.undone from None

    def step(self, name: str) -> None:
        """Begin or end a transaction inside, or end this one."""

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

        steps = {"enter": enter, "leave": leave, "undo": undo, "rollback": self._rollback, "commit": lambda: None}
        self.do(steps[name], ends=name == "commit")


class _Inner(Exception):
    """Undoes a transaction inside another one."""


class Records:
    """The stores that clients elsewhere use, one for each space of vectors, and their open transactions.

    The scratchpads in the home of the server are told what they change, and of what they remove before it is removed.
    """

    def __init__(self, server: Server) -> None:
        self._server, config = server, server.config
        self._mirror = Mirror(lambda name: place_of(config, name), lambda: datetime.now(UTC), make=lambda _: False)
        self._lock = threading.Lock()
        self._stores: dict[Space | None, Store] = {}
        self._transactions: dict[str, _Open] = {}
        self._ending = False
        self._answered: OrderedDict[str, bytes] = OrderedDict()

    def _tell(self, changes: Sequence[Change]) -> None:
        """Take what is gone out of the scratchpads; what is new, the next look at them finds in the store.

        Raises:
            StoreError: A scratchpad still shows what is gone.
        """
        self._mirror([each for each in changes if not isinstance(each, Record)])
        refs = (each if isinstance(each, Ref) else each.ref for each in changes)
        for namespace in {ref.namespace for ref in refs if ref.collection is Collection.MEMORY}:
            place = place_of(self._server.config, namespace)
            if scratchpad.exists(place):
                with contextlib.suppress(OSError):  # the folder can't be written, so the file isn't either
                    scratchpad.mark_stale(place)

    def _store(self, space: Space | None) -> Store:
        with self._lock:
            if space not in self._stores:
                if len(self._stores) >= MAX_SPACES:
                    raise InvalidInput("clients of this server use too many spaces of vectors; use its embedder")
                self._stores[space] = open_store(self._server.config.store, space, self._server.config)
            return self._stores[space]

    def answer(self, who: Principal, asked: _Asked) -> bytes:
        """Do what is asked; return the JSON of the answer."""
        known = f"{who.id}/{asked.call}"
        with self._lock:
            if known in self._answered:  # the client sent it twice, on a connection that was dying
                return self._answered[known]
        _permit(who, asked)
        if asked.method in _STEPS:
            value, findings = self._step(who, asked), list[Finding]()
        else:
            value, findings = self._call(who, asked)
        data = encoded({"value": to_wire(value), **({"damaged": to_wire(findings)} if findings else {})})
        if asked.method in _WRITES | _STEPS:
            with self._lock:
                self._answered[known] = data
                while len(self._answered) > _REMEMBERED:
                    self._answered.popitem(last=False)
        return data

    def _call(self, who: Principal, asked: _Asked) -> tuple[Any, list[Finding]]:
        open_ = None if asked.transaction is None else self._transaction(who, asked.transaction)
        store = self._store(asked.space) if open_ is None else open_.store
        mark = store.damaged.mark()
        method = getattr(store, asked.method)
        run = functools.partial(method, *asked.arguments, **asked.named)
        changes = _changes(asked)
        if asked.method == "remove":
            self._tell(changes)
        value = run() if open_ is None else open_.do(run)
        if asked.method != "remove" and changes:
            if open_ is None:
                self._tell(changes)
            else:
                open_.changes += changes
        if isinstance(value, StoreInfo):
            value = value._replace(url="")
        if asked.method == "check":
            value = [_without_ref(each, who) for each in value]
        named = namespaces_of([asked.arguments, dict(asked.named)])
        noted = store.damaged.since(mark)
        return value, [each for each in noted if each.ref is not None and each.ref.namespace in named]

    def _step(self, who: Principal, asked: _Asked) -> str | None:
        if asked.method == "begin":
            with self._lock:
                self._transactions = {
                    name: each for name, each in self._transactions.items() if not each.ended.is_set()
                }
                if sum(each.has_begun for each in self._transactions.values()) >= MAX_OPEN:
                    raise StoreBusy(f"{MAX_OPEN} transactions are open; try again in a second")
            return self._begin(_Open(self._store(asked.space), who))
        if asked.transaction is None:
            raise InvalidInput("a step of a transaction needs the transaction")
        open_ = self._transaction(who, asked.transaction)
        try:
            open_.step(asked.method)
        finally:
            if asked.method in ("commit", "rollback"):
                with self._lock:
                    self._transactions.pop(asked.transaction, None)
        if asked.method == "commit":
            self._tell(open_.changes)
        return None

    def _begin(self, made: _Open) -> str:
        name = uuid.uuid4().hex
        with self._lock:
            self._transactions[name] = made
            if self._ending:
                made.end()
        try:
            made.wait()
        except BaseException:
            with self._lock:
                self._transactions.pop(name, None)
            raise
        return name

    def _transaction(self, who: Principal, name: str) -> _Open:
        with self._lock:
            found = self._transactions.get(name)
        if found is None or found.who.id != who.id:
            raise StoreError(_UNHEARD)
        if found.ended.is_set():
            raise found.undone
        return found

    def end(self) -> None:
        """Undo the open transactions: their clients can't reach a server that stops."""
        with self._lock:
            self._ending = True
            for each in self._transactions.values():
                each.end()

    def close(self) -> None:
        """Undo what is open, and close the stores."""
        self.end()
        for each in self._transactions.values():
            if each.has_begun:
                each.ended.wait()
        for store in self._stores.values():
            store.close()


def _changes(asked: _Asked) -> list[Change]:
    """Return what a request adds, changes or removes; what no namespace can have as its name has no scratchpad."""
    given = [*asked.arguments, *asked.named.values()] if asked.method in _CHANGES else []
    found = (each for one in given if isinstance(one, list) for each in one if isinstance(each, Record | Patch | Ref))
    return [each for each in found if _is_name((each if isinstance(each, Ref) else each.ref).namespace)]


def _is_name(namespace: str) -> bool:
    try:
        return checked_namespace(namespace) == namespace
    except ValueError:
        return False


def _permit(who: Principal, asked: _Asked) -> None:
    """Refuse what somebody may not do.

    Raises:
        Refused: 403.
    """
    named = namespaces_of([asked.arguments, dict(asked.named)])
    if asked.method == "values":
        match asked.arguments, asked.named:
            case [_, list(spaces), *_], _ if all(isinstance(each, str) for each in spaces):
                named |= set(spaces)
            case _:
                raise InvalidInput("the body is no request to a store")
    if asked.method in _WHOLE and not (asked.method == "check" and not asked.named.get("deep")):
        who.require("admin")
    for namespace in named:
        who.require("read" if asked.method in READS else "admin", namespace)
    if asked.method in _STEPS and "admin" not in who.grants.values():
        raise Refused(403, "your token may not write records; it needs admin of a namespace")


def _without_ref(finding: Finding, who: Principal) -> Finding:
    """Return a finding as somebody may see it."""
    if finding.ref is None or who.level(finding.ref.namespace):
        return finding
    return Finding("a record of another namespace is damaged", "memory doctor tells more", finding.derived)


def _read(method: str, data: bytes) -> _Asked:
    if method not in READS | _WRITES | _WHOLE | _STEPS:
        raise InvalidInput("the store has no such method")
    try:
        shape = json.loads(data)
        space, arguments, named = (from_wire(shape.get(name)) for name in ("space", "arguments", "named"))
        transaction, call = shape.get("transaction"), shape["call"]
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError) as exc:
        raise InvalidInput("the body is no request to a store") from exc
    good = isinstance(space, Space | None) and isinstance(arguments, list) and isinstance(named, dict)
    if not good or not isinstance(transaction, str | None) or not isinstance(call, str) or len(call) > 64:
        raise InvalidInput("the body is no request to a store")
    return _Asked(method, space, arguments, named, transaction, call)


def route() -> Named:
    """Return the route of all methods."""

    async def answer(request: Request) -> Response:
        server: Server = request.app.state.server
        records: Records = request.app.state.records
        try:
            who = await anyio.to_thread.run_sync(server.access.principal, request.scope, limiter=server.limits["sign"])
            asked = _read(str(request.path_params["method"]), await request.body())
            async with server.limit("store") as limiter:
                data = await anyio.to_thread.run_sync(records.answer, who, asked, limiter=limiter)
        except Exception as exc:  # noqa: BLE001 - every error becomes an answer
            return failed(exc)
        return Response(data, media_type="application/json")

    return Named("/store/v1/{method}", answer, methods=["POST"])
