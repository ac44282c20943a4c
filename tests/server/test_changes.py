"""The stream of changes: a listener gets every write, even those of other processes."""

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from live_server import WAIT, Live, running
from memories import Memories
from memories.identity import namespaces, tokens
from memories.server.api import server, store_routes
from memories.settings import Config
from memories.stores import open_store


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make streams look for changes often."""
    monkeypatch.setattr(server, "POLL_SECONDS", 0.05)


@contextlib.contextmanager
def listening(live: Live, *headers: str, query: str = "") -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the events as they arrive."""
    with contextlib.closing(
        socket.create_connection(("127.0.0.1", live.port), timeout=WAIT)
    ) as line:
        head = live.head(f"GET /api/changes{query} HTTP/1.1", "Connection: close", *headers)
        line.sendall(head)
        with line.makefile("rb") as stream:
            yield _events(stream)


def _events(stream: Any) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream."""
    event: dict[str, Any] = {}
    for raw in stream:
        name, _, value = raw.decode().rstrip("\r\n").partition(": ")
        if name in ("id", "event"):
            event[name] = value
        elif name == "data":
            event["data"] = json.loads(value)
        elif not name and "data" in event:
            yield event
            event = {}


def test_a_head_request_opens_no_stream(live: Live) -> None:
    head = live.head("HEAD /api/changes HTTP/1.1")
    assert live.send(head + live.head("GET /health HTTP/1.1", "Connection: close")) == [200, 200]


def test_a_write_by_another_process_is_sent(live: Live, config: Config) -> None:
    with listening(live) as events:
        assert next(events)["event"] == "ready"
        with Memories(config=config) as other:
            made = other.create("Deploys happen on Tuesdays").memory
            assert made is not None
            other.delete(made.id)
        told = [next(events)["data"] for _ in range(2)]
    assert [each["changes"][0]["action"] for each in told] == ["create", "delete"]
    assert {each["changes"][0]["id"] for each in told} == {made.id}
    assert "Tuesdays" not in json.dumps(told)


def test_missed_changes_are_sent_after_a_reconnection(live: Live, config: Config) -> None:
    with listening(live) as events:
        last = next(events)["id"]
    with Memories(config=config) as other:
        for number in range(3):
            other.create(f"Fact number {number}", force=True)
    with listening(live, f"Last-Event-ID: {last}") as events:
        assert next(events)["event"] == "ready"
        found = [next(events) for _ in range(3)]
    assert [each["data"]["number"] for each in found] == [1, 2, 3]
    with listening(live, f"Last-Event-ID: {found[1]['id']}") as events:
        next(events)
        assert next(events)["data"]["number"] == 3


def test_a_stream_that_breaks_before_sending_missed_changes_loses_none(
    live: Live, config: Config
) -> None:
    with Memories(config=config) as other:
        for number in range(3):
            other.create(f"Fact number {number}", force=True)
    with listening(live, "Last-Event-ID: shared:1") as events:
        last = next(events)["id"]
    with listening(live, f"Last-Event-ID: {last}") as events:
        next(events)
        assert [next(events)["data"]["number"] for _ in range(2)] == [2, 3]


def test_the_case_of_a_namespace_in_an_id_does_not_matter(live: Live, config: Config) -> None:
    with Memories(config=config) as other:
        other.create("Deploys happen on Tuesdays")
    with listening(live, "Last-Event-ID: SHARED:0") as events:
        next(events)
        assert next(events)["data"]["number"] == 1


def test_a_listener_must_reload_when_a_namespace_is_erased(live: Live, config: Config) -> None:
    with Memories(config=config) as other:
        for number in range(3):
            other.create(f"Fact number {number}", force=True)
        with listening(live) as events:
            last = next(events)["id"]
            with contextlib.closing(open_store(config.store, None, config)) as store:
                namespaces.delete(store, config, "shared")
            reset = next(events)
            assert (reset["event"], reset["id"]) == ("reset", "shared:0")
            other.create("The first of a new log")
            assert next(events)["data"]["number"] == 1
    with listening(live, f"Last-Event-ID: {last}") as events:
        next(events)
        assert next(events)["event"] == "reset"


def test_a_listener_that_missed_too_much_must_reload(
    live: Live, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_routes, "MAX_MISSED", 2)
    with Memories(config=config) as other:
        for number in range(4):
            other.create(f"Fact number {number}", force=True)
    with listening(live, "Last-Event-ID: shared:0") as events:
        next(events)
        assert next(events)["event"] == "reset"


def test_a_stream_contains_only_what_its_token_may_read(
    live: Live, config: Config, token: Any
) -> None:
    live.token = token("bob:r")["authorization"].removeprefix("Bearer ")
    with listening(live) as events:
        assert next(events)["data"]["namespaces"] == ["bob"]
        for namespace in ("ann", "shared", "bob"):
            with Memories(config=config, namespace=namespace) as other:
                other.create(f"Of {namespace}")
        assert next(events)["data"]["namespace"] == "bob"


def test_a_change_written_while_changes_are_read_is_sent_too(
    live: Live, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Memories.log
    with Memories(config=config) as other, listening(live) as events:
        assert next(events)["event"] == "ready"

        def slow(memories: Memories, *given: Any, **named: Any) -> Any:
            monkeypatch.setattr(Memories, "log", own)
            other.create("Written between the two looks", force=True)
            return own(memories, *given, **named)

        monkeypatch.setattr(Memories, "log", slow)
        for number in range(2):
            other.create(f"Fact number {number}", force=True)
        assert [next(events)["data"]["number"] for _ in range(2)] == [1, 2]


def test_even_a_busy_stream_ends_when_its_token_is_revoked(
    live: Live, config: Config, token: Any
) -> None:
    live.token = token("bob:r", name="gone")["authorization"].removeprefix("Bearer ")
    with listening(live) as events, Memories(config=config, namespace="bob") as other:
        assert next(events)["event"] == "ready"
        other.create("Before")
        assert next(events)["event"] == "change"
        tokens.revoke(config.home, "gone")
        other.create("After")
        assert list(events) == []


@pytest.mark.parametrize("wrong", ["x", "7", "shared:", "shared:-1", ":", "shared:1;bob:2"])
def test_an_id_that_was_never_sent_is_refused(live: Live, wrong: str) -> None:
    status, problem = live.ask("GET", "/api/changes", **{"Last-Event-ID": wrong})
    assert (status, problem["detail"]) == (400, "Last-Event-ID is not an id that this server sent")


@pytest.mark.parametrize("is_of_sender", [False, True])
def test_the_number_of_streams_is_limited_until_one_ends(
    live: Live, monkeypatch: pytest.MonkeyPatch, is_of_sender: bool
) -> None:
    if is_of_sender:
        monkeypatch.setattr(server, "_MAX_STREAMS_OF_A_SENDER", 2)
    else:
        monkeypatch.setitem(server._MAX_WAITING, "stream", 2)
    refused = 429 if is_of_sender else 503
    with listening(live) as first:
        next(first)
        with contextlib.ExitStack() as lines:
            opened = [
                lines.enter_context(
                    contextlib.closing(
                        socket.create_connection(("127.0.0.1", live.port), timeout=WAIT)
                    )
                )
                for _ in range(6)
            ]
            for line in opened:
                line.sendall(live.head("GET /api/changes HTTP/1.1"))
            assert sorted(int(line.recv(12).split()[1]) for line in opened) == [200] + [refused] * 5
        for _ in range(600):  # the server notices that a client has disconnected
            with listening(live) as third:
                if (told := next(third, None)) is not None:
                    break
        assert told is not None
        assert told["event"] == "ready"


def test_streams_do_not_prevent_the_server_from_stopping(config: Config) -> None:
    with contextlib.ExitStack() as open_streams:
        with running(config) as live:
            events = open_streams.enter_context(listening(live))
            assert next(events)["event"] == "ready"
        assert list(events) == []
