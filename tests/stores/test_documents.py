"""The store on a document server passes the contract with a driver in memory.

Also tests of concurrent writers, transactions that are interrupted between any two requests, the
number of requests, and silent servers.
"""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after its assertions are rewritten
    HISTORY,
    MEMORY,
    SPACE,
    OpenStore,
    StoreContract,
    at,
    by_words,
    embed,
    everything,
    matching,
    pool,
    record,
    refs_of,
    search,
    seen,
    turn,
    turns,
    unit_vectors,
)
from contract.log import check, open_memories  # noqa: E402

from memories import Memories  # noqa: E402
from memories.core import http  # noqa: E402
from memories.core.http import Address, JsonClient, ServerResponse, TimedOut  # noqa: E402
from memories.errors import (  # noqa: E402
    ConfigError,
    Conflict,
    ErasureUnfinished,
    NotFound,
    SchemaTooNew,
    StoreBusy,
    StoreError,
    StoreUnreachable,
)
from memories.stores.documents import changes as remote_changes  # noqa: E402
from memories.stores.documents import driver as client_module  # noqa: E402
from memories.stores.documents import search as remote_search  # noqa: E402
from memories.stores.documents.driver import (  # noqa: E402  # noqa: E402
    Condition,
    Kind,
    Partition,
    Point,
    StoreClient,
    Value,
    Where,
    parse_tls,
)
from memories.stores.documents.schema import LIVE, PENDING  # noqa: E402
from memories.stores.documents.store import DocumentStore  # noqa: E402
from memories.stores.records import (  # noqa: E402
    Patch,
    Ref,
    Space,
    TurnQuery,
)
from memories.stores.words import Term, occurrences  # noqa: E402


class Server:
    """The contents of a document server, and the number of its requests; `before` runs before each
    of them.
    """

    def __init__(self) -> None:
        self.parts: dict[Partition, dict[str, Point]] = {}
        self.state: dict[str, str] = {}
        self.requests: Counter[str] = Counter()
        self.lock = threading.RLock()
        self.before: Callable[[str], None] = lambda name: None


class Dead(BaseException):
    """Simulates kill -9: nothing catches it."""


class MemoryDriver:
    """Implements `Driver` on a `Server` in memory."""

    max_batch = 2_000

    def __init__(self, server: Server, url: str) -> None:
        self._server = server
        self.url = url
        self.collection = url.rpartition("/")[2]
        self.remains = (f"the files of {url}",)

    def _asked(self, name: str) -> None:
        self._server.before(name)
        self._server.requests[name] += 1

    def state(self) -> Mapping[str, str]:
        self._asked("state")
        return dict(self._server.state)

    def set_missing_state(self, values: Mapping[str, str]) -> Mapping[str, str]:
        self._asked("set_missing_state")
        with self._server.lock:
            self._server.state = dict(values) | self._server.state
            return dict(self._server.state)

    def set_state(self, values: Mapping[str, str]) -> None:
        self._asked("set_state")
        self._server.state = dict(values)

    def parts(self) -> list[Partition]:
        self._asked("parts")
        return list(self._server.parts)

    def drop(self, part: Partition) -> None:
        self._asked("drop")
        self._server.parts.pop(part, None)

    def add(self, part: Partition, points: Sequence[Point]) -> None:
        self._asked("add")
        with self._server.lock:
            there = self._server.parts.setdefault(part, {})
            for point in points:
                assert all(value is not None for value in point.payload.values())
                there.setdefault(point.id, point)

    def update(self, part: Partition, changes: Mapping[str, Mapping[str, Value | None]]) -> None:
        self._asked("update")
        with self._server.lock:
            there = self._server.parts.setdefault(part, {})
            for name, change in changes.items():
                if name in there:
                    merged = {**there[name].payload, **change}
                    kept = {field: value for field, value in merged.items() if value is not None}
                    there[name] = there[name]._replace(payload=kept)

    def delete(self, part: Partition, ids: Iterable[str]) -> None:
        self._asked("delete")
        with self._server.lock:
            for name in ids:
                self._server.parts.get(part, {}).pop(name, None)

    def get(self, part: Partition, ids: Sequence[str]) -> list[Point]:
        self._asked("get")
        there = self._server.parts.get(part, {})
        return [_without_vector(there[name]) for name in ids if name in there]

    def find(self, part: Partition, where: Where, *, limit: int | None = None) -> list[Point]:
        self._asked("find")
        return [_without_vector(point) for point in self._fulfil(part, where)][:limit]

    def ids(self, part: Partition, where: Where) -> list[str]:
        self._asked("ids")
        return [point.id for point in self._fulfil(part, where)]

    def count(self, part: Partition) -> int:
        self._asked("count")
        return len(self._server.parts.get(part, {}))

    def holders(self, part: Partition, term: Term) -> list[str]:
        self._asked("holders")
        return [
            point.id for point in self._fulfil(part, []) if occurrences(point.words or (), term)
        ]

    def nearest(
        self, part: Partition, vector: Any, *, k: int, among: Sequence[str] | None = None
    ) -> list[tuple[str, float]]:
        self._asked("nearest")
        points = [point for point in self._fulfil(part, []) if among is None or point.id in among]
        scored = [
            (point.id, float(np.dot(point.vector, vector)))
            for point in points
            if point.vector is not None
        ]
        return sorted(scored, key=lambda hit: -hit[1])[:k]

    def vectors(self, part: Partition, ids: Sequence[str]) -> dict[str, Any]:
        self._asked("vectors")
        there = self._server.parts.get(part, {})
        return {name: there[name].vector for name in ids if name in there}

    def close(self) -> None:
        pass

    def _fulfil(self, part: Partition, where: Where) -> list[Point]:
        with self._server.lock:
            points = list(self._server.parts.get(part, {}).values())
        return [
            point
            for point in points
            if all(_fulfils(point.payload, condition) for condition in where)
        ]


