"""Idempotency keys in a file that all servers of a store share, including killed ones."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from starlette.testclient import TestClient

from memories import Memories
from memories.config import load_config
from memories.identity import tokens
from memories.server.api import idempotency
from memories.server.api.idempotency import FileClaims, Once, file_of
from memories.server.app import Options, build
from memories.settings import Config
from memories.stores import claims
from memories.stores.claims import Claim, Taken
from memories.transfer.backup import back_up, restore

WAIT = 60.0
HOLD = """
import sys, time
from pathlib import Path
from memories.server.api.idempotency import FileClaims
held = FileClaims(Path(sys.argv[1])).claim("n", "d", sync=True)
print("here", flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def app(store: str, home: Path) -> Iterator[TestClient]:
    """Return a client of a server for this store."""
    config = load_config(
        {"store": store, "embedder": "fake"},
        environment={"MEMORY_HOME": str(home)},
        folder=home.parent,
    )
    headers = {"authorization": f"Bearer {tokens.own(home)}"}
    with TestClient(
        build(config, Options(port=8765)), base_url="http://127.0.0.1:8765", headers=headers
    ) as client:
        yield client


def create(client: TestClient, content: str, key: str) -> Any:
    """Create a memory under an idempotency key."""
    return client.post(
        "/api/memories", json={"content": content, "force": True}, headers={"idempotency-key": key}
    )


def test_servers_with_the_same_store_share_keys_across_folders(
    tmp_path: Path, config: Config
) -> None:
    with app(config.store, tmp_path / "one") as one, app(config.store, tmp_path / "other") as other:
        made = create(one, "Deploys happen on Tuesdays", "k1")
        assert create(other, "Deploys happen on Tuesdays", "k1").json() == made.json()
        assert create(other, "Deploys happen on Mondays", "k1").status_code == 422
    with Memories(config=config) as memories:
        assert [memory.id for memory in memories.list().memories] == [made.json()["id"]]


def test_a_retry_after_a_restore_is_stored_again(tmp_path: Path, config: Config) -> None:
    content = "Deploys happen on Tuesdays"
    with app(config.store, config.home) as client:
        create(client, "The office is in Berlin", "k1")
        backup = back_up(config, None, now=datetime.now(UTC), progress=lambda *_: None).file
        create(client, content, "k2")
    restore(config, backup, None, replace=True, now=datetime.now(UTC), progress=lambda *_: None)
    with app(config.store, config.home) as client:
        assert [create(client, content, "k2").status_code for _ in range(2)] == [201, 201]
    with Memories(config=config) as memories:
        assert len(memories.list().memories) == 2


def test_stores_in_one_folder_do_not_share_keys(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("a", "b"):
        with app(f"sqlite:///{home}/{name}.db", home) as client:
            assert create(client, f"Fact {name}", "k1").status_code == 201
    paths = {file_of(load_config({"store": store}, environment={"MEMORY_HOME": str(home)},
    folder=tmp_path)).name
             for store in (f"files:///{home}/x", f"files:///{home}/y", "qdrant://a:1/c",
             "qdrant://b:1/c")}  # fmt: skip
    assert len(paths) == 4


def test_a_request_sent_to_two_servers_with_one_key_is_done_once(
    tmp_path: Path, config: Config
) -> None:
    def insist(client: TestClient, content: str, key: str) -> Any:
        until = time.monotonic() + WAIT
        while (
            answer := create(client, content, key)
        ).status_code == 409 and time.monotonic() < until:
            time.sleep(0.01)
        return answer

    with app(config.store, tmp_path / "one") as one, app(config.store, tmp_path / "other") as other:
        for number in range(3):
            with ThreadPoolExecutor(4) as clients:
                sent = [
                    clients.submit(insist, client, f"Fact {number}", f"k{number}")
                    for client in (one, other, one, other)
                ]
            assert len({each.result().json()["id"] for each in sent}) == 1
    with Memories(config=config) as memories:
        assert len(memories.list(limit=100).memories) == 3


# --- every write

Sent = tuple[str, str, Any, dict[str, str]]
SENT: dict[str, Sent] = {
    "create": ("POST", "/api/memories", {"content": "Ann likes tea"}, {}),
    "create with force": (
        "POST",
        "/api/memories",
        {"content": "Fact about alpha", "force": True},
        {},
    ),
    "many": (
        "POST",
        "/api/memories/batch",
        {"memories": [{"content": "It rains"}, {"content": "It snows"}]},
        {},
    ),
    "update": ("PATCH", "/api/memories/ALPHA", {"content": "Another text"}, {}),
    "update of a version": (
        "PATCH",
        "/api/memories/ALPHA",
        {"content": "Another text"},
        {"if-match": '"1"'},
    ),
    "tags": (
        "PATCH",
        "/api/memories/ALPHA",
        {"tags": {"a": "b"}, "remove_tags": ["n"]},
        {"if-match": '"1"'},
    ),
    "delete": ("DELETE", "/api/memories/ALPHA", None, {}),
    "delete of a version": ("DELETE", "/api/memories/ALPHA", None, {"if-match": '"1"'}),
    "restore": ("POST", "/api/memories/GONE/restore", {}, {}),
    "reinforce": ("POST", "/api/memories/ALPHA/reinforce", {}, {}),
    "confirm": ("POST", "/api/memories/ALPHA/confirm", {}, {}),
    "pin": ("POST", "/api/memories/ALPHA/pin", {}, {}),
    "forget": ("POST", "/api/memories/ALPHA/forget", {}, {}),
    "tags of many": (
        "POST",
        "/api/tags",
        {"where": "n = alpha", "tags": {"z": "1"}, "show": 0},
        {},
    ),
    "delete of many": ("POST", "/api/delete", {"where": "n = alpha", "show": 0}, {}),
    "forget of many": ("POST", "/api/forget", {"where": "n = alpha", "show": 0}, {}),
    "move": ("POST", "/api/move?to=bob", {"ids": ["ALPHA"]}, {}),
    "accept": ("POST", "/api/review/accept", {"ids": ["WAITING"]}, {}),
    "reject": ("POST", "/api/review/reject", {"ids": ["WAITING"]}, {}),
    "turns": (
        "POST",
        "/api/conversations/talk/turns",
        {"turns": [{"content": "Yes"}, {"content": "Yes"}]},
        {},
    ),
    "conversation": ("PATCH", "/api/conversations/talk", {"title": "A talk"}, {}),
    "forget of turns": ("POST", "/api/conversations/talk/forget", {"index": 0}, {}),
}
# The answer to a retry if the server was killed before it recorded the end, as far as it can still
# be known.
AFTER_A_KILL = {"move": 404, "accept": 409, "reject": 409, "turns": 200, "forget of turns": 404}
# A retry gets the same answer for each kind of body; by default only one of each kind is tested.
ANSWERED = {"create", "update of a version", "delete", "turns"}
CASES = [
    pytest.param(
        *(what, killed),
        id=f"{what}-{'killed' if killed else 'answered'}",
        marks=() if killed or what in ANSWERED else pytest.mark.thorough,
    )
    for what in SENT
    for killed in (False, True)
]


def prepare(client: TestClient, sent: Sent) -> Sent:
    """Create the memories that a write needs, and replace names with ids in its request."""
    made = {}
    for name in ("ALPHA", "GONE", "WAITING"):
        body = {
            "content": f"Fact about {name.lower()}",
            "tags": {"n": name.lower()},
            "decay": "reinforceable",
        }
        made[name] = client.post(
            "/api/memories", json=body | {"force": True, "pending": name == "WAITING"}
        ).json()["id"]
    client.delete(f"/api/memories/{made['GONE']}")
    client.post("/api/conversations/talk/turns", json={"turns": [{"content": "Hello"}]})
    method, path, body, headers = sent
    for name, memory_id in made.items():
        path = path.replace(name, memory_id)
        body = json.loads(json.dumps(body).replace(name, memory_id))
    return method, path, body, headers


def send(client: TestClient, sent: Sent) -> Any:
    """Send a request under an idempotency key."""
    method, path, body, headers = sent
    return client.request(method, path, json=body, headers={**headers, "idempotency-key": "k1"})


def saved_bytes(file: Path) -> bytes:
    """Return the bytes of the table of requests and its write-ahead log."""
    return b"".join(part.read_bytes() for part in file.parent.glob(f"{file.name}*"))


def state(config: Config) -> list[Any]:
    """Return the content of the store, including its log."""
    with Memories(config=config) as memories:
        shown = [
            (each.id, each.content, each.version, each.last_reinforced_at)
            for each in memories.list().memories
        ]
        said = [(each.id, each.turn_count) for each in memories.list_conversations().conversations]
        return [shown, said, len(memories.log(limit=1000)), memories.review.count()]


@pytest.mark.first(12)
@pytest.mark.parametrize(("what", "killed"), CASES)
def test_each_kind_of_write_is_done_once(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, what: str, killed: bool
) -> None:
    with app(config.store, tmp_path / "one") as one:
        sent = prepare(one, SENT[what])
        with monkeypatch.context() as patched:
            if killed:
                patched.setattr(Once, "_end", lambda *_, **__: None)
            first = send(one, sent)
    assert first.status_code in (200, 201), first.text
    before = state(config)
    with app(config.store, tmp_path / "other") as other:
        again = send(other, sent)
        if killed and what in AFTER_A_KILL:
            assert again.status_code == AFTER_A_KILL[what], again.text
        elif killed and what.endswith("of many"):
            assert again.status_code == 200
        else:
            assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert state(config) == before
    saved = saved_bytes(file_of(config))
    assert saved
    words = (b"tea", b"rains", b"alpha", b"text", b"talk", b"Yes")
    assert not [word for word in words if word in saved]


ERASED = ["create", "update", "pin", "restore", "many", "accept", "turns", "tags of many"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("what", ERASED)
def test_a_retry_neither_shows_nor_restores_what_was_erased(
    tmp_path: Path, config: Config, what: str, restarts: bool
) -> None:
    sent = SENT[what]
    if what == "tags of many":
        sent = (*sent[:2], {"where": "n = alpha", "tags": {"z": "1"}}, {})
    with app(config.store, tmp_path / "one") as one:
        sent = prepare(one, sent)
        first = send(one, sent)
        assert first.status_code in (200, 201), first.text
        with Memories(config=config) as memories:  # another process
            memories.forget_where("version > 0")
            memories.forget_turns("talk")
        again = None if restarts else send(one, sent)
    if again is None:
        with app(config.store, tmp_path / "other") as other:
            again = send(other, sent)
    texts = ("Ann likes tea", "It rains", "It snows", "Fact about", "Another text", "Yes")
    assert not [text for text in texts if text in again.text]
    with Memories(config=config) as memories:
        assert memories.list().memories == ()
        assert memories.conversations() == []


def test_a_retry_does_not_show_an_erased_memory_that_the_response_named(
    tmp_path: Path, config: Config
) -> None:
    with app(config.store, tmp_path / "one") as client:
        similar = create(client, "Karl's bike is blue", "k1").json()
        body = {"content": "Karl's bike is red"}
        keyed = {"idempotency-key": "k2"}
        first = client.post("/api/memories", json=body, headers=keyed)
        assert "blue" in first.text
        client.post(f"/api/memories/{similar['id']}/forget", json={})
        again = client.post("/api/memories", json=body, headers=keyed)
        assert (again.status_code, "blue" in again.text) == (404, False)


# --- the table in a file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of the key file."""
    return tmp_path / "keys"


def test_a_killed_processs_request_can_be_taken_over(file: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        ours = FileClaims(file)
        for digest in ("d", "another"):
            with pytest.raises(Taken) as taken:
                ours.claim("n", digest, sync=False)
            assert taken.value.other is (digest == "another")
        process.kill()
        process.wait(WAIT)
    held = ours.claim("n", "d", sync=False)
    assert (held.number, held.summary) == (2, None)
    ours.settle(held, {"status": 201})
    ours.close()
    assert [path.name for path in file.parent.iterdir()] == ["keys"]


def test_processes_share_a_table_of_bounded_size(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_KEPT", 5)
    monkeypatch.setattr(idempotency, "SWEEP_EVERY", 5)
    one, other = FileClaims(file), FileClaims(file)
    for number in range(60):
        held = one.claim(f"n{number}", "d", sync=True)
        with pytest.raises(Taken):
            other.claim(f"n{number}", "d", sync=True)
        one.settle(held, {"status": number})
        again = other.claim(f"n{number}", "d", sync=True)
        assert again == Claim(f"n{number}", 2, held.begun_at, {"status": number})
        other.settle(again, None)
    assert count_rows(file) <= 5 + 5
    for table in (one, other):
        table.close()


def test_two_servers_may_create_the_table_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(2)

    def open_table(file: Path) -> FileClaims:
        together.wait(WAIT)
        return FileClaims(file)

    with ThreadPoolExecutor(2) as servers:
        for number in range(100):
            file = tmp_path / str(number) / "m.db-requests"
            for table in servers.map(open_table, [file, file]):
                table.close()


def count_rows(file: Path) -> int:
    """Return the number of keys in a file."""
    database = apsw.Connection(str(file))
    [(count,)] = database.execute("SELECT count(*) FROM request").fetchall()
    database.close()
    return int(count)


@pytest.mark.parametrize("content", [b'{"request": "a", "dig', b"\x00{garbage", b""])
def test_a_file_of_another_kind_is_replaced(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    one, other = FileClaims(file), FileClaims(file)
    one.settle(one.claim("a", "d", sync=False), {"status": 201})
    assert [other.claim(name, "d", sync=False).number for name in "ab"] == [2, 1]
    for table in (one, other):
        table.close()


@pytest.mark.parametrize("holder", ["../../x", "", 7, None, "0123"])
def test_the_content_of_the_file_cannot_name_other_files(file: Path, holder: Any) -> None:
    one = FileClaims(file)
    one.claim("a", "d", sync=False)
    one.close()
    other = file.parent.parent / "x"
    other.write_text("")
    database = apsw.Connection(str(file))
    database.execute("UPDATE request SET holder = ?", (holder,))
    database.close()
    one = FileClaims(file)
    assert one.claim("a", "d", sync=False).number == 2
    one.close()
    assert other.exists()


def test_a_key_can_be_reused_after_a_day(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = FileClaims(file)
    one.settle(one.claim("a", "d", sync=False), {"status": 201})
    monkeypatch.setattr(claims, "KEPT_SECONDS", -1)
    free = one.claim("a", "another", sync=False)
    assert (free.number, free.summary) == (1, None)
    one.close()
