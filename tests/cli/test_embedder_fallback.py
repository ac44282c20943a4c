"""Commands while the embedder's service fails: errors name the service, not the store, which
works.
"""

import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cli.conftest import Command, Once
from embedders.test_http_service import (
    Behaviour,
    Handler,
    Server,
    drip,
    drop,
    hang,
    made,
    saying,
    status,
)
from embedders.test_http_service import server as server  # noqa: PLC0414 - a fixture
from memories import Draft, Memories
from memories.core.http import Retry

OLD = "The main database is PostgreSQL"  # too old for the scratchpad


def hang_after_headers(handler: Handler, _: object) -> None:
    """Send headers, then no body until the server stops."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.flush()
    handler.server.over.wait(600)
    handler.close_connection = True


# Failures, and their messages.
DOWN: dict[str, tuple[Behaviour, str]] = {
    "429": (
        status(429, {"error": {"message": "slow down"}}),
        "limits the rate of requests (429): slow down",
    ),
    "429 with Retry-After": (status(429, Retry_After="60"), "retry in 60 seconds"),
    "500": (status(500), "has a problem (500)"),
    "503": (status(503), "has a problem (503)"),
    "401": (status(401), "requires a key (401)"),
    "hang": (hang, "did not answer within"),
    "hang after the headers": (hang_after_headers, "did not answer within"),
    "trickle": (drip, "did not answer within"),
    "drop": (drop, "can't be reached"),
}
SILENT = (hang, hang_after_headers, drip)
UNUSABLE: dict[str, tuple[Behaviour, str]] = {
    "wrong JSON": (saying(b'{"data": "none"}'), "contains no vectors"),
    "no JSON": (saying(b"<html>Sign in</html>", Content_Type="text/html"), "contains no vectors"),
    "wrong length": (
        made(lambda found: [vector[1:] for vector in found]),
        "returned a vector of 63 dimensions",
    ),
}


@pytest.fixture
def service(server: Server, once: Once, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """The embedder's service, with a store whose first memory is in no scratchpad."""
    settings = {
        "EMBEDDER": "openai:tiny", "EMBEDDER_URL": f"{server.url}/v1", "EMBEDDER_DIMENSIONS": "64",
        "EMBEDDER_CACHE_MB": "0", "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def fill() -> None:
        with Memories(namespace="bob") as memories:
            memories.create_many(
                [Draft(OLD), *(Draft(f"note {at} on another part") for at in range(60))], force=True
            )
            memories.scratchpad()

    once(fill)
    monkeypatch.setattr(
        "memories.embedders.service.client.Retry", partial(Retry, pause=lambda _: None)
    )
    server.seen.clear()
    return server


@pytest.fixture
def full() -> Iterator[str]:
    """An address that neither accepts nor refuses connections."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        for each in waiting:
            each.close()


def make_fail(service: Server, behaviour: Behaviour) -> None:
    """Make the service fail in this way."""
    service.next.extend([behaviour] * 99)


@pytest.mark.first(5)
@pytest.mark.parametrize("case", [*DOWN, *UNUSABLE])
def test_the_fallback_searches_the_whole_store_by_words(
    memory: Command, service: Server, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("EMBEDDER_FALLBACK", "local")
    behaviour, why = (DOWN | UNUSABLE)[case]
    if behaviour in SILENT:
        monkeypatch.setenv("EMBEDDER_TIMEOUT", "0.5")
    make_fail(service, behaviour)
    answer = memory("search", "main database", "-n", "bob")
    assert (answer.code, answer.err) == (0, "")
    assert [each["content"] for each in answer.json["results"]] == [OLD]
    assert answer.json["note"].startswith(
        f"found by words only: the embedder's server ({service.url}/v1/embeddings) "
    )
    assert why in answer.json["note"]
    assert "degraded" not in answer.json
    assert len(service.seen) == 1  # one try


@pytest.mark.first(5)
@pytest.mark.parametrize("case", [*DOWN, *UNUSABLE])
def test_without_a_fallback_the_error_names_the_embedder(
    memory: Command, service: Server, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    behaviour, why = (DOWN | UNUSABLE)[case]
    monkeypatch.setenv("EMBEDDER_TIMEOUT", "0.3" if behaviour in SILENT else "10")
    make_fail(service, behaviour)
    for command in (["search", "main database"], ["create", "The cache is Redis"]):
        answer = memory(*command, "-n", "bob")
        assert answer.code == 1
        assert answer.error.startswith("the embedder's server ")
        assert why in answer.error
        assert "the store" not in answer.error
    assert memory("list", "-n", "bob", "--limit", "100").json["count"] == 61


@pytest.mark.parametrize("fallback", ["none", "local"])
@pytest.mark.parametrize("where", ["refused", "no such host", "hangs at connecting"])
def test_an_unreachable_service_is_named_and_the_fallback_searches_by_words(
    memory: Command,
    service: Server,
    full: str,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fallback: str,
) -> None:
    monkeypatch.setenv("EMBEDDER_FALLBACK", fallback)
    url = {"refused": "http://127.0.0.1:9/v1", "no such host": "https://nowhere.invalid/v1"}.get(
        where, full
    )
    monkeypatch.setenv("EMBEDDER_URL", url)
    monkeypatch.setenv("EMBEDDER_TIMEOUT", "0.5")
    answer = memory("search", "main database", "-n", "bob")
    if fallback == "none":
        assert answer.code == 1
        assert answer.error.startswith(f"the embedder's server ({url}/embeddings) ")
        return
    assert (answer.code, answer.err) == (0, "")
    assert [each["content"] for each in answer.json["results"]] == [OLD]
    assert answer.json["note"].startswith(
        f"found by words only: the embedder's server ({url}/embeddings) "
    )
    made = memory("create", "The cache is Redis", "-n", "bob").json
    assert made["stored"]
    assert made["note"].startswith(
        "stored without a vector, so only words find it until `memory reembed` is run: the emb"
    )


def test_memories_without_a_vector_get_it_later(
    memory: Command, service: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reembedding ignores the pause, and retries while that may help."""
    monkeypatch.setenv("EMBEDDER_FALLBACK", "local")
    service.next.append(status(500))
    made = memory("create", "The cache is Redis", "-n", "bob").json
    assert "has a problem (500)" in made["note"]
    with Memories(namespace="bob") as memories:
        assert memories.status().without_vector_count == 1
    service.next.append(status(503))
    assert memory("reembed").code == 0
    with Memories(namespace="bob") as memories:
        assert memories.status().without_vector_count == 0


def test_processes_with_the_same_home_share_the_pause(
    memory: Command, process: Command, service: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDER_FALLBACK", "local")
    monkeypatch.setenv("EMBEDDER_TIMEOUT", "0.5")
    make_fail(service, hang)
    first = memory("search", "main database", "-n", "bob").json
    for run in (process, memory):
        again = run("search", "another part", "-n", "bob").json
        assert again["note"] == first["note"]
        assert (
            memory("create", f"The cache is {run}", "-n", "bob")
            .json["note"]
            .endswith(first["note"].split(": ", 1)[1])
        )
    assert len(service.seen) == 1
    [file] = home.glob(".embedder-*")
    assert file.stat().st_mode & 0o777 == 0o600
    service.next.clear()
    service.over.set()
    known = json.loads(file.read_text())
    file.write_text(json.dumps(known | {"until": 0}))
    assert "note" not in memory("search", "main database", "-n", "bob").json
    assert not file.exists()
    for damaged in (
        b"",
        b"[]",
        b"{",
        b'{"until": "x"}',
        b'{"until": 9e99, "waited": 9, "why": "never"}',
    ):
        file.write_bytes(damaged)
        assert "note" not in memory("search", "main database", "-n", "bob").json


@pytest.mark.parametrize("code", [401, 429, 500])
def test_the_pause_does_not_reveal_queries_of_other_callers(
    memory: Command, service: Server, home: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Services quote the text in their errors."""
    monkeypatch.setenv("EMBEDDER_FALLBACK", "local")
    service.next.append(status(code, {"error": {"message": "can't embed 'a question of bob'"}}))
    first = memory("search", "a question of bob", "-n", "bob").json["note"]
    assert "can't embed 'a question of bob'" in first
    again = memory("search", "main database", "-n", "ann").json["note"]
    assert again == first.replace(": can't embed 'a question of bob'", "")
    [file] = home.glob(".embedder-*")
    assert b"question" not in file.read_bytes()


def test_a_new_key_is_tried_at_once(
    memory: Command, service: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDER_FALLBACK", "local")
    monkeypatch.setenv("EMBEDDER_API_KEY", "sk-wrong-0123456789")
    service.next.append(status(401))
    assert "refused the key" in memory("search", "main database", "-n", "bob").json["note"]
    monkeypatch.setenv("EMBEDDER_API_KEY", "sk-right-0123456789")
    assert "note" not in memory("search", "main database", "-n", "bob").json


@pytest.mark.parametrize(("fallback", "code"), [("none", 4), ("local", 0)])
def test_a_context_names_the_embedder(
    memory: Command, service: Server, monkeypatch: pytest.MonkeyPatch, fallback: str, code: int
) -> None:
    monkeypatch.setenv("EMBEDDER_FALLBACK", fallback)
    monkeypatch.setenv("EMBEDDER_TIMEOUT", "0.3")
    make_fail(service, hang)
    answer = memory("context", "main database", "-n", "bob")
    assert answer.code == code
    if fallback == "local":
        assert [each["text"] for each in answer.json["memories"]] == [OLD]
    else:
        assert answer.err.startswith("memories from the scratchpad alone: the embedder's server ")


def test_the_error_for_another_model_says_how_to_switch_back(
    memory: Command, monkeypatch: pytest.MonkeyPatch, service: Server
) -> None:
    monkeypatch.setenv("EMBEDDER", "minilm")
    assert (
        "EMBEDDER to the one that created them"
        in memory("search", "main database", "-n", "bob").error
    )
    monkeypatch.setenv("MEMORY_STORE", "sqlite:///other.db")
    memory("create", OLD)
    monkeypatch.setenv("EMBEDDER", "openai:tiny")
    assert "unset EMBEDDER, or switch" in memory("search", "main database").error
    monkeypatch.delenv("EMBEDDER")
    assert memory("search", "main database").json["count"] == 1


def test_http_and_mcp_report_the_same_fallback(
    service: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    from memories.config import load_config
    from memories.identity import tokens
    from memories.mcp.tools import Tools
    from memories.server.app import Options, build

    monkeypatch.setenv("EMBEDDER_FALLBACK", "local")
    make_fail(service, status(500))
    config = load_config({"namespace": "bob"})
    header = {"authorization": f"Bearer {tokens.own(config.home)}"}
    with TestClient(
        build(config, Options(port=8765)), base_url="http://127.0.0.1:8765", headers=header
    ) as client:
        answer = client.get("/api/memories", params={"q": "main database", "namespace": "bob"})
    assert (answer.status_code, [each["content"] for each in answer.json()["results"]]) == (
        200,
        [OLD],
    )
    assert "has a problem (500)" in answer.json()["note"]
    with Memories(config=config) as memories:
        called = Tools(lambda: memories, lambda _: (memories, "")).search_memories(
            "main database", scope="memories"
        )
    assert OLD in str(called.content)
    assert "has a problem (500)" in str(called.content)
    assert len(service.seen) == 1