def _without_vector(point: Point) -> Point:
    """Return a point without its vector and words."""
    return point._replace(vector=None, words=None)


def _fulfils(payload: Mapping[str, Any], condition: Condition) -> bool:
    """Return whether a payload meets a condition."""
    value = payload.get(condition.field)
    if value is None:
        return False
    wanted: Any = condition.value
    return {
        "=": lambda: value == wanted,
        "<": lambda: value < wanted,
        "<=": lambda: value <= wanted,
        ">": lambda: value > wanted,
        ">=": lambda: value >= wanted,
        "has": lambda: wanted in value,
        "in": lambda: value in wanted,
    }[condition.relation]()


@pytest.fixture
def server() -> Server:
    """A document server in memory."""
    return Server()


@pytest.fixture
def open_store(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    """Opens the store as one machine does; `.elsewhere` opens it as another machine, which shares
    no lock.
    """
    monkeypatch.setattr(
        remote_changes, "_lock_file", lambda url: tmp_path / f"{url.rpartition('/')[2]}.lock"
    )

    def open_one(space: Space | None) -> DocumentStore:
        return DocumentStore(MemoryDriver(server, "memory://here"), space)

    def open_elsewhere(space: Space | None) -> DocumentStore:
        return DocumentStore(MemoryDriver(server, "memory://elsewhere"), space)

    open_one.elsewhere = open_elsewhere  # type: ignore[attr-defined]
    return open_one


class TestDocumentStore(StoreContract):
    """The contract on a document server in memory."""

    exact_scores = False


def die_at(
    server: Server,
    number: int,
    *,
    names: tuple[str, ...] = ("add", "update", "delete", "set_state"),
) -> None:
    """Kill the writer instead of sending the changing request with this number, counted from 0."""
    left = [number]

    def before(name: str) -> None:
        if name in names:
            if left[0] == 0:
                raise Dead
            left[0] -= 1

    server.before = before


def live(server: Server) -> None:
    """Make the server answer all requests again."""
    server.before = lambda name: None


# --- interruptions between two requests


def update(store: DocumentStore) -> None:
    """Write the second version of a memory, as the service does."""
    with store.transaction():
        store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(5), "update", {"mark": 1})])
        store.append([record("m", 2, text="pear", key="k", labels={"a": "2"})])


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_update_that_dies_between_two_requests_is_done_completely_or_not_at_all(
    server: Server,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    elsewhere: bool,
) -> None:
    """Readers see either the old version or the new one, complete; the update can be repeated, even
    by another machine.
    """
    store = open_store(SPACE)
    store.append([record("m", text="apple", key="k", labels={"a": "1"})])
    before = seen(store, pool(state="any"))
    die_at(server, number)
    with pytest.raises(Dead):
        update(store)
        raise Dead  # the update needs fewer requests
    live(server)
    died = seen(open_store(SPACE), pool(state="any")) == before
    if not died:
        (found,) = open_store(SPACE).scan(pool(key="k"), limit=9)
        assert (found.ref.position, found.text) == (2, "pear")
        return
    (found,) = open_store(SPACE).scan(pool(key="k"), limit=9)
    assert (found.ref.position, found.text) == (1, "apple")
    assert search(open_store(SPACE), "pear").keys() == {"m"}
    again: Any = open_store(SPACE)
    if elsewhere:
        again = open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
        monkeypatch.setattr(remote_changes.time, "time", lambda: 4e9)
    update(again)
    versions = [(entry.ref.position, entry.text) for entry in everything(open_store(SPACE), pool())]
    assert versions == [(1, "apple"), (2, "pear")]
    assert [entry.ref.position for entry in again.scan(pool(), limit=9)] == [2]
    assert search(again, "pear")["m"].similarity == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("number", range(4))
def test_an_append_that_dies_between_two_requests_is_done_completely_or_not_at_all(
    server: Server, open_store: OpenStore, number: int
) -> None:
    store = open_store(SPACE)
    store.append([record("first")])
    batch = [record(f"m{at}", text="elder tea", labels={"n": str(at)}) for at in range(3)]
    die_at(server, number)
    with pytest.raises(Dead):
        store.append(batch)
        raise Dead
    live(server)
    names = {entry.ref.group for entry in everything(open_store(SPACE), pool())} - {"first"}
    assert names in (set(), {"m0", "m1", "m2"})
    if not names:
        assert by_words(store, ["elder"]) == {}
        assert search(store, "elder tea").keys() == {"first"}
        assert store.info(pool()).without_vector_count == 0
        open_store(SPACE).append(batch)
    assert search(store, "elder tea")["m2"].similarity == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("number", range(4))
