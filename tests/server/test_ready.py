"""`/ready` reports to any client whether the store answers, so not every request may query the
store.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from memories import Memories
from memories.config import load_config
from memories.errors import StoreError, StoreUnreachable
from memories.server import http
from memories.server.http import Web
from memories.server.sockets import ServeOptions
from memories.settings import Config
from memories.stores import open_store
from memories.stores.sqlite.store import SQLiteStore


class Counting:
    """A store that counts its queries, and answers them when the test allows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.broken = False

    def count(self, *_: object) -> int:
        self.asked += 1
        assert self.may_answer.wait(60)
        if self.broken:
            raise StoreUnreachable("it is gone")
        return 0


@pytest.fixture
def store() -> Counting:
    """A store that counts its queries."""
    return Counting()


@pytest.fixture
def web(config: Config, store: Counting) -> Iterator[Web]:
    """A web server for that store."""
    group_commit = SimpleNamespace(
        problem="", waiting=0, writes=0, commits=0, create=None, submit=None
    )
    process: Any = SimpleNamespace(
        config=config,
        store=store,
        embedder=None,
        group_commit=group_commit,
        warm=None,
        last_at=0.0,
        fits=lambda: True,
    )
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as address:
        yield Web(process, ServeOptions(), address)


@pytest.fixture
def web_client(web: Web) -> TestClient:
    """A client without a token."""
    return TestClient(web._server.config.app, base_url=web.url)  # type: ignore[arg-type]


def ready(client: TestClient) -> tuple[int, Any]:
    """Return the status and the body of `/ready`."""
    answer = client.get("/ready")
    return answer.status_code, answer.json()


def test_many_requests_share_one_query_to_the_store(
    web_client: TestClient, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READY_SECONDS", 3600.0)
    with web_client:
        for _ in range(100):
            assert ready(web_client) == (200, {"ready": True})
        assert store.asked == 1
        store.broken = True
        assert ready(web_client)[0] == 200
        monkeypatch.setattr(http, "READY_SECONDS", 0.0)
        assert ready(web_client) == (503, {"ready": False, "problem": "the store does not answer"})
        assert web_client.get("/health").status_code == 200
        store.broken = False
        assert ready(web_client)[0] == 200
        assert store.asked == 3


def test_requests_during_a_query_wait_for_its_answer(
    web: Web, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READY_SECONDS", 0.0)

    async def flood() -> list[str]:
        store.may_answer.clear()
        asking = [asyncio.create_task(web._known_problem()) for _ in range(50)]
        await asyncio.sleep(0)  # all of them have begun
        asking.pop(0).cancel()  # like a client that disconnects after its request
        store.may_answer.set()
        return await asyncio.gather(*asking)

    assert asyncio.run(flood()) == [""] * 49
    assert store.asked == 1


# --- stores that can be read but not written


@pytest.fixture(params=["sqlite", "files"])
def real(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Memories, Web]]:
    """Memories on their own 2 MB disk, and a server that checks the store on every request."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "x", disk], timeout=60
        ).returncode
    ):
        pytest.skip("only root can mount a small disk")
    monkeypatch.setattr(http, "READY_SECONDS", 0.0)
    config = load_config({"store": f"{request.param}:///{disk}/m.db", "embedder": "none"})
    with contextlib.closing(open_store(config.store, None, config)) as store:
        group_commit = SimpleNamespace(
            problem="", waiting=0, writes=0, commits=0, create=None, submit=None
        )
        process: Any = SimpleNamespace(
            config=config,
            store=store,
            embedder=None,
            group_commit=group_commit,
            warm=None,
            last_at=0.0,
            fits=lambda: True,
        )
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as address:
            yield (
                Memories(store, config=config, embedder="none"),
                Web(process, ServeOptions(), address),
            )
    subprocess.run(["umount", "-l", disk], check=True, timeout=60)


def fill(disk: Path) -> None:
    """Fill a disk."""
    with contextlib.suppress(OSError), (disk / "rest").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def blocked(disk: Path) -> None:
    """Replace the store's lock file with a folder."""
    lock = disk / "m.db.lock" if (disk / "m.db").is_file() else disk / "m.db" / ".memories" / "lock"
    lock.rename(disk / "aside")
    lock.mkdir()


@pytest.mark.parametrize("broken", [fill, blocked])
def test_a_store_that_cannot_be_written_is_not_ready(
    real: tuple[Memories, Web], tmp_path: Path, broken: Callable[[Path], None]
) -> None:
    memories, web = real
    disk, number = tmp_path / "disk", 0
    assert web._problem() == ""  # the folder is still empty
    made = memories.create("The office is in Berlin").memory
    assert made is not None
    assert web._problem() == ""
    assert len(memories.list().memories) == 1
    broken(disk)
    with pytest.raises(StoreError):
        while number < 500:  # the log may still have room for some writes
            memories.create(f"note {number}", force=True)
            number += 1
    assert memories.get(made.id).content == "The office is in Berlin"
    assert web._problem() == "the store is not writable; run memory doctor to see why"
    subprocess.run(["mount", "-o", "remount,rw,size=8m", disk], check=True, timeout=60)
    for folder in disk.rglob("*lock"):
        if folder.is_dir():
            folder.rmdir()
            (disk / "aside").rename(folder)
    assert web._problem() == ""
    assert memories.create("The office is in Bonn", force=True).stored


def test_a_folder_in_place_of_the_journal_makes_the_store_not_ready(
    home: Path, web: Web, store: Counting
) -> None:
    process: Any = web._process
    process.store = SQLiteStore(home / "m.db", None)
    memories = Memories(process.store, embedder="none")
    memories.create("The office is in Berlin")
    assert web._problem() == ""
    (home / "m.db-journal").mkdir()
    assert web._problem() == "the store is not writable; run memory doctor to see why"
    (home / "m.db-journal").rmdir()
    assert web._problem() == ""
    process.store.close()


def test_a_rehearsal_leaves_the_store_unchanged(home: Path) -> None:
    store, other = SQLiteStore(home / "m.db", None), SQLiteStore(home / "m.db", None)
    Memories(store, embedder="none").create("The office is in Berlin")
    with other._file.read() as db:
        before = db.pragma("data_version"), db.execute("SELECT * FROM store").fetchall()
    for _ in range(20):
        store.rehearse()
    with other._file.read() as db:
        assert (db.pragma("data_version"), db.execute("SELECT * FROM store").fetchall()) == before
        assert db.execute("SELECT * FROM meta WHERE name = 'rehearsal'").fetchall() == []
    with other.transaction():
        store.rehearse()  # another writer is active, so the store is evidently writable
    Memories(other, embedder="none").create("The office is in Bonn", force=True)
    assert list(store.check(deep=True)) == []
    store.close()
    other.close()
