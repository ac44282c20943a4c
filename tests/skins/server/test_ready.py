"""`/ready`: anybody may ask whether the store answers, so the store is not asked each time."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from memories.errors import StoreUnreachable
from memories.settings import Config
from memories.skins.server import http
from memories.skins.server.http import Web
from memories.skins.server.watch import Asked


class Counting:
    """A store that only counts how often it is asked, and answers when it may."""

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
    return Counting()


@pytest.fixture
def web(config: Config, store: Counting) -> Iterator[Web]:
    writers = SimpleNamespace(problem="", waiting=0, writes=0, commits=0, create=None, submit=None)
    process: Any = SimpleNamespace(
        config=config, store=store, embedder=None, writers=writers, warm=None, last_at=0.0, fits=lambda: True
    )
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as address:
        yield Web(process, Asked(), address)


@pytest.fixture
def anybody(web: Web) -> TestClient:
    return TestClient(web._server.config.app, base_url=web.url)  # type: ignore[arg-type]


def ready(client: TestClient) -> tuple[int, Any]:
    answer = client.get("/ready")
    return answer.status_code, answer.json()


def test_the_store_is_asked_once_in_a_while_however_many_ask(
    anybody: TestClient, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READY_SECONDS", 3600.0)
    with anybody:
        for _ in range(100):
            assert ready(anybody) == (200, {"ready": True})
        assert store.asked == 1
        store.broken = True
        assert ready(anybody)[0] == 200
        monkeypatch.setattr(http, "READY_SECONDS", 0.0)
        assert ready(anybody) == (503, {"ready": False, "problem": "the store does not answer"})
        assert anybody.get("/health").status_code == 200
        store.broken = False
        assert ready(anybody)[0] == 200
        assert store.asked == 3


def test_who_asks_while_the_store_is_being_asked_waits_for_that_answer(
    web: Web, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READY_SECONDS", 0.0)

    async def flood() -> list[str]:
        store.may_answer.clear()
        asking = [asyncio.create_task(web._known_problem()) for _ in range(50)]
        await asyncio.sleep(0)  # all of them have begun
        asking.pop(0).cancel()  # as who began it and left
        store.may_answer.set()
        return await asyncio.gather(*asking)

    assert asyncio.run(flood()) == [""] * 49
    assert store.asked == 1
