"""Several servers over one database carry out a write with an Idempotency-Key once."""

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from memories import Memories
from memories.config import load_config
from memories.stores import claims as rules
from memories.stores.claims import Claim, Taken
from memories.stores.postgres import shared
from memories.stores.postgres.shared import PostgresClaims
from memories.stores.postgres.store import PostgresStore
from postgres_node import Node
from postgres_pooler import pgbouncer, small_pooler

WAIT = 120.0
# A server. If a place is given, it prints "here" at that place and stops for good.
SERVE = """
import sys, time
place = sys.argv[1]
from memories.server.api import routes
from memories.stores.postgres import connection

def stand():
    print("here", flush=True)
    time.sleep(3600)

def before(own):
    return lambda *given, **named: stand()

def after(own):
    def run(*given, **named):
        own(*given, **named)
        stand()
    return run

def in_transaction(own):
    def run(self, opened, *, notify):
        if notify:  # the log is written, so this is not a transaction of the keys
            stand()
        return own(self, opened, notify=notify)
    return run

if place == "begun":
    routes._handle = before(routes._handle)
elif place == "done":
    routes._handle = after(routes._handle)
elif place == "in the transaction":
    connection.Server._commit = in_transaction(connection.Server._commit)
from memories.__main__ import main
sys.argv[1:] = ["serve", "--port", "0"]
main()
"""


class Process:
    """A server process over the database, with its own folder."""

    def __init__(self, home: Path, environment: Mapping[str, str], place: str = "") -> None:
        given = {
            **environment,
            "MEMORY_HOME": str(home),
            "XDG_RUNTIME_DIR": str(home.parent),
            "EMBEDDER": "none",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, place],
            env=given, cwd=home.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        first, _ = self.process.stderr.readline(), self.process.stderr.readline()
        self.port = int(first.rsplit(":", 1)[1])
        self._log = threading.Thread(
            target=self.process.stderr.read
        )  # so that no full pipe blocks the server
        self._log.start()
        self.token = (home / "server.token").read_text().strip()

    def ask(self, path: str, body: Any, key: str, method: str = "POST") -> tuple[int, Any]:
        """Send a write with a key once; return the status and the JSON."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
        }
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        ) as line:
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())

    def insist(self, path: str, body: Any, key: str) -> tuple[int, Any]:
        """Send it again while another server is doing it."""
        until = time.monotonic() + WAIT
        while (answer := self.ask(path, body, key))[0] == 409 and time.monotonic() < until:
            assert "the same request is in progress" in answer[1]["detail"]
            time.sleep(0.05)
        return answer

    def wait_until_stopped(self) -> None:
        """Wait until the server stops at its place."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "here\n"

    def kill(self) -> None:
        self.process.kill()
        self._log.join(WAIT)
        self.process.communicate(timeout=WAIT)


Serve = Callable[..., Process]


@pytest.fixture
def serve(url: str, tmp_path: Path, clean_environment: Mapping[str, str]) -> Iterator[Serve]:
    """Return a function that starts a server over the database."""
    environment = {**clean_environment, "MEMORY_STORE": url}
    made: list[Process] = []

    def start(place: str = "") -> Process:
        made.append(Process(tmp_path / str(len(made)), environment, place))
        return made[-1]

    yield start
    for each in made:
        each.kill()


@pytest.fixture
def memories(url: str, opened: Callable[..., PostgresStore], tmp_path: Path) -> Memories:
    """Memories over the database."""
    config = load_config(
        {"embedder": "none"}, environment={"MEMORY_HOME": str(tmp_path)}, folder=tmp_path
    )
    return Memories(opened(url, None), config=config, embedder="none")


FORCED = "/api/memories", {"content": "Deploys happen on Tuesdays", "force": True}
TURNS = (
    "/api/conversations/standup/turns",
    {"turns": [{"content": "We ship on Friday"}, {"content": "Fine"}]},
)
MANY = (
    "/api/memories/batch",
    {"memories": [{"content": "Ann likes tea"}, {"content": "Bob runs"}], "force": True},
)


