"""Embedders over HTTP, against a local server that imitates the services and can misbehave."""

import contextlib
import json
import logging
import os
import random
import stat
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memories import Memories
from memories.answers.store_shapes import describe_problem
from memories.config import load_config, registers
from memories.core import trust
from memories.core.deadline import Deadline
from memories.core.http import FIRST_PAUSE_SECONDS, Retry
from memories.embedders import open_embedder
from memories.embedders.fake import FakeEmbedder
from memories.embedders.minilm import MiniLM
from memories.embedders.protocol import (
    EmbedderUnavailable,
    RemoteEmbedder,
    embed_many,
    embed_query,
    embed_to_store,
)
from memories.embedders.service import providers
from memories.embedders.service.client import (
    MAX_ANSWER_BYTES,
    MAX_REFUSED_TRIES,
    MAX_TRIES,
    ServiceClient,
)
from memories.embedders.service.embedder import (
    MAX_REQUEST_BYTES,
    MAX_SECONDS,
    MAX_WINDOWS,
    MIN_SECONDS,
    HTTPEmbedder,
    Rest,
    windows,
)
from memories.embedders.service.providers import Patience, find_model, models
from memories.errors import ConfigError, EmbedderError, EmbedderMismatch
from memories.settings import Config

KEY = "sk-very-secret-0123456789"
FAKE = FakeEmbedder()
PATHS = {
    "openai": "/v1/embeddings",
    "ollama": "/api/embed",
    "voyage": "/v1/embeddings",
    "cohere": "/v2/embed",
}
Behaviour = Callable[["Handler", dict[str, Any]], None]


def vectors(body: dict[str, Any]) -> list[list[float]]:
    """Return the vectors of the model behind the server: three times unit length."""
    texts = body["texts"] if "texts" in body else body["input"]
    return [[3 * float(number) for number in FAKE.embed(text)[0]] for text in texts]


def spoken(path: str, made: list[Any]) -> dict[str, Any]:
    """Return a response in the format of the service with this path."""
    if path.endswith("/api/embed"):
        return {"model": "tiny", "embeddings": made, "total_duration": 1}
    if path.endswith("/embed"):
        return {"id": "1", "embeddings": {"float": made}, "response_type": "embeddings_by_type"}
    numbered = [
        {"object": "embedding", "embedding": vector, "index": at} for at, vector in enumerate(made)
    ]
    return {"object": "list", "data": numbered, "model": "tiny", "usage": {"total_tokens": 1}}


class Handler(BaseHTTPRequestHandler):
    """Answers with the next behaviour, or properly if none is left."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer would wait for a delayed acknowledgement
    server: "Server"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(Seen(self.path, dict(self.headers), body, self.client_address[1]))
        behave = self.server.next.popleft() if self.server.next else proper
        behave(self, body)

    def do_CONNECT(self) -> None:
        self.server.seen.append(Seen(self.path, dict(self.headers), {}, self.client_address[1]))
        self.send_error(502)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Seen:
    """A request received by the service."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    port: int