def test_a_removal_that_dies_between_two_requests_can_be_repeated(
    server: Server, open_store: OpenStore, number: int
) -> None:
    store = open_store(SPACE)
    store.append([record("m", text="elder tea", labels={"a": "1"}), record("n")])
    die_at(server, number)
    with pytest.raises(Dead):
        store.remove([Ref(MEMORY, "ann", "m", 1)])
        raise Dead
    live(server)
    seen(open_store(SPACE), pool(state="any"))
    open_store(SPACE).remove([Ref(MEMORY, "ann", "m", 1)])
    held = [
        point
        for part, points in server.parts.items()
        for point in points.values()
        if part.kind is not Kind.LABELS
    ]
    assert "elder" not in repr(server.parts)
    assert {name.rpartition("/")[2] for name, *_ in held} == {"n"}


@pytest.mark.parametrize("verb", ["forget", "forget_where"])
def test_a_removal_that_loses_its_server_reports_its_outcome(
    server: Server, open_store: OpenStore, verb: str
) -> None:
    """The server is gone for one request or for good; a second removal finishes the first."""
    said: Counter[str] = Counter()
    for number, forever in itertools.product(range(12), (False, True)):
        live(server)
        with Memories(open_store(SPACE), embedder="fake") as memories:
            made = memories.create(
                f"elder tea {number}", tags={"project": "alpha"}, force=True
            ).memory
            assert made is not None
            arguments = (made.id,) if verb == "forget" else ("project = alpha",)
            left = [number]

            def before(name: str, left: list[int] = left, forever: bool = forever) -> None:
                if name in {"add", "update", "delete", "set_state"} or (forever and left[0] < 0):
                    left[0] -= 1
                    if left[0] == -1 or (forever and left[0] < 0):
                        raise StoreUnreachable("the server does not answer; nothing was written")

            server.before = before
            try:
                getattr(memories, verb)(*arguments)
                told = "done"
            except ErasureUnfinished as exc:
                told = str(exc)
                assert told.endswith("(the server does not answer); forget it again")
            except StoreUnreachable:
                told = "nothing"
            live(server)
            there = made.id in {found.id for found in memories.list().memories}
            assert there == (told == "nothing") or "may or may not" in told, told
            said[told.partition(" (")[0]] += 1
            with contextlib.suppress(NotFound):
                getattr(memories, verb)(*arguments)
            assert made.id not in {found.id for found in memories.list().memories}
    assert len(said) >= 3, said


def test_remains_of_a_dead_transaction_are_removed_with_the_memory(
    server: Server, open_store: OpenStore
) -> None:
    store = open_store(SPACE)
    store.append([record("m", text="apple"), record("n", text="pear")])
    die_at(server, 3)  # labels, vectors and the pending record have been written
    with pytest.raises(Dead):
        update(store)
    live(server)
    records = server.parts[Partition(Kind.RECORDS, MEMORY, "ann")]
    assert records.keys() == {"1/m", "2/m", "1/n"}
    open_store(SPACE).remove([Ref(MEMORY, "ann", "m", 1)])
    assert records.keys() == {"1/n"}
    assert (
        sum(len(points) for part, points in server.parts.items() if part.kind is Kind.VECTORS) == 1
    )


@pytest.mark.parametrize("number", range(8))
def test_a_change_of_space_that_dies_between_two_requests_can_be_repeated(
    server: Server, open_store: OpenStore, number: int
) -> None:
    other = SPACE._replace(model="other/1")
    store = open_store(SPACE)
    store.append([record("m", text="apple"), turn(1, text="apple")])

    def move() -> None:
        mover = open_store(SPACE)
        for collection in (MEMORY, HISTORY):
            found = mover.unstaged(other, collection, limit=9)
            mover.stage(other, {entry.ref: embed(entry.text) for entry in found})
        mover.switch(other)

    die_at(server, number)
    with pytest.raises(Dead):
        move()
        raise Dead
    live(server)
    used = other if open_store(None).info(pool()).model == "other/1" else SPACE
    assert search(open_store(used), "apple")["m"].similarity == pytest.approx(1.0, abs=0.01)
    move()
    assert search(open_store(other), "apple")["m"].similarity == pytest.approx(1.0, abs=0.01)
    assert len({part.space for part in server.parts if part.kind is Kind.VECTORS}) <= 2
    third = SPACE._replace(model="third/1")
    open_store(other).stage(third, {Ref(MEMORY, "ann", "m", 1): embed("apple")})
    assert len({part.space for part in server.parts if part.kind is Kind.VECTORS}) == 2


# --- two machines


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("same_key", [False, True])
def test_two_machines_that_write_the_same_position_or_key_concurrently_conflict(
    server: Server, open_store: OpenStore, in_transaction: bool, same_key: bool
) -> None:
    """The other machine writes after the check that the place is free, just before the record is
    added.
    """
    here, elsewhere = open_store(SPACE), open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
    here.append([record("old")])
    theirs = record("theirs" if same_key else "m", text="theirs", key="k" if same_key else None)
    mine = record("m", text="mine", key="k" if same_key else None)

    def before(name: str) -> None:
        if name == "add" and theirs.ref not in done:
            done.append(theirs.ref)
            elsewhere.append([theirs])

    done: list[Ref] = []
    server.before = before
    with pytest.raises(Conflict):
        if in_transaction:
            with here.transaction():
                here.patch([Patch(Ref(MEMORY, "ann", "old", 1), at(9), "delete", {})])
                here.append([record("new"), mine])
        else:
            here.append([record("new"), mine])
    live(server)
    assert {entry.text for entry in everything(open_store(SPACE), pool())} == {
        "theirs",
        "note old 1",
    }
    assert open_store(SPACE).count(pool()) == 2
    assert search(open_store(SPACE), "mine").keys() == {"old", theirs.ref.group}
    vectors = [points for part, points in server.parts.items() if part.kind is Kind.VECTORS]
    assert sum(map(len, vectors)) == 2