def stored(memories: Memories) -> tuple[int, int]:
    """Return the numbers of memories and of turns."""
    turns = sum(each.turn_count for each in memories.list_conversations().conversations)
    return len(memories.list(limit=1000).memories), turns


def test_another_server_answers_a_retry_with_the_first_answer(
    serve: Serve, memories: Memories
) -> None:
    one, other = serve(), serve()
    first = one.ask(*FORCED, "k1")
    assert first[0] == 201
    one.kill()
    assert other.ask(*FORCED, "k1") == other.ask(*FORCED, "k1") == first
    path, body = FORCED
    assert other.ask(path, body | {"content": "Deploys happen on Mondays"}, "k1")[0] == 422
    assert stored(memories) == (1, 0)
    deleted = other.ask(f"{path}/{first[1]['id']}", None, "k2", "DELETE")
    third = serve()
    assert third.ask(f"{path}/{first[1]['id']}", None, "k2", "DELETE") == deleted
    assert deleted[0] == 200


@pytest.mark.parametrize("place", ["begun", "in the transaction", "done"])
@pytest.mark.parametrize(
    ("path", "body", "there"),
    [(*FORCED, (2, 0)), (*TURNS, (1, 2)), (*MANY, (3, 0))],
    ids=["create", "turns", "many"],
)
def test_another_server_completes_a_killed_servers_request_only_once(
    serve: Serve, memories: Memories, place: str, path: str, body: Any, there: tuple[int, int]
) -> None:
    memories.create("Deploys happen on Tuesdays")  # the forced request doesn't repeat this one
    one, other = serve(place), serve()
    with ThreadPoolExecutor(1) as clients:
        lost = clients.submit(one.ask, path, body, "k1")
        one.wait_until_stopped()
        assert other.ask(path, body, "k1")[0] == 409
        assert other.ask(path, body | {"redact": False}, "k1")[0] == 422
        one.kill()
        with pytest.raises((http.client.HTTPException, OSError)):
            lost.result(WAIT)
    answer = other.insist(path, body, "k1")
    assert answer[0] in (200, 201), answer[1]
    assert stored(memories) == there
    assert other.insist(path, body, "k1") == answer
    assert stored(memories) == there


def test_a_request_sent_to_two_servers_at_once_with_one_key_is_done_once(
    serve: Serve, memories: Memories
) -> None:
    both = [serve(), serve()]
    path, body = FORCED
    for number in range(10):
        asked, key = body | {"content": f"Fact number {number}"}, str(uuid.uuid4())
        with ThreadPoolExecutor(8) as clients:
            waiting = [clients.submit(both[each % 2].insist, path, asked, key) for each in range(8)]
            answers = [each.result(WAIT) for each in waiting]
        assert {status for status, _ in answers} == {201}
        assert len({claim_key["id"] for _, claim_key in answers}) == 1
    assert stored(memories) == (10, 0)


def test_the_table_contains_neither_content_nor_keys(
    serve: Serve, server: Node, schema: str
) -> None:
    one = serve()
    for number, (path, body) in enumerate((FORCED, TURNS, MANY)):
        assert one.ask(path, body, f"a private key {number}")[0] < 300
    rows = str(server.sql(f"SELECT * FROM {schema}.request"))
    assert rows.count("schema") == 3
    for word in ("Tuesdays", "Friday", "Ann", "standup", "private"):
        assert word not in rows


# --- the table itself

Open = Callable[..., PostgresClaims]


@pytest.fixture
def keys(url: str, opened: Callable[..., PostgresStore]) -> Iterator[Open]:
    """Return a function that opens the idempotency keys; they are closed at the end."""
    made: list[PostgresClaims] = []

    def open_one(at: str = url) -> PostgresClaims:
        made.append(opened(at, None).claims())
        return made[-1]

    yield open_one
    for each in made:
        each.close()


def claim_key(keys: PostgresClaims, name: str = "n", digest: str = "d") -> Claim:
    """Claim a key."""
    return keys.claim(name, digest, sync=True)


