"""Writes of one server process appear in the streams of another, which doesn't poll PostgreSQL."""

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from contract import record

from memories import Memories
from memories.config import load_config
from memories.stores.postgres import shared
from memories.stores.postgres.store import PostgresStore
from postgres_node import Node

WAIT = 120.0
# A server whose streams look for changes only after a notification.
SERVE = """
import sys
from memories.server.api import server
from memories.stores.postgres import shared
server.POLL_SECONDS = server.PING_SECONDS = 3600.0
shared._FIRST_PAUSE = 0.1
from memories.__main__ import main
sys.argv[1:] = ["serve", "--port", "0"]
main()
"""


class Process:
    """A server process over the database."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        given = {
            **environment,
            "MEMORY_HOME": str(home),
            "XDG_RUNTIME_DIR": str(home.parent),
            "EMBEDDER": "none",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            env=given,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home.parent,
        )
        assert self.process.stderr is not None
        first, _ = self.process.stderr.readline(), self.process.stderr.readline()
        self.port = int(first.rsplit(":", 1)[1])
        self.headers = {
            "Authorization": f"Bearer {(home / 'server.token').read_text().strip()}",
            "Content-Type": "application/json",
        }

    def create(self, content: str) -> None:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        ) as line:
            body = json.dumps({"content": content, "force": True})
            line.request("POST", "/api/memories", body, self.headers)
            assert line.getresponse().status == 201

    @contextlib.contextmanager
    def changes(self) -> Iterator[Iterator[Any]]:
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        ) as line:
            line.request("GET", "/api/changes", headers=self.headers)
            answer = line.getresponse()
            yield (
                json.loads(raw[6:])
                for raw in iter(answer.readline, b"")
                if raw.startswith(b"data: ")
            )


@pytest.fixture
def two_servers(
    url: str, tmp_path: Path, clean_environment: Mapping[str, str]
) -> Iterator[list[Process]]:
    """Two servers over one database."""
    environment = {**clean_environment, "MEMORY_STORE": url}
    with contextlib.ExitStack() as running:
        made = []
        for name in ("one", "other"):
            made.append(Process(tmp_path / name, environment))
            running.callback(made[-1].process.communicate, timeout=WAIT)
            running.callback(made[-1].process.terminate)
        yield made


def test_writes_by_one_process_appear_in_the_streams_of_another(
    two_servers: list[Process], server: Node
) -> None:
    one, other = two_servers
    one.create("Fact 0")
    with one.changes() as mine, other.changes() as theirs:
        for events in (mine, theirs):
            assert "namespaces" in next(events)
        for number in range(2, 6):
            (one if number % 2 else other).create(f"Fact {number}")
            assert [next(events)["number"] for events in (mine, theirs)] == [number, number]
        listening = "FROM pg_stat_activity WHERE query LIKE 'SELECT pg_notify($1%'"
        assert server.sql(f"SELECT pg_terminate_backend(pid) {listening}") == [(True,), (True,)]
        one.create("While nobody listens, or just again")
        assert [next(events)["number"] for events in (mine, theirs)] == [6, 6]
        one.create("Afterwards")
        assert [next(events)["number"] for events in (mine, theirs)] == [7, 7]


def test_no_notification_is_sent_without_a_listener(
    url: str, opened: Callable[..., PostgresStore], tmp_path: Path
) -> None:
    store = opened(url)
    config = load_config(
        {"embedder": "none"}, environment={"MEMORY_HOME": str(tmp_path)}, folder=tmp_path
    )
    memories = Memories(store, config=config, embedder="none")
    memories.create("Before")
    heard: list[int] = []
    with psycopg.connect(store._server.url.full, autocommit=True) as watching:
        watching.execute(f'LISTEN "{store._server.channel}"')
        memories.create("Nobody listens", force=True)
        assert list(watching.notifies(timeout=0)) == []
        told = threading.Event()
        listener = store.listen(lambda: (heard.append(1), told.set()))
        assert told.wait(WAIT)
        assert listener.hearing
        told.clear()
        memories.create("Somebody listens", force=True)
        assert told.wait(WAIT)
        listener.close()
        assert "" in {message.payload for message in watching.notifies(timeout=0)}


def test_a_listener_that_misses_its_own_notification_is_not_used(
    url: str, opened: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens behind a pooler that accepts LISTEN but passes no notifications on."""
    store = opened(url)
    monkeypatch.setattr(shared, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(shared, "_FIRST_PAUSE", 0.0)
    tries = threading.Semaphore(0)
    own = store._server.connect

    def connect() -> Any:
        tries.release()
        return own()

    monkeypatch.setattr(store._server, "connect", connect)
    store.append([record("m")])
    listener = store.listen(lambda: None)
    for _ in range(3):
        assert tries.acquire(timeout=WAIT)
    assert not listener.hearing
    listener.close()