class Server(ThreadingHTTPServer):
    """An embedding service whose next answers a test chooses."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[Seen] = []
        self.next: deque[Behaviour] = deque()
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):  # the client may leave
            super().handle_error(request, client_address)


def proper(handler: Handler, body: dict[str, Any]) -> None:
    """Answer with vectors in the format of the service."""
    handler.answer(200, json.dumps(spoken(handler.path, vectors(body))).encode())


def status(code: int, said: object = None, **headers: str) -> Behaviour:
    """Return a behaviour that answers with a status."""
    return lambda handler, _: handler.answer(
        code, b"" if said is None else json.dumps(said).encode(), **headers
    )


def saying(body: bytes, **headers: str) -> Behaviour:
    """Return a behaviour that answers with these bytes."""
    return lambda handler, _: handler.answer(200, body, **headers)


def made(change: Callable[[list[list[Any]]], list[Any]]) -> Behaviour:
    """Return a behaviour that answers in the right format, but with changed vectors."""
    return lambda handler, body: handler.answer(
        200, json.dumps(spoken(handler.path, change(vectors(body)))).encode()
    )


def drop(handler: Handler, _: dict[str, Any]) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True
    handler.connection.close()


def cut_short(handler: Handler, _: dict[str, Any]) -> None:
    """Close the connection in the middle of an answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [')
    handler.close_connection = True


def hang(handler: Handler, _: dict[str, Any]) -> None:
    """Send nothing until the server ends."""
    handler.server.over.wait(600)
    handler.close_connection = True


def drip(handler: Handler, _: dict[str, Any]) -> None:
    """Send a byte every 20 ms, so that the socket's timeout never expires."""
    handler.close_connection = True
    for sign in b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b" " * 9000:
        if handler.server.over.wait(0.02):
            return
        handler.wfile.write(bytes([sign]))


@pytest.fixture
def server() -> Iterator[Server]:
    """A running service."""
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.over.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder; no proxy of the machine is used."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "memories"


@dataclass
class Time:
    """A clock that moves only during pauses."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def settings(**given: object) -> Config:
    """Return a configuration with these settings and no others."""
    return load_config(
        {name: str(value) for name, value in given.items()}, environment={}, folder=Path("/")
    )


def opened(
    server: Server, name: str = "openai", time: Time | None = None, **given: object
) -> HTTPEmbedder:
    """Return an embedder of 64 dimensions that uses the server; its pauses take no time, and its
    random numbers are 1.
    """
    base = server.url + PATHS[name].rpartition("/")[0]
    base = server.url if name == "ollama" else base
    known = {
        "embedder_url": base,
        "embedder_dimensions": 64,
        "embedder_cache_mb": 0,
        "embedder_api_key": KEY,
    } | given
    config = settings(**known)
    chosen = providers.choose(f"{name}:tiny", config)
    time = time or Time()
    client = ServiceClient(
        chosen.service, Retry(pause=time.pause, clock=lambda: time.now, draw=lambda: 1.0)
    )
    return HTTPEmbedder(chosen, config, client=client, clock=lambda: time.now)


# --- the four formats


@pytest.mark.parametrize("name", PATHS)
def test_each_service_gets_requests_in_its_own_format(server: Server, name: str) -> None:
    embedder = opened(server, name)
    assert isinstance(embedder, RemoteEmbedder)
    statements = embed_many(embedder, ["red apples", "green pears", "red apples"])
    question = embed_query(embedder, "apples?")
    assert [made.shape for made in statements] == [(1, 64)] * 3
    for text, found in zip(["red apples", "green pears", "red apples"], statements, strict=True):
        assert found.dtype == np.float32
        assert np.allclose(found, FAKE.embed(text), atol=1e-6)
    assert np.allclose(question, FAKE.embed("apples?"), atol=1e-6)
    asked, questioned = server.seen
    assert (asked.path, asked.headers["Authorization"]) == (PATHS[name], f"Bearer {KEY}")
    texts = ["red apples", "green pears"]  # the third text equals the first
    expected: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "openai": (
            {"input": texts, "encoding_format": "float"},
            {"input": ["apples?"], "encoding_format": "float"},
        ),
        "ollama": ({"input": texts, "truncate": True}, {"input": ["apples?"], "truncate": True}),
        "voyage": (
            {"input": texts, "input_type": "document", "truncation": True},
            {"input": ["apples?"], "input_type": "query", "truncation": True},
        ),
        "cohere": (
            {
                "texts": texts,
                "input_type": "search_document",
                "embedding_types": ["float"],
                "truncate": "END",
            },
            {
                "texts": ["apples?"],
                "input_type": "search_query",
                "embedding_types": ["float"],
                "truncate": "END",
            },
        ),
    }
    assert (asked.body, questioned.body) == tuple(
        {"model": "tiny", **body} for body in expected[name]
    )


def test_responses_of_the_first_cohere_api_are_parsed(server: Server) -> None:
    server.next.append(
        lambda handler, body: handler.answer(
            200, json.dumps({"embeddings": vectors(body)}).encode()
        )
    )
    assert np.allclose(
        opened(server, "cohere").embed("red apples"), FAKE.embed("red apples"), atol=1e-6
    )


def test_memories_are_found_through_a_service(server: Server, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/m.db"
    with Memories(store, embedder=opened(server)) as memories:
        created = memories.create("The orange cat sleeps on the red sofa")
        memories.create("Deploys happen on Tuesdays")
        assert memories.search("where sleeps the cat")[0].memory == created.memory
        status_ = memories.status()
        assert (status_.store_model, status_.without_vector_count) == ("openai/tiny/1", 0)


def test_a_shorter_vector_is_requested_if_the_model_supports_it(server: Server) -> None:
    for name, model, field_ in (
        ("openai", "text-embedding-3-large", "dimensions"),
        ("voyage", "voyage-3.5", "output_dimension"),
        ("cohere", "embed-v4.0", "output_dimension"),
    ):
        config = settings(embedder_url=server.url, embedder_dimensions=256, embedder_cache_mb=0)
        embedder = open_embedder(f"{name}:{model}", config)
        assert embedder is not None
        assert embedder.space.dimension == 256
        server.next.append(made(lambda found: [[1.0] * 256 for _ in found]))
        embedder.embed("text")
        assert server.seen[-1].body[field_] == 256


# --- long and unusual texts


def test_a_long_text_is_cut_into_windows_up_to_a_limit(server: Server) -> None:
    embedder = opened(server)
    assert len(embedder.embed("word " * 200)) == 1
    assert len(embedder.embed("word " * 300)) == 2
    assert len(embedder.embed("word " * 100_000)) == MAX_WINDOWS
    sent = server.seen[1].body["input"]
    assert all(len(window.encode()) <= 1280 for window in sent)
    assert sent[0].split() + sent[1].split() >= ["word"] * 300  # they overlap


@pytest.mark.parametrize(
    ("signs", "space"),
    [
        ("用户住在柏林的人喜欢", ""),
        ("🎉🐍🦀🌍", ""),
        ("abcdef", ""),
        ("äöüßé", " "),
        ("नमस्तेद", " "),
    ],
)
def test_windows_cover_all_of_a_text_in_any_script(signs: str, space: str) -> None:
    draw = random.Random(1)
    text = space.join("".join(draw.choices(signs, k=9)) for _ in range(300))
    cut = windows(text, 640, 100)
    assert len(cut) > 1
    assert all(0 < len(window.encode()) <= 640 for window in cut)
    at = 0
    for window in cut:
        found = text.index(window)
        assert not text[at:found].strip()  # no gap
        at = found + len(window)
    assert at == len(text)


@pytest.mark.parametrize("text", ["", "  \n", "!", "\ud800 alone"])
def test_texts_without_words_have_a_vector(server: Server, text: str) -> None:
    assert opened(server).embed(text).shape == (1, 64)
    assert server.seen[0].body["input"] == [{"!": "!", "\ud800 alone": "? alone"}.get(text, ".")]


def test_texts_get_the_prefix_that_the_model_expects(server: Server) -> None:
    config = settings(embedder_url=server.url, embedder_cache_mb=0)
    embedder = open_embedder("ollama:nomic-embed-text:latest", config)
    assert isinstance(embedder, HTTPEmbedder)
    server.next += [made(lambda found: [[1.0] * 768 for _ in found])] * 2
    embedder.embed("an apple")
    embedder.embed_query("an apple")
    assert [seen.body["input"] for seen in server.seen] == [
        ["search_document: an apple"],
        ["search_query: an apple"],
    ]


def test_many_texts_are_sent_in_batches(server: Server) -> None:
    texts = [f"text number {at}" for at in range(40)]
    found = opened(server, "ollama").embed_many(texts)
    assert [len(seen.body["input"]) for seen in server.seen] == [16, 16, 8]
    assert all(
        np.allclose(made, FAKE.embed(text), atol=1e-6)
        for text, made in zip(texts, found, strict=True)
    )
    assert len({seen.port for seen in server.seen}) == 1  # all share one connection


def test_a_request_stays_within_the_services_size_limit(server: Server) -> None:
    opened(server).embed_many([f"{at} " + "word " * 250 for at in range(255)])
    sizes = [sum(len(text.encode()) for text in seen.body["input"]) for seen in server.seen]
    assert len(sizes) == 2
    assert max(sizes) <= MAX_REQUEST_BYTES


def test_a_long_question_is_one_request(server: Server) -> None:
    text = "".join(chr(0x4E00 + at) for at in range(10_000))
    assert len(opened(server, "ollama").embed_query(text)) == 16
    assert len(server.seen) == 1


# --- a failing service


@pytest.mark.parametrize(
    "trouble", [status(500), status(503), status(529), status(408), drop, cut_short]
)
def test_temporary_failures_are_retried(server: Server, trouble: Behaviour) -> None:
    server.next += [trouble, trouble]
    time = Time()
    assert opened(server, time=time).embed("red apples").shape == (1, 64)
    assert time.pauses == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS]
    assert len(server.seen) == 3


def test_pauses_double_until_the_last_attempt(server: Server) -> None:
    server.next += [status(500, {"error": {"message": "overloaded"}})] * 99
    time = Time()
    with pytest.raises(EmbedderUnavailable) as caught:
        opened(server, time=time).embed_many(["one", "two"])
    assert time.pauses == [0.5, 1, 2, 4, 8, 16, 20]
    assert len(server.seen) == MAX_TRIES
    assert str(caught.value) == (
        f"the embedder's server ({server.url}/v1/embeddings) has a problem (500): overloaded; tried 8 "
        "times, "
        "try again later"
    )


@pytest.mark.parametrize(("act", "bound"), [("embed_query", 20), ("embed", 40)])
def test_the_total_time_of_all_attempts_is_bounded(server: Server, act: str, bound: float) -> None:
    server.next += [status(503)] * 99
    time = Time()
    with pytest.raises(EmbedderUnavailable, match="has a problem"):
        getattr(opened(server, time=time), act)("text")
    assert bound / 4 < time.now < bound


def test_a_service_can_set_the_waiting_time(server: Server) -> None:
    server.next += [status(429, Retry_After="7"), status(429, Retry_After="1.5")]
    time = Time()
    opened(server, time=time).embed("text")
    assert time.pauses == [7.0, 1.5]


def test_a_service_can_set_the_time_of_the_retry(server: Server) -> None:
    from email.utils import formatdate

    server.next.append(status(429, Retry_After=formatdate(time.time() + 19, usegmt=True)))
    clock = Time()
    opened(server, time=clock).embed("text")
    assert 5 < clock.pauses[0] <= 19


@pytest.mark.parametrize("after", ["soon", "", "-5", "²", "Fri, 31 Dec 99999 23:59:59 GMT"])
def test_an_invalid_retry_after_is_ignored(server: Server, after: str) -> None:
    server.next.append(
        lambda handler, _: handler.answer(429, b"", Retry_After=after.encode().decode("latin-1"))
    )
    time = Time()
    opened(server, time=time).embed("text")
    assert time.pauses == [FIRST_PAUSE_SECONDS]


def test_a_search_does_not_wait_longer_than_its_limit(server: Server) -> None:
    server.next.append(status(429, {"error": {"message": "slow down"}}, Retry_After="60"))
    time = Time()
    with pytest.raises(
        EmbedderUnavailable,
        match=r"limits the rate of requests \(429\): slow down; retry in 60 seconds$",
    ):
        opened(server, time=time).embed_query("text")
    assert time.pauses == []


def test_a_request_refused_for_lack_of_credit_is_not_retried(server: Server) -> None:
    server.next.append(
        status(429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
    )
    with pytest.raises(
        EmbedderUnavailable, match=r"no credit left \(429\): You exceeded your quota$"
    ):
        opened(server).embed("text")
    assert len(server.seen) == 1


@pytest.mark.first(1)
@pytest.mark.parametrize("silence", [drip, hang])
def test_an_unresponsive_server_causes_a_timeout(server: Server, silence: Behaviour) -> None:
    server.next += [silence] * 9
    config = {
        "embedder_timeout": 0.5,
        "embedder_cache_mb": 0,
        "embedder_dimensions": 64,
        "embedder_url": server.url,
    }
    embedder = open_embedder("openai:tiny", settings(**config))
    assert isinstance(embedder, HTTPEmbedder)
    # one try may take all of the time
    given_up = r"did not answer within 0\.\d+ seconds; (tried 2 times, )?try again later$"
    with pytest.raises(EmbedderUnavailable, match=given_up):
        embedder.embed_query("text")  # the server says nothing for minutes
    assert 1 <= len(server.seen) <= 2
    server.over.set()
    server.next.clear()
    assert embedder.embed_query("text").shape == (1, 64)


def test_a_timeout_is_retried(server: Server) -> None:
    server.next.append(hang)
    embedder = opened(server, embedder_timeout=0.3)
    assert embedder.embed_query("red apples").shape == (1, 64)
    assert len(server.seen) == 2


def test_a_refused_connection_is_reported(server: Server) -> None:
    embedder = opened(server, "ollama", time := Time(), embedder_url="http://127.0.0.1:9")
    with pytest.raises(
        EmbedderUnavailable,
        match=r"^Ollama \(http://127.0.0.1:9/api/embed\) can't be reached: .*refused",
    ):
        embedder.embed("text")
    assert len(time.pauses) == MAX_REFUSED_TRIES - 1


def test_an_unknown_host_is_reported(server: Server) -> None:
    embedder = opened(server, embedder_url="https://nowhere.invalid/v1", embedder_timeout=1)
    with pytest.raises(
        EmbedderUnavailable, match=r"can't be reached|did not answer within 1 seconds"
    ):
        embedder.embed("text")  # name servers may be slow; we don't wait


def test_a_connection_closed_by_the_server_is_reopened(server: Server) -> None:
    def last(handler: Handler, body: dict[str, Any]) -> None:
        proper(handler, body)
        handler.close_connection = True  # without saying so

    server.next.append(last)
    time = Time()
    embedder = opened(server, time=time)
    for _ in range(3):
        embedder.embed("text")
    assert (len(server.seen), time.pauses) == (3, [])


# --- answers that can't be used


@pytest.mark.first(16)
@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (
            made(lambda found: [[*vector, 1.0] for vector in found]),
            "returned a vector of 65 dimensions, but openai/tiny/1 should return 64",
        ),
        (made(lambda found: [[] for _ in found]), "returned a vector of 0 dimensions"),
        (made(lambda found: found[:1]), "returned 1 vectors for 2 texts"),
        (made(lambda found: [*found, found[0]]), "returned 3 vectors for 2 texts"),
        (made(lambda found: [[0.0] * 64 for _ in found]), "that is zero or not finite"),
        (made(lambda found: [[float("nan")] * 64 for _ in found]), "that is zero or not finite"),
        (made(lambda found: [[float("inf")] * 64 for _ in found]), "that is zero or not finite"),
        (made(lambda found: [[10**400] * 64 for _ in found]), "that is zero or not finite"),
        (made(lambda found: [["0.5"] * 64 for _ in found]), "not a list of numbers"),
        (made(lambda found: [[True] * 64 for _ in found]), "not a list of numbers"),
        (made(lambda found: [[None] * 64 for _ in found]), "not a list of numbers"),
        (made(lambda found: ["AACAPwAAAEA=" for _ in found]), "not a list of numbers"),
        (
            saying(b"<html>Sign in</html>", Content_Type="text/html"),
            "answered with text/html that contains no vectors",
        ),
        (saying(b""), "contains no vectors"),
        (saying(b"[]"), "contains no vectors"),
        (saying(b"null"), "contains no vectors"),
        (saying(b'{"data": {}}'), "contains no vectors"),
        (saying(b'{"data": [1, 2]}'), "contains no vectors"),
        (
            saying(b'{"error": {"message": "no such model"}}'),
            r"contains no vectors \(no such model\)",
        ),
        (saying(b"[" * 100_000), "contains no vectors"),
        (
            saying(b'{"data": [{"embedding": [1], "index": 0}, {"embedding": [1], "index": 0}]}'),
            "contains no vectors",
        ),
        (
            saying(b'{"data": [{"embedding": [1], "index": 1}, {"embedding": [1], "index": 2}]}'),
            "contains no vectors",
        ),
        (
            saying(b'{"data": [{"embedding": [1], "index": 0}, {"embedding": [1]}]}'),
            "contains no vectors",
        ),
        (
            saying(
                b'{"data": [{"embedding": [1], "index": "0"}, {"embedding": [1], "index": "1"}]}'
            ),
            "contains no vectors",
        ),
        (
            status(301, Location="https://elsewhere.example/v1"),
            "redirects to https://elsewhere.example/v1",
        ),
        (
            status(400, {"error": {"message": "input too long"}}),
            r"refused the request \(400\): input too long",
        ),
        (
            status(404, {"error": "model 'tiny' not found"}),
            r"the model tiny \(404\): model 'tiny' not found; check",
        ),
        (status(422, {"detail": [{"msg": "bad"}]}), r"refused the request \(422\)$"),
    ],
)
@pytest.mark.parametrize("fallback", ["none", "local"])
def test_an_unusable_response_stores_nothing(
    server: Server, tmp_path: Path, trouble: Behaviour, message: str, fallback: str
) -> None:
    """It doesn't count as an outage, so the fallback to words doesn't apply."""
    server.next.append(trouble)
    embedder = opened(server, embedder_fallback=fallback)
    with pytest.raises(EmbedderError, match=message) as caught:
        embed_to_store(embedder, ["one", "two"])
    assert not isinstance(caught.value, EmbedderUnavailable)
    assert "\n" not in str(caught.value)
    assert len(server.seen) == 1
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder=embedder) as memories:
        server.next.append(made(lambda found: [vector[1:] for vector in found]))
        with pytest.raises(EmbedderError, match="63 dimensions"):
            memories.create("one")
        assert memories.status().memory_count == 0


def test_an_error_in_a_later_batch_does_not_say_that_nothing_was_stored(
    server: Server, tmp_path: Path
) -> None:
    embedder = opened(server)
    texts = [f"Fact {number} about {number * 7} apples" for number in range(300)]
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder=embedder) as memories:
        memories.create_many(texts[:250], force=True)
        server.next.append(made(lambda found: found[1:]))
        with pytest.raises(EmbedderError) as caught:
            memories.create_many(texts[250:], force=True)
        assert memories.status().memory_count == 250
    assert "nothing was stored" not in str(caught.value)


def test_status_reports_vectors_of_the_wrong_length(server: Server, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/m.db"
    with Memories(store, embedder=opened(server)) as memories:
        memories.create("one")
    with Memories(store, embedder=opened(server, embedder_dimensions=32)) as memories:
        problem = describe_problem(memories.status())
    assert (
        "openai/tiny/1 (64 dimensions), but the embedder is openai/tiny/1 (32 dimensions)"
        in problem
    )


def test_a_response_has_a_maximum_size(server: Server) -> None:
    def endless(handler: Handler, _: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        handler.close_connection = True
        while not handler.server.over.is_set():
            handler.wfile.write(b" " * 1_048_576)

    server.next.append(endless)
    with pytest.raises(EmbedderError, match=f"more than {MAX_ANSWER_BYTES} bytes"):
        opened(server, embedder_timeout=30).embed_query("text")


def test_vectors_are_sorted_by_index(server: Server) -> None:
    def shuffled(handler: Handler, body: dict[str, Any]) -> None:
        answer = spoken(handler.path, vectors(body))
        answer["data"].reverse()
        handler.answer(200, json.dumps(answer).encode())

    server.next.append(shuffled)
    found = opened(server).embed_many(["red apples", "green pears", "blue plums"])
    assert np.allclose(found[0], FAKE.embed("red apples"), atol=1e-6)


def test_vectors_of_huge_and_tiny_numbers_are_normalized(server: Server) -> None:
    for size in (1e300, 1e-300, 10**20):
        server.next.append(made(lambda found, size=size: [[size] * 64 for _ in found]))  # type: ignore[misc]
        assert np.allclose(opened(server).embed("text"), 0.125)


# --- keys and addresses


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_key_is_explained_and_not_shown(
    server: Server, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.next.append(status(code, {"error": {"message": f"Incorrect API key provided: {KEY}."}}))
    with pytest.raises(EmbedderUnavailable) as caught:
        opened(server).embed("text")
    assert str(caught.value) == (
        f"the embedder's server ({server.url}/v1/embeddings) refused the key ({code}): Incorrect "
        "API key provided: "
        "***; set EMBEDDER_API_KEY"
    )
    assert len(server.seen) == 1
    assert KEY not in caplog.text


def test_the_error_names_the_setting_for_a_missing_key(server: Server) -> None:
    server.next.append(status(401))
    config = settings(embedder_url=server.url, embedder_dimensions=64, openai_api_key=KEY)
    embedder = open_embedder("openai:tiny", config)
    assert embedder is not None
    with pytest.raises(EmbedderUnavailable, match=r"requires a key \(401\); set EMBEDDER_API_KEY$"):
        embedder.embed("text")


def key_of(name: str, config: Config) -> str:
    """Return the key that would be sent."""
    chosen = providers.choose(name, config)
    assert KEY not in repr(chosen)
    return chosen.service.key.reveal() if chosen.service.key else ""


def test_a_providers_key_is_sent_only_to_that_provider(server: Server) -> None:
    keys = {"openai_api_key": "one", "voyage_api_key": "two", "cohere_api_key": "three"}
    for name, url, key in (
        ("openai", None, "one"),
        ("openai", "https://eu.api.openai.com/v1", "one"),
        ("openai", "https://api.openai.com.evil.example/v1", ""),
        ("openai", "https://evilapi.openai.com/v1", ""),
        ("openai", "http://api.openai.com/v1", ""),
        ("openai", "http://127.0.0.1:8080/v1", ""),
        ("openai", "https://api.voyageai.com/v1", ""),
        ("voyage", None, "two"),
        ("voyage", "https://gateway.example/v1", ""),
        ("cohere", None, "three"),
        ("ollama", None, ""),
    ):
        given = (
            keys
            | {"embedder_dimensions": "64", "embedder_plain_http": "true"}
            | ({"embedder_url": url} if url else {})
        )
        assert key_of(f"{name}:tiny", settings(**given)) == key, url
    ours = settings(**keys, embedder_api_key="four", embedder_dimensions=64)
    assert key_of("openai:tiny", ours) == "four"


def test_a_missing_key_is_reported_before_anything_is_sent(tmp_path: Path) -> None:
    for name, variable in (("openai", "OPENAI"), ("voyage", "VOYAGE"), ("cohere", "COHERE")):
        embedder = open_embedder(name, settings(embedder_fallback="local"))
        assert embedder is not None
        with pytest.raises(
            EmbedderError, match=f"requires a key; set {variable}_API_KEY"
        ) as caught:
            embed_to_store(embedder, ["text"])
        assert not isinstance(caught.value, EmbedderUnavailable)


def test_a_key_is_not_sent_to_a_url_from_the_folders_dotenv_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    (tmp_path / ".env").write_text("EMBEDDER_URL=https://evil.example/v1\nEMBEDDER_DIMENSIONS=64\n")
    trust.approve(tmp_path / ".env", registers({}))
    config = load_config({}, environment={"EMBEDDER_API_KEY": KEY}, folder=tmp_path)
    with pytest.raises(ConfigError, match="so the key is not sent to that URL") as caught:
        providers.choose("openai:tiny", config)
    assert KEY not in str(caught.value)
    (tmp_path / ".env").write_text(
        f"EMBEDDER_URL=https://mine.example/v1\nEMBEDDER_DIMENSIONS=64\nEMBEDDER_API_KEY={KEY}\n"
    )
    trust.approve(tmp_path / ".env", registers({}))
    assert key_of("openai:tiny", load_config({}, environment={}, folder=tmp_path)) == KEY


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "ключ", "sk-\x7f"])
def test_an_invalid_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(
        ConfigError, match="OPENAI_API_KEY has characters that aren't allowed in a key"
    ) as caught:
        open_embedder("openai", settings(openai_api_key=key))
    assert key not in str(caught.value)


def test_texts_cross_no_network_unencrypted() -> None:
    for url in (
        "http://example.org/v1",
        "http://192.168.1.5:11434",
        "http://ollama:11434",
        "http://localhost.example",
    ):
        with pytest.raises(ConfigError, match="unencrypted"):
            open_embedder("ollama", settings(embedder_url=url))
        assert (
            open_embedder("ollama", settings(embedder_url=url, embedder_plain_http="true"))
            is not None
        )
    for url in (
        "http://localhost:11434",
        "http://127.0.0.1:1",
        "http://[::1]:11434/",
        "https://example.org",
    ):
        assert open_embedder("ollama", settings(embedder_url=url)) is not None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("example.org", "not the URL of a service"),
        ("ftp://example.org", "not the URL of a service"),
        ("https://", "not the URL of a service"),
        ("https://exa mple.org", "not the URL of a service"),
        ("https://example.org:port/", "is not a URL"),
        ("https://[::1", "is not a URL"),
        (f"https://user:{KEY}@example.org", "contains a user name or a password"),
    ],
)
def test_an_invalid_address_is_refused_without_quoting_its_password(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_embedder("openai", settings(embedder_url=url))
    assert KEY not in str(caught.value)


def test_the_url_may_omit_the_last_part_of_the_path() -> None:
    for url in ("https://a.example/v1", "https://a.example/v1/", "https://a.example/v1/embeddings"):
        assert (
            providers.choose("openai", settings(embedder_url=url)).service.url
            == "https://a.example/v1/embeddings"
        )
    url = "https://a.example/v1/embeddings?api-version=1"
    assert providers.choose("openai", settings(embedder_url=url)).service.url == url


def test_localhost_is_reached_without_a_proxy(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert opened(server).embed("text").shape == (1, 64)


def test_the_proxy_in_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("http://", "http://me:pass%20word@"))
    embedder = opened(server, embedder_url="http://embedder.example/v1", embedder_plain_http="true")
    assert embedder.embed("text").shape == (1, 64)
    assert server.seen[0].path == "http://embedder.example/v1/embeddings"
    assert server.seen[0].headers["Host"] == "embedder.example"
    assert (
        server.seen[0].headers["Proxy-Authorization"]
        == f"Basic {b64encode(b'me:pass word').decode()}"
    )


def test_a_proxy_sees_no_key_of_an_encrypted_request(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", server.url)
    embedder = opened(server, embedder_url="https://embedder.example/v1")
    with pytest.raises(EmbedderUnavailable, match="Tunnel connection failed: 502"):
        embedder.embed("text")
    assert server.seen[0].path == "embedder.example:443"
    assert all(KEY not in str(seen) for seen in server.seen)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "https://proxy.example"])
def test_proxies_of_other_kinds_are_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(EmbedderError, match="https_proxy must be http://"):
        opened(server, embedder_url="https://embedder.example/v1").embed("text")


# --- models and their spaces


@pytest.mark.parametrize(
    ("name", "model", "dimension"),
    [
        ("openai", "openai/text-embedding-3-small/1", 1536),
        ("openai:text-embedding-3-large", "openai/text-embedding-3-large/1", 3072),
        ("ollama", "ollama/nomic-embed-text/1", 768),
        ("ollama:mxbai-embed-large:latest", "ollama/mxbai-embed-large/1", 1024),
        ("voyage", "voyage/voyage-3/1", 1024),
        ("cohere", "cohere/embed-english-v3.0/1", 1024),
        ("openai:BAAI/bge-m3", "openai/BAAI/bge-m3/1", 1024),
    ],
)
def test_the_space_is_known_before_any_request(name: str, model: str, dimension: int) -> None:
    embedder = open_embedder(name, settings())
    assert embedder is not None
    assert (embedder.space.model, embedder.space.dimension) == (model, dimension)
    assert embedder.space.noise_spread == 0.0
    assert embedder.familiarity("text") == 0.0


def test_the_dimension_of_an_unknown_model_must_be_set() -> None:
    with pytest.raises(
        ConfigError,
        match="embedder model nobody-knows is unknown; set EMBEDDER_DIMENSIONS",
    ):
        open_embedder("openai:nobody-knows", settings())
    embedder = open_embedder("openai:nobody-knows", settings(embedder_dimensions=99))
    assert embedder is not None
    assert embedder.space.dimension == 99


def test_a_dimension_that_a_model_does_not_have_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="EMBEDDER_DIMENSIONS is 100, but the vectors of voyage-3 have 1024"
    ):
        open_embedder("voyage:voyage-3", settings(embedder_dimensions=100))
    with pytest.raises(ConfigError, match="is 2000"):
        open_embedder("openai", settings(embedder_dimensions=2000))


def test_a_service_uses_the_packaged_constants_for_the_same_model() -> None:
    embedder = open_embedder("ollama:all-minilm", settings())
    assert embedder is not None
    for name in ("noise_mean", "noise_spread", "weight", "duplicate", "calibration"):
        assert getattr(embedder.space, name) == getattr(MiniLM.space, name)


def test_a_calibration_can_be_set() -> None:
    measured = "slope=31.5, middle=0.52 noise_mean=0.41,noise_spread=0.02,duplicate=0.93,weight=2.5"
    embedder = open_embedder("voyage", settings(embedder_calibration=measured))
    assert embedder is not None
    space = embedder.space
    assert (space.calibration, space.noise_mean, space.noise_spread) == ((31.5, 0.52), 0.41, 0.02)
    assert (space.duplicate, space.weight) == (0.93, 2.5)


@pytest.mark.parametrize(
    "text", ["slope", "slope=steep", "slope=0", "slope=nan", "incline=3", "duplicate=80", "=1"]
)
def test_an_invalid_calibration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="EMBEDDER_CALIBRATION has"):
        open_embedder("voyage", settings(embedder_calibration=text))


def test_model_names_are_recognized_in_several_spellings() -> None:
    assert (
        find_model("nomic-embed-text:latest")
        == find_model("Nomic-Embed-Text")
        == models()["nomic-embed-text"]
    )
    assert find_model("BAAI/bge-large-en-v1.5") == models()["bge-large-en-v1.5"]
    assert find_model("gpt") is None
    assert all(
        name == name.lower() and model.window_bytes >= 640 for name, model in models().items()
    )
    with pytest.raises(ConfigError, match="has an invalid model name"):
        open_embedder("openai:a\nb", settings())


# --- the cache


def test_a_cached_text_is_not_sent_again(server: Server, cache: Path) -> None:
    first = opened(server, embedder_cache_mb=1).embed_many(["red apples", "green pears"])
    again = opened(server, embedder_cache_mb=1).embed_many(
        ["green pears", "red apples", "blue plums"]
    )
    assert np.array_equal(first[0], again[1])
    assert np.array_equal(first[1], again[0])
    assert [seen.body["input"] for seen in server.seen] == [
        ["red apples", "green pears"],
        ["blue plums"],
    ]
    [file] = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert file.stat().st_size <= 1_000_000
    data = file.read_bytes()
    assert b"apples" not in data
    # A vector can't be read without its text either: its zeros, which are most of its numbers,
    # don't show.
    rows = [data[at : at + 16 + 4 * 64] for at in range(0, len(data), 16 + 4 * 64)]
    assert all(row.count(0) < 20 for row in rows if any(row))
    assert sum(any(row) for row in rows) == 3


def test_questions_models_and_addresses_are_cached_separately(server: Server, cache: Path) -> None:
    embedder = opened(server, "voyage", embedder_cache_mb=1)
    embedder.embed("apples")
    embedder.embed_query("apples")
    assert [seen.body["input_type"] for seen in server.seen] == ["document", "query"]
    opened(server, "openai", embedder_cache_mb=1).embed("apples")
    with Server() as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        opened(other, "voyage", embedder_cache_mb=1).embed("apples")
        other.shutdown()
        thread.join()
    assert len(other.seen) == 1
    assert len(server.seen) == 3


def test_vectors_received_before_a_failure_are_kept(server: Server) -> None:
    server.next += [proper, *[status(500)] * MAX_TRIES]
    # In a small cache two of the texts may share a row.
    texts = [f"text {at}" for at in range(20)]
    with pytest.raises(EmbedderUnavailable):
        opened(server, "ollama", embedder_cache_mb=256).embed_many(texts)
    server.seen.clear()
    assert len(opened(server, "ollama", embedder_cache_mb=256).embed_many(texts)) == 20
    assert [len(seen.body["input"]) for seen in server.seen] == [4]


def test_a_damaged_cache_is_ignored(server: Server, cache: Path) -> None:
    right = opened(server, embedder_cache_mb=1).embed("red apples")
    [file] = cache.iterdir()
    data = file.read_bytes()
    at = len(data) - 100  # in the vector of the only row
    for damaged in (
        data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        data[:at],
        b"",
        os.urandom(len(data)),
    ):
        file.write_bytes(damaged)
        assert np.array_equal(opened(server, embedder_cache_mb=1).embed("red apples"), right)
    assert len(server.seen) == 5


def test_a_cache_never_exceeds_its_maximum_size(server: Server, cache: Path) -> None:
    embedder = opened(server, "openai", embedder_cache_mb=1, embedder_dimensions=64)
    embedder._cache._rows = 10
    for at in range(8):
        embedder.embed_many([f"text {at} {number}" for number in range(10)])
    [file] = cache.iterdir()
    assert file.stat().st_size <= 10 * (16 + 4 * 64)


def test_an_unwritable_cache_is_reported_once_and_embedding_still_works(
    server: Server, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.write_text("no folder")
    embedder = opened(server, embedder_cache_mb=1)
    for _ in range(3):
        assert embedder.embed("text").shape == (1, 64)
    assert len([record for record in caplog.records if "are not cached in" in record.message]) == 1


def test_no_cache_is_created_if_its_size_is_0(server: Server, cache: Path) -> None:
    opened(server, embedder_cache_mb=0).embed("text")
    assert not cache.exists()


@pytest.mark.thorough
def test_many_threads_and_processes_share_one_cache(server: Server, tmp_path: Path) -> None:
    script = """
import sys
from memories.config import load_config
from memories.embedders import open_embedder
flags = {"embedder_url": sys.argv[1], "embedder_dimensions": "64", "embedder_cache_mb": "1"}
embedder = open_embedder("openai:tiny", load_config(flags))
for at in range(30):
    vector = embedder.embed(f"shared text {at}")
    assert abs(float((vector ** 2).sum()) - 1) < 1e-5
print(len(embedder.embed("end")))
"""
    command = [sys.executable, "-W", "error", "-c", script, server.url]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    embedder = opened(server, embedder_url=server.url, embedder_cache_mb=1)
    texts = [f"shared text {at}" for at in range(30)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(embedder.embed, texts * 4))
    printed = [process.communicate(timeout=300) for process in running]
    assert printed == [("1\n", "")] * 3
    for text, vector in zip(texts * 4, found, strict=True):
        assert np.allclose(vector, FAKE.embed(text), atol=1e-6)


# --- without the service


@pytest.mark.parametrize("trouble", [status(500), status(429), status(401), drop])
def test_with_the_fallback_a_failing_service_returns_no_vectors(
    server: Server, trouble: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    server.next += [trouble] * MAX_TRIES
    made = embed_to_store(opened(server, embedder_fallback="local"), ["one", "two"])
    assert list(made.vectors) == [None, None]
    assert made.note.startswith(
        "stored without a vector, so only words find it until `memory reembed` is run: the emb"
    )
    assert made.note in caplog.text


def test_with_the_fallback_there_is_one_attempt_of_three_seconds(server: Server) -> None:
    """A large request gets more time; callers that can't use words wait as long as without a
    fallback.
    """
    seen: list[Patience] = []

    class Failing(ServiceClient):
        def post(self, body: object, patience: Patience, read: object) -> Any:
            seen.append(patience)
            raise EmbedderUnavailable("it is unwell")

    def ask(act: Callable[[HTTPEmbedder], object], fallback: str = "local") -> Patience:
        embedder = opened(server, embedder_fallback=fallback)
        embedder._client = Failing(embedder._chosen.service)
        with contextlib.suppress(EmbedderUnavailable):
            act(embedder)
        return seen.pop()

    assert ask(lambda embedder: embed_query(embedder, "text")) == Patience(3, 3, 1)
    assert ask(lambda embedder: embed_to_store(embedder, ["text"])) == Patience(3, 3, 1)
    assert ask(
        lambda embedder: embed_to_store(embedder, [f"text {at}" for at in range(32)])
    ) == Patience(6, 6, 1)
    assert ask(lambda embedder: embed_many(embedder, ["text"])) == Patience(10, 40)
    assert ask(lambda embedder: embed_query(embedder, "text"), "none") == Patience(10, 20)
    deadline = Deadline(2, whole=True)
    for fallback, tries in (("none", None), ("local", 1)):
        patience = ask(
            lambda embedder: deadline.run(lambda: embed_query(embedder, "text")), fallback
        )
        assert patience == Patience(1, 1, tries)


def test_a_failure_also_stops_callers_with_a_similar_time_limit(tmp_path: Path) -> None:
    now = [1_000.0]
    rest = Rest(tmp_path, "service", lambda: now[0])
    rest.begin("too late for a hook", 0.25, 0)
    other = Rest(tmp_path, "service", lambda: now[0])
    assert (other.reason(0.3), other.reason(3)) == ("too late for a hook", "")
    rest.begin("retry in 120 seconds", 3, 120)
    now[0] += 119
    assert (other.reason(3), Rest(tmp_path, "another", lambda: now[0]).reason(3)) == (
        "retry in 120 seconds",
        "",
    )
    now[0] += 2
    assert other.reason(3) == ""
    rest.begin("now", 3, 0)
    now[0] -= MAX_SECONDS  # the clock was set back
    assert other.reason(3) == ""
    absent = Rest(tmp_path / "absent", "service", lambda: now[0])
    absent.begin("it is unwell", 3, 0)
    assert absent.reason(3) == "it is unwell"
    assert not absent.path.parent.exists()


def test_without_the_fallback_a_failing_service_is_an_error(server: Server) -> None:
    server.next += [status(500)] * MAX_TRIES
    with pytest.raises(EmbedderUnavailable) as caught:
        embed_to_store(opened(server), ["one"])
    assert not caught.value.words_instead


def test_with_the_fallback_the_error_allows_a_search_by_words(server: Server) -> None:
    server.next += [status(500)] * MAX_TRIES
    with pytest.raises(EmbedderUnavailable) as caught:
        embed_query(opened(server, embedder_fallback="local"), "text")
    assert caught.value.words_instead


def test_with_the_fallback_a_failing_service_is_not_asked_each_time(server: Server) -> None:
    server.next += [status(500)] * MAX_TRIES
    time = Time()
    embedder = opened(server, time=time, embedder_fallback="local")
    with pytest.raises(EmbedderUnavailable) as first:
        embedder.embed_query("text")
    asked, waited = len(server.seen), time.now
    with pytest.raises(EmbedderUnavailable) as second:
        embedder.embed("text")
    assert (str(second.value), len(server.seen), time.now) == (str(first.value), asked, waited)
    server.next.clear()
    time.now += MIN_SECONDS
    assert embedder.embed("text").shape == (1, 64)


def test_a_local_embedder_needs_no_methods_of_remote_ones() -> None:
    assert not isinstance(FAKE, RemoteEmbedder)
    assert np.array_equal(embed_many(FAKE, ["one"])[0], FAKE.embed("one"))
    assert np.array_equal(embed_query(FAKE, "one"), FAKE.embed("one"))
    assert embed_to_store(None, ["one", "two"]).vectors == [None, None]
    assert embed_to_store(FAKE, []).vectors == []


def test_opening_a_service_loads_no_library_and_sends_no_request(tmp_path: Path) -> None:
    script = """
import sys
from memories.embedders import open_embedder
open_embedder("ollama").space
print(sorted(sys.modules.keys() & {"numpy", "ssl", "http.client", "logging"}))
"""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=300, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_unreachable_service_does_not_hide_a_model_mismatch(
    server: Server, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/m.db"
    with Memories(store, embedder="fake") as memories:
        memories.create("made with the embedder for tests")
    server.next += [status(401)] * 100
    for fallback in ("none", "local"):
        with Memories(store, embedder=opened(server, embedder_fallback=fallback)) as memories:
            with pytest.raises(EmbedderMismatch, match="memory reembed"):
                memories.search("made")
            with pytest.raises(EmbedderMismatch if fallback == "local" else EmbedderError):
                memories.create("something else")
            assert memories.status().memory_count == 1