def test_a_transaction_whose_pending_record_was_removed_gets_a_conflict(
    server: Server, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow transaction was considered dead; the other machine's writes are kept."""
    here, elsewhere = open_store(SPACE), open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
    here.append([record("m", text="apple")])

    def before(name: str) -> None:
        if name == "update":
            live(server)
            monkeypatch.setattr(remote_changes.time, "time", lambda: 4e9)
            elsewhere.append([record("m", 2, text="theirs")])

    server.before = before
    with pytest.raises(Conflict):
        update(here)
    assert [entry.text for entry in everything(open_store(SPACE), pool())] == ["apple", "theirs"]


def test_a_pending_write_by_another_machine_is_neither_visible_nor_overwritten(
    server: Server, open_store: OpenStore
) -> None:
    here, elsewhere = open_store(SPACE), open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
    here.append([record("m", text="apple", key="k")])
    looked: list[str] = []

    def before(name: str) -> None:
        if name == "update":
            live(server)
            assert any(
                point.payload.get("ended") == PENDING
                for points in server.parts.values()
                for point in points.values()
            )
            assert [entry.ref.position for entry in everything(elsewhere, pool())] == [1]
            assert elsewhere.count(pool(state="any")) == 1
            assert elsewhere.namespaces(MEMORY) == ["ann"]
            for late in (record("m", 2), record("n", key="k")):
                with pytest.raises(Conflict):
                    elsewhere.append([late])
            looked.append(name)

    server.before = before
    update(here)
    assert looked == ["update"]
    assert [entry.text for entry in everything(elsewhere, pool())] == ["apple", "pear"]


def test_a_machine_whose_clock_is_ahead_keeps_pending_writes_by_another(
    server: Server, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = open_store(SPACE), open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
    here.append([record("m", text="apple", key="k")])
    told: list[str] = []

    def before(name: str) -> None:
        if name == "update":
            live(server)
            now = time.time()
            with monkeypatch.context() as ahead:
                ahead.setattr(remote_changes.time, "time", lambda: now + 3_600)
                for late in (record("m", 2, text="theirs"), record("n", key="k")):
                    with pytest.raises(Conflict, match="try again in a minute"):
                        elsewhere.append([late])
                told.extend(elsewhere.remove([Ref(MEMORY, "ann", "m", 9)]))

    server.before = before
    update(here)
    assert [entry.text for entry in everything(elsewhere, pool())] == ["apple", "pear"]
    assert "version 2 of m, which another machine is writing; remove it in a minute" in told


def test_dead_writes_by_another_machine_are_removed_after_a_minute(
    server: Server, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minute is measured with the clock of the machine that looks, which is hours behind. Each
    look may happen in a different process.
    """
    here = open_store(SPACE)
    here.append([record("m", text="apple", key="k")])
    die_at(server, 3)  # after the pending record was added, before the update
    with pytest.raises(Dead):
        update(here)
    live(server)
    assert "2/m" in server.parts[Partition(Kind.RECORDS, MEMORY, "ann")]
    behind = time.time() - 10_000
    for passed in (0, 30, 59):
        monkeypatch.setattr(remote_changes.time, "time", lambda passed=passed: behind + passed)
        with pytest.raises(Conflict):
            update(open_store.elsewhere(SPACE))  # type: ignore[attr-defined]
    monkeypatch.setattr(remote_changes.time, "time", lambda: behind + 61)
    update(open_store.elsewhere(SPACE))  # type: ignore[attr-defined]
    assert [entry.text for entry in everything(open_store(SPACE), pool())] == ["apple", "pear"]


def test_a_damaged_file_of_pending_writes_restarts_the_minute(tmp_path: Path) -> None:
    pending = Point(
        "1/m", {"ended": PENDING, "body": '{"writer": "w"}', "pending.since": int(time.time())}
    )
    seen = tmp_path / "x.seen"
    for text in ("{", "[]", '{"w": "x"}'):
        seen.write_text(text)
        assert not remote_changes.WriterLock("here", seen).has_died(pending)
        assert "w" in seen.read_text()
    with pytest.raises(StoreError, match="cannot write"):
        remote_changes.WriterLock("here", tmp_path / "x.seen" / "y").has_died(pending)


def test_a_writer_presumed_dead_before_its_last_step_changes_nothing(
    server: Server, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction whose new version is gone doesn't end the old version."""
    here, elsewhere = open_store(SPACE), open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
    here.append([record("m", text="apple", key="k")])

    def before(name: str) -> None:
        if name == "find" and "2/m" in server.parts[Partition(Kind.RECORDS, MEMORY, "ann")]:
            live(server)
            monkeypatch.setattr(remote_changes.time, "time", lambda: 4e9)
            elsewhere.append([record("m", 2, text="theirs")])

    server.before = before
    with pytest.raises(Conflict):
        update(here)
    found = [(entry.text, entry.ended_at) for entry in everything(open_store(SPACE), pool())]
    assert found == [("apple", None), ("theirs", None)]


def test_log_entries_of_two_machines_form_one_chain(server: Server, open_store: OpenStore) -> None:
    mine, theirs = open_memories(open_store(SPACE)), open_memories(open_store.elsewhere(SPACE))  # type: ignore[attr-defined]
    mine.create("the first statement", force=True)
    theirs.create("the second statement", force=True)
    left = [3]

    def before(name: str) -> None:
        if name == "add" and left[0]:  # the other machine is faster
            left[0] -= 1
            live(server)
            theirs.create(f"statement {left[0]} in between", force=True)
            server.before = before

    server.before = before
    mine.create("the last statement", force=True)
    live(server)
    found = check(mine)
    assert (found.entries, found.problem, found.forks, found.unlogged) == (6, None, (), 0)


def test_a_write_that_another_machine_caused_to_fail_is_logged_as_undone(
    server: Server, open_store: OpenStore
) -> None:
    mine, theirs = open_memories(open_store(SPACE)), open_memories(open_store.elsewhere(SPACE))  # type: ignore[attr-defined]
    made = mine.create("Deploys happen on Tuesdays", force=True).memory
    assert made is not None

    def before(name: str) -> None:
        if name == "add":
            live(server)
            theirs.update(made.id, "Deploys happen on Fridays")

    server.before = before
    with pytest.raises(Conflict):
        mine.update(made.id, "Deploys happen on Mondays")
    live(server)
    found = check(mine)
    assert found.problem is None
    told_of = [[change.action for change in entry.changes] for entry in mine.log(limit=9)]
    assert sorted(told_of) == [["create"], ["undone"], ["update"], ["update"]]


@pytest.mark.parametrize("number", range(12))
def test_stored_records_are_in_the_log_whenever_the_writer_dies(
    server: Server, open_store: OpenStore, number: int
) -> None:
    memories = open_memories(open_store(SPACE))
    made = memories.create("Deploys happen on Tuesdays", force=True, key="deploy").memory
    assert made is not None
    die_at(server, number)
    with pytest.raises(Dead):
        memories.update(made.id, "Deploys happen on Fridays")
        memories.create("Lunch is at noon", force=True)
        raise Dead
    live(server)
    again = open_memories(open_store(SPACE))
    assert check(again).problem is None
    again.create("Dinner is at eight", force=True)
    again.update(made.id, "Deploys happen on Mondays")
    assert check(again).problem is None


def test_a_label_is_kept_if_one_machine_writes_it_while_another_removes_it(
    server: Server, open_store: OpenStore
) -> None:
    """The writer found the label and didn't add it; then the last record with it is removed."""
    here, elsewhere = open_store(SPACE), open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
    here.append([record("old", labels={"a": "1"})])

    def before(name: str) -> None:
        if name == "add":
            live(server)
            elsewhere.remove([Ref(MEMORY, "ann", "old", 1)])
            assert elsewhere.values(MEMORY, ["ann"], "a") == []

    server.before = before
    here.append([record("new", labels={"a": "1"})])
    assert here.values(MEMORY, ["ann"], "a") == ["1"]


def test_a_label_is_kept_if_it_is_written_while_it_seems_unused(
    server: Server, open_store: OpenStore
) -> None:
    here, elsewhere = open_store(SPACE), open_store.elsewhere(SPACE)  # type: ignore[attr-defined]
    here.append([record("old", labels={"a": "1", "b": "2"})])
    deletes: list[str] = []

    def before(name: str) -> None:
        if name == "delete":
            deletes.append(name)
            if len(deletes) == 3:  # labels are deleted after vectors and records
                live(server)
                elsewhere.append([record("new", labels={"a": "1"})])

    server.before = before
    here.remove([Ref(MEMORY, "ann", "old", 1)])
    assert here.values(MEMORY, ["ann"], "a") == ["1"]
    assert here.values(MEMORY, ["ann"], "b") == []


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_write_that_loses_its_server_reports_that_it_may_be_stored(
    server: Server, open_store: OpenStore, in_transaction: bool
) -> None:
    store = open_store(SPACE)
    store.append([record("m")])

    def before(name: str) -> None:
        if name == "get" and "1/n" in server.parts[Partition(Kind.RECORDS, MEMORY, "ann")]:
            raise StoreUnreachable("Cannot connect to it.")

    server.before = before
    with pytest.raises(
        StoreUnreachable, match="may or may not be stored; check before you write it again"
    ):
        if in_transaction:
            with store.transaction():
                store.patch([Patch(Ref(MEMORY, "ann", "m", 1), at(9), "delete", {})])
                store.append([record("n")])
        else:
            store.append([record("n")])
    live(server)
    assert store.count(pool()) == (1 if in_transaction else 2)


def test_a_removal_names_the_places_that_may_still_hold_the_bytes(open_store: OpenStore) -> None:
    store = open_store(SPACE)
    store.append([record("m")])
    assert store.remove([Ref(MEMORY, "ann", "m", 1)]) == ("the files of memory://here",)


def test_the_info_names_the_collection_and_no_size(open_store: OpenStore) -> None:
    info = open_store(SPACE).info(pool())
    assert (info.collection, info.size_bytes) == ("here", None)


# --- costs, and refused requests


def test_operations_need_few_requests(server: Server, open_store: OpenStore) -> None:
    store = open_store(SPACE)
    store.append([record(f"m{number:02}", text=f"apple number {number}") for number in range(60)])

    def cost(do: Callable[[], object]) -> int:
        server.requests.clear()
        do()
        return server.requests.total()

    assert cost(lambda: store.append([record("x")])) <= 7
    assert cost(lambda: store.scan(pool(), limit=10, newest_first=True)) == 2
    assert cost(lambda: store.read([Ref(MEMORY, "ann", "m01", 1)])) == 1
    assert cost(lambda: store.scan(pool(key="k"), limit=1)) == 1
    words = ["apple", "number"]
    assert cost(lambda: store.candidates(pool(), vector=embed("apple")[0], terms=words, k=10)) <= 8
    assert (
        cost(lambda: store.patch([Patch(Ref(MEMORY, "ann", "m01", 1), at(9), "delete", {})])) == 2
    )
    assert cost(lambda: store.append([record("y", labels={"a": "1"})])) <= 10
    narrow = pool(labels={"a": "1"})
    assert cost(lambda: store.candidates(narrow, vector=embed("apple")[0], terms=[], k=10)) == 3


def test_a_search_reads_few_more_records_than_it_returns(
    server: Server, open_store: OpenStore
) -> None:
    """If better records have ended, it reads more, in few requests."""
    store: Any = open_store(SPACE)
    vectors = unit_vectors(300)
    store.append([record(f"m{n:03}", text="x", vectors=vectors[[n]]) for n in range(300)])
    asked: list[int] = []
    get = store._driver.get
    store._driver.get = lambda part, ids: asked.append(len(ids)) or get(part, ids)
    query = vectors[7]
    best = sorted(range(300), key=lambda n: -float(vectors[n] @ query))

    def found(k: int) -> set[int]:
        asked.clear()
        hits = store.candidates(pool(), vector=query, terms=[], k=k)
        return {int(hit.record.ref.group[1:]) for hit in hits}

    assert found(10) == set(best[:10])
    assert asked == [12]
    store.patch([Patch(Ref(MEMORY, "ann", f"m{n:03}", 1), at(9), "delete", {}) for n in best[:150]])
    assert found(10) == set(best[150:160])
    assert len(asked) <= 8


def test_a_search_of_many_turns_returns_the_best_with_their_neighbours(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_search, "SMALL", 50)
    store = open_store(SPACE)
    vectors = unit_vectors(300)
    store.append(
        [
            turn(
                number,
                text=f"w{number} common",
                vectors=vectors[[number]],
                session=number // 10 * 10,
            )
            for number in range(300)
        ]
    )
    matches = store.matches(turns(), TurnQuery(vectors[205], ["w47"], 3))
    positions = {ref.position for ref in refs_of(matches)}
    assert {45, 46, 47, 48, 49, 203, 204, 205, 206, 207} <= positions
    assert 50 not in positions  # a neighbour, but in another session
    assert len(positions) < 40
    assert matches.searched == 300
    assert not np.isnan(matches.similarity).any()
    days = store.matches(turns(), TurnQuery(None, ["w47"], 3, days=[(at(100), at(104))]))
    assert {100, 101, 102, 103, 104} <= {ref.position for ref in refs_of(days)}
    narrow = store.matches(turns(labels={"no": "such"}), TurnQuery(vectors[205], ["common"], 3))
    assert refs_of(narrow) == []
    assert len(refs_of(matching(store, "w47", turns(group="talk", until=at(9))))) == 10


def test_better_ended_matches_do_not_crowd_out_live_ones(open_store: OpenStore) -> None:
    store = open_store(SPACE)
    ended: dict[str, Any] = {"ended_at": at(9), "ended_by": "update"}
    store.append([record("m", number, text="red green blue", **ended) for number in range(900)])
    store.append([record("mine", text="red with several other words that make it match less well")])
    assert set(search(store, "red green blue", k=3)) == {"mine"}


def test_a_narrow_filter_reaches_records_far_from_the_query(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(SPACE)
    vectors = unit_vectors(400)
    store.append(
        [
            record(
                f"m{number:03}", text="x", vectors=vectors[[number]], labels={"n": str(number % 40)}
            )
            for number in range(400)
        ]
    )
    query = unit_vectors(1, seed=2)[0]
    expected = sorted(range(7, 400, 40), key=lambda number: -float(vectors[number] @ query))
    for among in (500, 2):  # scores all of them, or scans the whole pool
        monkeypatch.setattr(remote_search, "_MAX_SCORED", among)
        found = store.candidates(pool(labels={"n": "7"}), vector=query, terms=[], k=4)
        assert {int(candidate.record.ref.group[1:]) for candidate in found} == set(expected[:4])


def test_a_changed_document_is_reported_as_damage(server: Server, open_store: OpenStore) -> None:
    store = open_store(SPACE)
    store.append([record("m")])
    part = Partition(Kind.RECORDS, MEMORY, "ann")
    for payload in ({"body": "{"}, {"body": '{"text": "x"}'}, {"created": "x"}):
        point = server.parts[part]["1/m"]
        server.parts[part]["1/m"] = point._replace(payload={**point.payload, **payload})
        assert store.read([Ref(MEMORY, "ann", "m", 1)]) == []
        assert [finding.ref for finding in store.damaged.since()] == [Ref(MEMORY, "ann", "m", 1)]
        assert [finding.ref for finding in store.check(deep=True)] == [Ref(MEMORY, "ann", "m", 1)]
        server.parts[part]["1/m"] = point
    assert store.read([Ref(MEMORY, "ann", "m", 1)])


def test_unreadable_records_can_be_removed(server: Server, open_store: OpenStore) -> None:
    store = open_store(SPACE)
    store.append([record("m", labels={"a": "b"}), record("n")])
    part = Partition(Kind.RECORDS, MEMORY, "ann")
    server.parts[part]["1/m"] = server.parts[part]["1/m"]._replace(
        payload={"group": "m", "ended": LIVE}
    )
    assert store.refs(pool(group="m")) == [Ref(MEMORY, "ann", "m", 1)]
    store.remove([Ref(MEMORY, "ann", "m", 1)])
    assert list(server.parts[part]) == ["1/n"]
    left = [
        name
        for other, points in server.parts.items()
        if other.kind is Kind.VECTORS
        for name in points
    ]
    assert [name.split("/", 2)[-1] for name in left] == ["1/n"]


def test_unlisted_labels_are_reported_and_repaired(server: Server, open_store: OpenStore) -> None:
    store = open_store(SPACE)
    store.append([record("m", labels={"who": "ann"})])
    del server.parts[Partition(Kind.LABELS, MEMORY, "ann")]
    [finding] = store.check(deep=True)
    assert finding.derived
    assert store.repair() == ["1 labels that were missing from a namespace's list"]
    assert store.values(MEMORY, ["ann"], "who") == ["ann"]
    assert list(store.check(deep=True)) == []


def test_a_newer_store_is_refused(server: Server, open_store: OpenStore) -> None:
    server.state = {"schema": "2"}
    store = open_store(SPACE)
    with pytest.raises(SchemaTooNew):
        store.append([record("m")])
    with pytest.raises(SchemaTooNew):
        store.info(pool())
    with pytest.raises(SchemaTooNew):
        search(store, "x")
    assert server.parts == {}


def test_a_writer_that_waits_too_long_for_the_lock_gets_an_error(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_changes, "_BUSY_SECONDS", 0.05)
    first, second = open_store(SPACE), open_store(SPACE)
    with first.transaction(), pytest.raises(StoreBusy, match="memory://here"):
        run_in_thread(lambda: second.append([record("m")]))


def run_in_thread(do: Callable[[], object]) -> None:
    """Run a function in another thread; raise the error that it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(300)
    if raised:
        raise raised[0]


def test_a_lock_that_cannot_be_taken_is_a_one_line_error(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(remote_changes, "_lock_file", lambda url: tmp_path / "file" / "x.lock")
    with pytest.raises(StoreError, match=r"cannot lock .* to keep out other writers"):
        open_store(SPACE).append([record("m")])


@pytest.mark.skipif(os.name != "posix", reason="requires POSIX permissions")
def test_locks_are_in_a_folder_that_only_the_user_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lock = remote_changes._lock_file("memory://here")
    assert lock.parent == tmp_path / "memories" / "locks"
    assert lock.parent.stat().st_mode & 0o777 == 0o700
    assert remote_changes._lock_file("memory://elsewhere") != lock
    lock.parent.chmod(0o777)
    with pytest.raises(StoreError, match=r"folder for locks.*is writable by everyone"):
        remote_changes._lock_file("memory://here")


def test_vectors_are_not_staged_beside_unwritten_records(open_store: OpenStore) -> None:
    store = open_store(SPACE)
    with pytest.raises(StoreError, match="end it first"), store.transaction():
        store.append([record("m")])
        store.stage(SPACE, {Ref(MEMORY, "ann", "m", 1): embed("x")})
    assert store.count(pool()) == 0


def test_many_records_in_one_transaction_become_visible_together(
    server: Server, open_store: OpenStore
) -> None:
    """There are too many for one request, and none is visible before all are written."""
    store = open_store(SPACE)
    store.append([record("first")])
    counted: list[int] = []

    def before(name: str) -> None:
        if name in ("add", "update"):
            counted.append(
                sum(
                    p.payload.get("ended", PENDING) != PENDING
                    for p in list(server.parts[records].values())
                )
            )

    records = Partition(Kind.RECORDS, MEMORY, "ann")
    server.before = before
    store.append([record(f"m{number:04}", text="x", vectors=None) for number in range(2_500)])
    live(server)
    assert set(counted) == {1}
    assert store.count(pool()) == 2_501


def test_a_very_common_word_is_counted_but_not_searched(
    server: Server, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores stay nearly the same. If there is no rarer word, the common word is searched."""
    store = open_store(SPACE)
    store.append(
        [record(f"m{n:03}", text=f"apple w{n % 7} x{n}", vectors=None) for n in range(300)]
    )
    exact = by_words(store, ["apple", "x17"], k=500)
    monkeypatch.setattr(remote_search, "_ALL_TERMS", 200)
    server.requests.clear()
    assert by_words(store, ["apple", "x17"], k=500) == pytest.approx(
        {"m017": exact["m017"]}, rel=0.02
    )
    assert server.requests["holders"] == 1
    assert len(by_words(store, ["apple"], k=500)) == 300


# --- a server by HTTP


class Handler(BaseHTTPRequestHandler):
    """Answers each request with {}; the path can request a status, or a connection that breaks."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer would wait for a delayed acknowledgement

    def do_GET(self) -> None:
        if self.path == "/cut":
            self.close_connection = True
            return
        self.send_response(int(self.path.rpartition("=")[2] or 200) if "=" in self.path else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def client() -> Iterator[StoreClient]:
    """A client of a server that answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        client = StoreClient(
            Address("Product", "127.0.0.1", http.server_port, False, {}, "Is it running?")
        )
        yield client
        client.close()
        http.shutdown()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreClient]:
    """A client of a server that accepts connections and never answers."""
    monkeypatch.setattr(client_module, "_READ_SECONDS", 0.2)
    monkeypatch.setattr(client_module, "_WRITE_SECONDS", 0.6)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listening:
        client = StoreClient(
            Address("Product", "127.0.0.1", listening.getsockname()[1], False, {}, "Is it running?")
        )
        yield client
        client.close()


def test_threads_that_end_leave_no_connection_behind(client: StoreClient) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    client.ask("GET", "/")
    before = descriptors()
    for _ in range(40):
        run_in_thread(lambda: client.ask("GET", "/"))
    assert descriptors() <= before + 2


def test_many_threads_can_send_requests_concurrently(client: StoreClient) -> None:
    wrong: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(30):
                assert client.ask("GET", "/").value == {}
        except BaseException as exc:  # noqa: BLE001 - shown below
            wrong.append(exc)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert wrong == []


def test_a_forked_process_opens_its_own_connection(client: StoreClient) -> None:
    client.ask("GET", "/")
    parents = client._client._pool
    child = os.fork()
    if child == 0:
        answer = client.ask("GET", "/")
        has_own_pool = answer.status == 200 and client._client._pool is not parents
        os._exit(0 if has_own_pool else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.ask("GET", "/").status == 200
    assert client._client._pool is parents
    assert client._client._count_connections() == 1


def test_a_client_waits_only_once_for_a_silent_server(
    silent: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        StoreUnreachable, match=r"Product at .* did not answer within 0\.2 seconds; check whether"
    ):
        silent.ask("GET", "/")
    now = time.monotonic()
    monkeypatch.setattr(client_module.time, "monotonic", lambda: now)
    for writes in (False, True):
        with pytest.raises(StoreUnreachable, match="did not answer a moment ago"):
            silent.ask("GET", "/", writes=writes)
    monkeypatch.setattr(client_module.time, "monotonic", lambda: now + 11)
    with pytest.raises(StoreUnreachable, match="did not answer within"):
        silent.ask("GET", "/")


@pytest.mark.parametrize("tls", [False, True])
def test_a_silent_name_server_does_not_extend_the_time_to_connect(
    monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    is_over = threading.Event()

    def look_up(*_: Any) -> Any:
        is_over.wait(60)
        raise socket.gaierror("no name server answered")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.2)
    client = JsonClient(Address("Product", "server.example", 443, tls))
    with pytest.raises(TimedOut, match=r"^did not answer within 0\.2 seconds$") as caught:
        client.ask("GET", "/", seconds=120)
    is_over.set()
    assert not caught.value.sent
    client.close()


def test_a_write_waits_longer_and_may_be_stored(silent: StoreClient) -> None:
    with pytest.raises(
        StoreUnreachable,
        match=r"within 0\.6 seconds; the write may or may not be stored; check",
    ):
        silent.ask("POST", "/", {}, writes=True)


def test_reads_wait_10_seconds_and_writes_120() -> None:
    assert (client_module._READ_SECONDS, client_module._WRITE_SECONDS) == (10, 120)


@pytest.mark.parametrize("kept", [False, True])
def test_only_a_write_whose_connection_breaks_may_be_stored(
    client: StoreClient, kept: bool
) -> None:
    for writes, said in (
        (False, "check whether it is running, and try again"),
        (True, "may or may not be stored; check before"),
    ):
        if kept:
            client.ask("GET", "/")
        with pytest.raises(StoreUnreachable, match=said):
            client.ask("GET", "/cut", writes=writes)


def test_a_quoted_server_message_contains_no_key() -> None:
    address = Address(
        "Product", "db", 1, False, {"Authorization": "Bearer s3cret-key"}, "Is it running?"
    )
    told = StoreClient(address).refusal(
        ServerResponse(403, {"message": "no such\nkey: s3cret-key."}), "writing"
    )
    assert str(told) == (
        "Product at db:1 refused a request (writing) with status 403: "
        '{"message": "no such\\nkey: ***."}'
    )


def test_a_write_that_a_proxy_gave_up_on_may_be_stored(client: StoreClient) -> None:
    assert client.ask("GET", "/?status=504").status == 504
    with pytest.raises(StoreUnreachable, match=r"status 504.*may or may not be stored"):
        client.ask("GET", "/?status=504", writes=True)


def test_a_write_whose_server_stops_before_the_retry_may_be_stored() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = StoreClient(
            Address("Product", "127.0.0.1", listening.getsockname()[1], False, {}, "Is it running?")
        )

        def serve() -> None:
            accepted, _ = listening.accept()
            accepted.recv(10_000)
            accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            accepted.recv(10_000)
            listening.close()
            accepted.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert client.ask("GET", "/").status == 200
        with pytest.raises(StoreUnreachable, match="may or may not be stored"):
            client.ask("GET", "/", writes=True)
        thread.join(300)
        with pytest.raises(
            StoreUnreachable, match=r"Cannot connect to Product at .*\. Is it running\?"
        ):
            client.ask("GET", "/", writes=True)


@pytest.mark.parametrize(
    ("query", "tls"),
    [
        ("", None),
        ("ssl=true", True),
        ("tls=1", True),
        ("tls=NO", False),
        ("ssl=0", False),
        ("ssl=1&tls=1", True),
    ],
)
def test_a_url_parameter_selects_tls(query: str, tls: bool | None) -> None:
    assert parse_tls(query, "Product") is tls


@pytest.mark.parametrize("query", ["tls=maybe", "tls=", "key=x", "ssl=1&tls=0", "ssl=1&x=1", "&"])
def test_other_parameters_of_a_url_are_refused(query: str) -> None:
    with pytest.raises(ConfigError, match="the URL of a Product store can have only"):
        parse_tls(query, "Product")