def test_requests_in_progress_are_renewed_after_a_lost_connection(keys: Open, server: Node) -> None:
    one, other = keys(), keys()
    held = claim_key(one)
    assert one._connection is not None
    server.sql("SELECT pg_terminate_backend(%s)", (one._connection.info.backend_pid,))
    claim_key(one, "another")  # on a new connection
    with pytest.raises(Taken) as taken:
        claim_key(other)
    assert not taken.value.other
    one.settle(held, {"status": 201})
    assert claim_key(other).summary == {"status": 201}


def test_requests_in_progress_are_renewed_before_the_lease_expires(
    keys: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = threading.Event()
    own = PostgresClaims._run

    def run(self: PostgresClaims, connection: Any, statement: str, values: Any) -> Any:
        found = own(self, connection, statement, values)
        if statement == shared._RENEW:
            renewed.set()
        return found

    monkeypatch.setattr(PostgresClaims, "_run", run)
    monkeypatch.setattr(shared, "LEASE_SECONDS", 0.0)
    monkeypatch.setattr(shared, "RENEW_SECONDS", 0.01)
    one, other = keys(), keys()
    claim_key(one)
    monkeypatch.setattr(shared, "LEASE_SECONDS", 3600.0)
    renewed.clear()
    assert renewed.wait(WAIT)
    with pytest.raises(Taken):
        claim_key(other)


def test_a_server_whose_lease_expired_cannot_settle_a_request(
    keys: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server is like a machine without power, whose connection the database still
    considers alive.
    """
    monkeypatch.setattr(shared, "LEASE_SECONDS", 0.0)
    one, other, third = keys(), keys(), keys()
    late = claim_key(one)
    monkeypatch.setattr(shared, "LEASE_SECONDS", 3600.0)
    now = claim_key(other)
    assert (late.number, now.number, now.summary) == (1, 2, None)
    assert now.begun_at == late.begun_at  # ids are derived from it
    one.settle(late, {"status": 201})
    with pytest.raises(Taken):
        claim_key(third)
    one.drop(late)
    other.settle(now, {"status": 200})
    assert claim_key(third) == Claim("n", 3, now.begun_at, {"status": 200})


def test_a_key_can_be_reused_after_a_day(keys: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = keys(), keys()
    one.settle(claim_key(one), {"status": 201})
    assert claim_key(other).summary == {"status": 201}
    monkeypatch.setattr(rules, "KEPT_SECONDS", -1)
    other.settle(Claim("n", 2, 0.0), None)
    new = claim_key(other, digest="another")
    assert (new.number, new.summary) == (1, None)


def test_old_keys_are_deleted_from_the_table(
    keys: Open, server: Node, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_KEPT", 5)
    monkeypatch.setattr(shared, "_SWEPT", 10)
    one = keys()
    for number in range(41):
        one.settle(claim_key(one, f"n{number}"), {"status": 201})
    [(count, newest)] = server.sql(f"SELECT count(*), bool_or(name = 'n40') FROM {schema}.request")
    assert (count <= 5 + 10, newest) == (True, True)


@pytest.mark.parametrize("pooler", [small_pooler, pgbouncer])
def test_keys_work_behind_a_pooler_that_shares_sessions(
    keys: Open, server: Node, schema: str, pooler: Callable[..., AbstractContextManager[str]]
) -> None:
    with pooler(server) as pooled:
        at = f"{pooled}?schema={schema}&partitions=2"
        one, other = keys(at), keys(at)
        held = claim_key(one)
        with pytest.raises(Taken):
            claim_key(other)
        one.settle(held, {"status": 201})
        assert claim_key(other).summary == {"status": 201}
        assert server.sql("SHOW synchronous_commit") == [("on",)]
        assert one._connection is not None
        assert one._connection.execute("SHOW synchronous_commit").fetchall() == [("on",)]
        for each in (one, other):  # the pooler waits until all clients have disconnected
            each.close()
            each._server.close()


def test_keys_work_in_a_database_that_is_read_only_by_default(
    keys: Open, url: str, server: Node
) -> None:
    options = (
        "-c%20default_transaction_read_only%3Don"
        "%20-c%20default_transaction_isolation%3Dserializable"
    )
    one = keys(f"{url}&options={options}")
    one.settle(claim_key(one), {"status": 201})
    assert claim_key(one).summary == {"status": 201}
