"""The Qdrant store passes the contract in a folder, over REST, and on the server of `QDRANT_URL`.

Qdrant's server can't be installed from a package, so a REST server of these tests validates each
request with the models of the API and carries it out in the local mode of Qdrant's own client.
"""

import contextlib
import gc
import json
import os
import pickle
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("qdrant_client")
pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after its assertions are rewritten
    MEMORY,
    SPACE,
    OpenStore,
    StoreContract,
    everything,
    pool,
    record,
    search,
    unit_vectors,
)
from qdrant_client import QdrantClient, models  # noqa: E402

from memories import Memories  # noqa: E402 - after its assertions are rewritten
from memories.errors import (  # noqa: E402
    ConfigError,
    Conflict,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreUnreachable,
)
from memories.stores.documents.driver import Condition, Kind, Partition, Point  # noqa: E402
from memories.stores.qdrant import folder as qdrant_folder  # noqa: E402
from memories.stores.qdrant import local  # noqa: E402
from memories.stores.qdrant.driver import QdrantDriver, Verb  # noqa: E402
from memories.stores.qdrant.folder import FolderTransport  # noqa: E402
from memories.stores.qdrant.local import persistence  # noqa: E402
from memories.stores.qdrant.store import QdrantStore, RestTransport  # noqa: E402
from memories.stores.records import (  # noqa: E402
    Collection,
    Ref,
)
from memories.stores.words import Term  # noqa: E402
from opening import opening  # noqa: E402

RunPython = Callable[..., subprocess.CompletedProcess[str]]
RECORDS = Partition(Kind.RECORDS, Collection.MEMORY, "ann")
VECTORS = Partition(Kind.VECTORS, Collection.MEMORY, "ann", "s1")


# --- Qdrant's REST API on top of its client's local mode


class Refused(Exception):
    """Makes the server answer with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiServer:
    """Answers the store's requests as Qdrant documents them; tests set the attributes.

    Attributes:
        key: The API key that requests need; "" for none.
        version: The version that it reports.
        seen: Every request: method, path with query, body.
        refusing: If set, the status and body of every answer.
        cut: The number of requests that it carries out without an answer, closing the connection.
        status: The status that it reports for a write.
    """

    def __init__(self) -> None:
        self.key, self.version, self.status = "", "1.17.0", "completed"
        self.seen: list[tuple[str, str, Any]] = []
        self.refusing: tuple[int, bytes] | None = None
        self.cut = 0
        self.client = QdrantClient(":memory:")
        self.indexes: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                outer.answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - standard names

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"qdrant://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.client.close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        data = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else None
        status, content = 200, b""
        try:
            if self.refusing:
                status, content = self.refusing
            elif self.key and handler.headers.get("api-key") != self.key:
                status, content = 401, b"Must provide an API key or an Authorization bearer token"
            else:
                with self._lock:
                    self.seen.append((handler.command, handler.path, body))
                    result = self._do(handler.command, *handler.path.partition("?")[::2], body)
                wrapped = (
                    result
                    if handler.path == "/"
                    else {"result": result, "status": "ok", "time": 0.001}
                )
                content = json.dumps(wrapped).encode()
        except Refused as exc:
            error = models.ErrorResponse(
                time=0.0, status=models.ErrorResponseStatus(error=str(exc))
            )
            status, content = exc.status, error.model_dump_json(exclude={"result"}).encode()
        if self.cut:
            self.cut -= 1
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _do(self, method: str, path: str, query: str, body: Any) -> Any:
        if path == "/":
            return models.VersionInfo(
                title="qdrant - vector search engine", version=self.version
            ).model_dump()
        if path == "/collections":
            return self.client.get_collections().model_dump(mode="json")
        _, _, name, *rest = path.split("/")
        action = f"{method} /{'/'.join(rest)}"
        if action == "PUT /":
            return self._create(name, body)
        if not self.client.collection_exists(name):
            raise Refused(404, f"Not found: Collection `{name}` doesn't exist!")
        if method == "PUT" or action in ("POST /points/payload", "POST /points/delete"):
            assert query == "wait=true&ordering=strong"
        answer: Any = ACTIONS[action](self, name, body)
        return answer

    def _create(self, name: str, body: Any) -> bool:
        asked = models.CreateCollection.model_validate(body)
        if self.client.collection_exists(name):
            raise Refused(409, f"Wrong input: Collection `{name}` already exists!")
        self.client.create_collection(name, vectors_config=asked.vectors, metadata=asked.metadata)
        self.indexes[name] = {}
        return True

    def _info(self, name: str, _: Any) -> Any:
        info = self.client.get_collection(name)
        info.payload_schema = {
            field: models.PayloadIndexInfo(data_type=schema["type"], points=0)
            for field, schema in self.indexes[name].items()
        }
        return info.model_dump(mode="json", exclude_none=True)

    def _remove(self, name: str, _: Any) -> bool:
        return self.client.delete_collection(name)

    def _index(self, name: str, body: Any) -> Any:
        models.CreateFieldIndex.model_validate(body)
        self.indexes[name][body["field_name"]] = body["field_schema"]
        return self._written()

    def _written(self) -> Any:
        return models.UpdateResult(
            operation_id=1, status=models.UpdateStatus(self.status)
        ).model_dump(mode="json")

    def _strict(self, name: str, narrowed: models.Filter | None) -> models.Filter | None:
        """Refuse a filter on a field without an index, like a server in strict mode."""
        for condition in (narrowed.must if narrowed else None) or []:
            key = getattr(condition, "key", None)
            if key is not None and key not in self.indexes[name]:
                raise Refused(400, f"Bad request: Index required but not found for {key}")
        return narrowed

    def _upsert(self, name: str, body: Any) -> Any:
        asked = models.PointsList.model_validate(body)
        where = self._strict(name, asked.update_filter)
        self.client.upsert(name, asked.points, update_filter=where, update_mode=asked.update_mode)
        return self._written()

    def _set_payload(self, name: str, body: Any) -> Any:
        asked = models.SetPayload.model_validate(body)
        self.client.set_payload(name, asked.payload, points=self._strict(name, asked.filter))
        return self._written()

    def _delete(self, name: str, body: Any) -> Any:
        kind: Any = models.FilterSelector if "filter" in body else models.PointIdsList
        self.client.delete(name, kind.model_validate(body))
        return self._written()

    def _get(self, name: str, body: Any) -> Any:
        asked = models.PointRequest.model_validate(body)
        found = self.client.retrieve(
            name, asked.ids, with_payload=asked.with_payload, with_vectors=asked.with_vector
        )
        return [
            models.Record(**dict(entry)).model_dump(mode="json", exclude_none=True)
            for entry in found
        ]

    def _scroll(self, name: str, body: Any) -> Any:
        asked = models.ScrollRequest.model_validate(body)
        found, following = self.client.scroll(
            name, self._strict(name, asked.filter), limit=asked.limit, offset=asked.offset,
            with_payload=asked.with_payload, with_vectors=asked.with_vector,
        )  # fmt: skip
        return models.ScrollResult(points=found, next_page_offset=following).model_dump(mode="json")

    def _count(self, name: str, body: Any) -> Any:
        asked = models.CountRequest.model_validate(body)
        return self.client.count(
            name, self._strict(name, asked.filter), exact=asked.exact
        ).model_dump(mode="json")

    def _query(self, name: str, body: Any) -> Any:
        asked = models.QueryRequest.model_validate(body)
        assert asked.params is not None and asked.params.quantization.rescore
        found = self.client.query_points(
            name, asked.query, query_filter=self._strict(name, asked.filter), limit=asked.limit,
            with_payload=asked.with_payload,
        )  # fmt: skip
        return found.model_dump(mode="json")

    def _facet(self, name: str, body: Any) -> Any:
        asked = models.FacetRequest.model_validate(body)
        assert asked.key in self.indexes[name]
        return self.client.facet(name, asked.key, limit=asked.limit, exact=asked.exact).model_dump(
            mode="json"
        )


ACTIONS: dict[str, Callable[[ApiServer, str, Any], Any]] = {
    "GET /": ApiServer._info,
    "DELETE /": ApiServer._remove,
    "PUT /index": ApiServer._index,
    "PUT /points": ApiServer._upsert,
    "POST /points/payload": ApiServer._set_payload,
    "POST /points/delete": ApiServer._delete,
    "POST /points": ApiServer._get,
    "POST /points/scroll": ApiServer._scroll,
    "POST /points/count": ApiServer._count,
    "POST /points/query": ApiServer._query,
    "POST /facet": ApiServer._facet,
}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server with Qdrant's REST interface."""
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder, in memory if possible: local mode waits for the disk four times for each point."""
    memory = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="memories-", dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(made) / "qdrant"
    shutil.rmtree(made)


@pytest.fixture(autouse=True)
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the stores that a test leaves open."""
    made: list[RestTransport] = []
    prepare = RestTransport.__init__

    def noted(transport: RestTransport, *arguments: Any, **options: Any) -> None:
        prepare(transport, *arguments, **options)
        made.append(transport)

    monkeypatch.setattr(RestTransport, "__init__", noted)
    yield
    for transport in made:
        transport.close()


# --- the contract


@pytest.mark.thorough
class TestQdrantFolder(StoreContract):
    """A few tests in a folder; `tests/stores/test_documents.py` runs the contract on the same store
    without Qdrant's client.
    """

    exact_scores = False

    @pytest.fixture
    def open_store(self, folder: Path) -> Iterator[OpenStore]:
        with opening(lambda space: QdrantStore(f"qdrant:///{folder}", space)) as open_store:
            yield open_store


@pytest.mark.slow
class TestQdrantRest(StoreContract):
    """The contract over REST, with the filters of the client, which looks at every point. Faster
    tests of REST are below.
    """

    sequences = 15
    exact_scores = False

    @pytest.fixture
    def open_store(self, server: ApiServer) -> Iterator[OpenStore]:
        with opening(lambda space: QdrantStore(f"{server.url}/contract", space)) as open_store:
            yield open_store


@pytest.mark.slow
@pytest.mark.skipif(
    "QDRANT_URL" not in os.environ,
    reason="QDRANT_URL names no server, as in qdrant://127.0.0.1:6333",
)
class TestQdrantServer(StoreContract):
    """The contract on a real server; each test creates its own collections and removes them."""

    exact_scores = False

    @pytest.fixture
    def open_store(self) -> Iterator[OpenStore]:
        address, _, query = os.environ["QDRANT_URL"].partition("?")
        name = f"test-{uuid.uuid4().hex}"
        url = f"{address.rstrip('/')}/{name}" + (f"?{query}" if query else "")
        with opening(lambda space: QdrantStore(url, space)) as open_store:
            yield open_store
        store = QdrantStore(url, SPACE)
        transport = store._driver._transport  # type: ignore[attr-defined]
        for entry in transport.ask(Verb.COLLECTIONS)["collections"]:
            if entry["name"].startswith(name):
                transport.ask(Verb.REMOVE, entry["name"])
        store.close()


# --- a lost store


def test_an_emptied_server_is_not_replaced_by_an_empty_store(
    server: ApiServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMBEDDER", raising=False)
    with Memories(server.url, embedder="none") as memories:
        memories.create("Tea is served hot")
        memories.scratchpad()
    pad = home / "shared" / "scratchpad.yaml"
    before = pad.read_bytes()
    for collection in server.client.get_collections().collections:
        server.client.delete_collection(collection.name)
    for change in (
        Memories.list,
        Memories.namespaces,
        Memories.tags,
        lambda memories: memories.create("Tea is served cold"),
        lambda memories: memories.add_turns("standup", ["Tea?"]),
    ):
        with Memories(server.url, embedder="none") as memories, pytest.raises(StoreDamaged) as e:
            change(memories)
        assert f" has no records, but is still mirrored by {pad}; put the records back" in str(
            e.value
        )
    for embedder in ("none", None):  # the default embedder reads the store's model first
        with Memories(server.url, embedder=embedder) as memories:
            for _ in range(2):
                with pytest.raises(StoreDamaged):
                    memories.list()
                with pytest.raises(StoreDamaged):
                    memories.scratchpad(refresh=True)
    assert pad.read_bytes() == before
    pad.unlink()
    with Memories(server.url, embedder="none") as memories:
        assert memories.create("Tea is served cold").stored


def test_losing_an_open_store_does_not_empty_the_scratchpad(server: ApiServer, home: Path) -> None:
    with Memories(server.url, embedder="none") as memories:
        memories.create("Tea is served hot")
        memories.scratchpad()
        pad = home / "shared" / "scratchpad.yaml"
        before = pad.read_bytes()
        for collection in server.client.get_collections().collections:
            server.client.delete_collection(collection.name)
        for refresh in (
            Memories.list,
            lambda memories: memories.scratchpad(refresh=True),
            lambda memories: memories.scratchpad(rebuild=True),
        ):
            with pytest.raises(StoreDamaged, match="has no records, but is still mirrored by"):
                refresh(memories)
        assert pad.read_bytes() == before


@pytest.mark.parametrize("is_server", [True, False])
def test_another_collection_does_not_count_as_lost(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_server: bool
) -> None:
    url = server.url if is_server else f"qdrant:///{tmp_path}/notes"
    with Memories(url, embedder="none") as memories:
        memories.create("Tea is served hot")
        memories.scratchpad()
    monkeypatch.setenv("COLLECTION_NAME", "other")
    with Memories(url, embedder="none") as memories:
        assert memories.list().memories == ()
        assert memories.scratchpad().entries == ()
        memories.create("Coffee is served cold")
        [entry] = memories.scratchpad().entries
        assert entry.content == "Coffee is served cold"
    monkeypatch.delenv("COLLECTION_NAME")
    with Memories(url, embedder="none") as memories:
        [entry] = memories.scratchpad().entries
        assert entry.content == "Tea is served hot"


# --- the driver's requests


@pytest.fixture(params=["folder", "rest"])
def driver(
    request: pytest.FixtureRequest, folder: Path, server: ApiServer
) -> Iterator[QdrantDriver]:
    """A driver over a folder, and one over REST."""
    transport = (
        FolderTransport(folder)
        if request.param == "folder"
        else RestTransport("127.0.0.1", server.port)
    )
    driver = QdrantDriver(transport, "memories")
    yield driver
    driver.close()


def point(name: str, words: str = "", **payload: Any) -> Point:
    """Return a point with a payload and words."""
    return Point(name, {"body": name, **payload}, words=words.split())


def payloads(driver: QdrantDriver, part: Partition = RECORDS) -> dict[str, Any]:
    """Return the payload of each point."""
    return {found.id: dict(found.payload) for found in driver.find(part, [])}


def requests_of(server: ApiServer, path: str) -> list[Any]:
    """Return the bodies of the requests to a path."""
    return [body for _, asked, body in server.seen if asked.partition("?")[0] == path]


def test_collections_are_created_with_the_best_options_for_the_server(server: ApiServer) -> None:
    store = QdrantStore(f"{server.url}/team", SPACE)
    store.append([record("m")])
    store.close()
    names = [entry.name for entry in server.client.get_collections().collections]
    records, vectors = sorted(names)
    assert records == "team" and vectors.startswith("team~")
    (made,) = requests_of(server, "/collections/team")[1:2]
    assert (made["vectors"], made["shard_number"]) == ({}, 1)
    (made,) = [body for body in requests_of(server, f"/collections/{vectors}") if body]
    assert made["vectors"] == {"size": SPACE.dimension, "distance": "Cosine", "on_disk": True}
    assert made["quantization_config"] == {
        "scalar": {"type": "int8", "quantile": 0.99, "always_ram": True}
    }
    for name in names:
        assert server.indexes[name]["_part"] == {"type": "keyword", "is_tenant": True}
    assert server.indexes["team"]["ended"] == {"type": "integer"}
    assert server.indexes["team"]["labels"] == {"type": "keyword"}


def test_the_next_writer_creates_an_index_that_a_crash_left_out(server: ApiServer) -> None:
    driver = QdrantDriver(RestTransport("127.0.0.1", server.port), "memories")
    driver.add(RECORDS, [point("a")])
    del server.indexes["memories"]["labels"]
    other = QdrantDriver(RestTransport("127.0.0.1", server.port), "memories")
    other.add(RECORDS, [point("b")])
    assert server.indexes["memories"]["labels"] == {"type": "keyword"}


def test_a_search_is_limited_to_its_pool_and_rescored(server: ApiServer) -> None:
    store = QdrantStore(f"{server.url}/team", SPACE)
    store.append([record("m")])
    server.seen.clear()
    search(store, "note m")
    (asked,) = [body for _, path, body in server.seen if path.endswith("/points/query")]
    assert {"key": "_part", "match": {"value": "vectors/memory/ann"}} in asked["filter"]["must"]
    assert asked["params"]["quantization"] == {"rescore": True, "oversampling": 2.0}
    assert asked["params"]["hnsw_ef"] >= 256


def test_an_existing_point_is_never_overwritten(driver: QdrantDriver) -> None:
    driver.add(RECORDS, [point("a", by="first")])
    driver.add(RECORDS, [point("a", by="second"), point("b", by="second")])
    assert {name: found["by"] for name, found in payloads(driver).items()} == {
        "a": "first",
        "b": "second",
    }


def test_exactly_one_of_many_concurrent_writers_to_a_position_succeeds(server: ApiServer) -> None:
    stores = [QdrantStore(f"{server.url}/team", SPACE) for _ in range(6)]
    drivers = [store._driver for store in stores]
    drivers[0].set_missing_state({"schema": "1"})
    begin = threading.Barrier(len(drivers))

    def write(number: int) -> None:
        begin.wait(300)
        drivers[number].add(RECORDS, [point("a", by=str(number))])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(drivers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = {driver.get(RECORDS, ["a"])[0].payload["by"] for driver in drivers}
    assert len(seen) == 1
    for store in stores:
        store.close()


def test_the_second_writer_to_a_position_gets_a_conflict(server: ApiServer) -> None:
    first, second = (QdrantStore(f"{server.url}/team", SPACE) for _ in range(2))
    first.append([record("m", text="first")])
    with pytest.raises(Conflict):
        second.append([record("m", text="second")])
    assert [found.text for found in everything(first, pool())] == ["first"]


def test_fields_are_set_and_removed(driver: QdrantDriver) -> None:
    driver.add(RECORDS, [point("a", "x y", by="w", ended=1), point("b", by="w", ended=1)])
    driver.update(RECORDS, {"a": {"ended": 2, "by": None, "field.x": "1"}, "missing": {"ended": 2}})
    driver.update(
        RECORDS,
        {"a": {"accesses": 3}, "b": {"accesses": 4, "by": None}, "missing": {"accesses": 1}},
    )
    assert payloads(driver) == {
        "a": {"body": "a", "ended": 2, "field.x": "1", "accesses": 3},
        "b": {"body": "b", "ended": 1, "accesses": 4},
    }
    assert driver.find(RECORDS, [Condition("by", "=", "w")]) == []


def test_different_changes_are_sent_in_one_request(server: ApiServer) -> None:
    driver = QdrantDriver(RestTransport("127.0.0.1", server.port), "memories")
    driver.add(RECORDS, [point("a", ended=1), point("b", ended=1)])
    server.seen.clear()
    driver.update(RECORDS, {"a": {"ended": 2}, "b": {"ended": 3}})
    (written,) = [body for method, _, body in server.seen if method == "PUT"]
    assert len(written["points"]) == 2 and written["update_mode"] == "update_only"
    assert {name: found["ended"] for name, found in payloads(driver).items()} == {"a": 2, "b": 3}


def test_concurrent_changes_by_another_writer_are_kept(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (
        QdrantDriver(RestTransport("127.0.0.1", server.port), "memories") for _ in range(2)
    )
    ours.add(RECORDS, [point("a", ended=1), point("b", ended=1)])
    asked = ours._transport.ask
    between = iter([{"a": {"accesses": 7}}])

    def ask(verb: Verb, *details: Any) -> Any:
        if verb is Verb.UPSERT:
            for change in between:
                theirs.update(RECORDS, change)
        return asked(verb, *details)

    monkeypatch.setattr(ours._transport, "ask", ask)
    ours.update(RECORDS, {"a": {"ended": 2}, "b": {"ended": 3}})
    assert payloads(theirs) == {
        "a": {"body": "a", "ended": 2, "accesses": 7},
        "b": {"body": "b", "ended": 3},
    }


def test_points_of_different_parts_and_names_never_share_an_id(driver: QdrantDriver) -> None:
    """Namespaces and names can contain any characters, even those that once separated them."""
    first, second = RECORDS._replace(namespace="a"), RECORDS._replace(namespace="a\nb")
    driver.add(first, [point("b\nc", by="first")])
    driver.add(second, [point("c", by="second")])
    assert payloads(driver, first) == {"b\nc": {"body": "b\nc", "by": "first"}}
    assert payloads(driver, second) == {"c": {"body": "c", "by": "second"}}


def test_points_of_other_parts_are_never_returned(driver: QdrantDriver) -> None:
    for part, field in ((RECORDS, {}), (VECTORS, {"vector": unit_vectors(1)[0]})):
        driver.add(part, [Point("a", {}, **field), Point("b", {}, **field)])
        (entry,) = driver._entries(part, ["a"], True)
        name = driver._collection_name(part)
        moved = {
            "payload": {"_part": "records/memory/bob"},
            "filter": {"must": [{"has_id": [entry["id"]]}]},
        }
        driver._transport.ask(Verb.SET_PAYLOAD, name, moved)
    assert [found.id for found in driver.get(RECORDS, ["a", "b"])] == ["b"]
    assert driver.vectors(VECTORS, ["a", "b"]).keys() == {"b"}


def test_a_removal_names_the_places_that_may_still_hold_the_bytes(
    server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{server.port}"
    for url, expected in (
        (
            server.url,
            (f"the segments of Qdrant at {address}, until its optimizer has rewritten them",),
        ),
        (f"qdrant:///{folder}", (f"the files in {folder}",)),
    ):
        monkeypatch.setattr(qdrant_folder, "_overwrites_deleted", lambda: False)
        store = QdrantStore(url, SPACE)
        store.append([record("m")])
        assert store.remove([Ref(MEMORY, "ann", "m", 1)]) == expected
        store.close()
    monkeypatch.setattr(qdrant_folder, "_overwrites_deleted", lambda: True)
    assert QdrantStore(f"qdrant:///{folder}", SPACE).remove([]) == ()


@pytest.mark.skipif(
    not qdrant_folder._overwrites_deleted(), reason="this SQLite doesn't overwrite deleted content"
)
def test_a_removed_record_leaves_no_bytes_in_a_folder(folder: Path) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m", text="quetzalcoatl " * 300), record("n")])
    assert any(b"quetzalcoatl" in file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert store.remove([Ref(MEMORY, "ann", "m", 1)]) == ()
    assert not any(
        b"quetzalcoatl" in file.read_bytes() for file in folder.rglob("*") if file.is_file()
    )
    store.close()


def test_the_first_client_to_set_a_value_wins(driver: QdrantDriver) -> None:
    assert driver.state() == {}
    assert driver.set_missing_state({"schema": "1", "space": "a"}) == {"schema": "1", "space": "a"}
    assert driver.set_missing_state({"space": "b", "model": "m"}) == {
        "schema": "1",
        "space": "a",
        "model": "m",
    }
    driver.set_state({"schema": "2"})
    assert driver.state() == {"schema": "2"}
    assert driver.parts() == []


def test_long_answers_and_long_requests_are_split(
    driver: QdrantDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.stores.qdrant.driver._PAGE", 3)
    monkeypatch.setattr("memories.stores.qdrant.driver._IDS_PAGE", 4)
    monkeypatch.setattr("memories.stores.qdrant.driver._MAX_BYTES", 700)
    monkeypatch.setattr(driver, "max_batch", 5)
    names = [f"p{number}" for number in range(17)]
    driver.add(RECORDS, [point(name, "w" * 30) for name in names])
    assert (
        sorted(driver.ids(RECORDS, []))
        == sorted(found.id for found in driver.find(RECORDS, []))
        == sorted(names)
    )
    assert sorted(found.id for found in driver.get(RECORDS, [*names, "none", names[0]])) == sorted(
        names
    )
    assert driver.count(RECORDS) == 17
    some = [found.id for found in driver.find(RECORDS, [], limit=7)]
    assert len(some) == 7 and [found.id for found in driver.find(RECORDS, [], limit=7)] == some
    driver.update(RECORDS, {name: {"accesses": number} for number, name in enumerate(names)})
    assert sorted(found["accesses"] for found in payloads(driver).values()) == list(range(17))
    driver.delete(RECORDS, names[1:])
    assert driver.ids(RECORDS, []) == ["p0"]


def test_words_are_found_by_token_phrase_and_prefix(driver: QdrantDriver) -> None:
    driver.add(
        RECORDS,
        [
            point("a", "tea pot"),
            point("b", "tea"),
            point("c", "чайник чай"),
            point("d", "teapot ча"),
        ],
    )
    for term, expected in {
        Term(("tea",), open_ended=False): {"a", "b"},
        Term(("tea", "pot"), open_ended=False): {"a"},
        Term(("чайник",), open_ended=True): {"c"},
        Term(("чайн",), open_ended=True): {"c"},
        Term(("pot",), open_ended=False): {"a"},
    }.items():
        assert set(driver.holders(RECORDS, term)) == expected, term
    assert {"c", "d"} <= set(
        driver.holders(RECORDS, Term(("ча",), open_ended=True))
    )  # more results are allowed
    assert {"a", "b", "d"} <= set(driver.holders(RECORDS, Term(("te",), open_ended=True)))


@pytest.mark.parametrize("few", [0, 1_000])
def test_a_search_finds_the_nearest_points_of_its_part(
    driver: QdrantDriver, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_MAX_COMPARED", few)
    drawn = unit_vectors(60)
    other = VECTORS._replace(namespace="bob")
    driver.add(VECTORS, [Point(f"a{number}", {}, drawn[number]) for number in range(20)])
    driver.add(other, [Point(f"b{number}", {}, drawn[20 + number]) for number in range(40)])
    exact = sorted(range(20), key=lambda number: -float(drawn[number] @ drawn[0]))
    found = driver.nearest(VECTORS, drawn[0], k=5)
    assert [name for name, _ in found] == [f"a{number}" for number in exact[:5]]
    assert found[0][1] == pytest.approx(1.0, abs=1e-5)
    assert len(driver.nearest(VECTORS, drawn[0], k=100)) == 20
    (kept,) = driver.vectors(VECTORS, ["a7", "none"]).values()
    assert np.allclose(kept, drawn[7], atol=1e-6)


def test_a_space_is_removed_with_its_last_part(driver: QdrantDriver) -> None:
    vector = unit_vectors(1)[0]
    other = VECTORS._replace(namespace="a/b")
    for part in (VECTORS, other):
        driver.add(part, [Point("a", {}, vector)])
    driver.add(RECORDS, [point("a")])
    assert sorted(driver.parts()) == sorted([RECORDS, VECTORS, other])
    driver.drop(VECTORS)
    assert sorted(driver.parts()) == sorted([RECORDS, other])
    driver.drop(other)
    driver.drop(other)
    names = {entry["name"] for entry in driver._transport.ask(Verb.COLLECTIONS)["collections"]}
    assert names == {"memories"}
    driver.add(VECTORS, [Point("a", {}, vector)])
    assert driver.count(VECTORS) == 1


def test_a_removed_collection_is_created_again(server: ApiServer) -> None:
    driver = QdrantDriver(RestTransport("127.0.0.1", server.port), "memories")
    driver.add(RECORDS, [point("a")])
    server.client.delete_collection("memories")
    assert driver.ids(RECORDS, []) == []
    driver.add(RECORDS, [point("b")])
    assert driver.ids(RECORDS, []) == ["b"]


# --- servers, and servers that aren't Qdrant


def test_the_key_is_sent_and_never_shown(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "s3cret"
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    with pytest.raises(StoreError, match=r"requires a key \(status 401\); set QDRANT_API_KEY"):
        QdrantStore(server.url, SPACE).count(pool())
    with pytest.raises(StoreError, match="refused the key") as raised:
        QdrantStore(f"qdrant://:wr0ng@127.0.0.1:{server.port}", SPACE).count(pool())
    assert "wr0ng" not in str(raised.value)
    monkeypatch.setenv("QDRANT_API_KEY", "s3cret")
    store = QdrantStore(server.url, SPACE)
    store.append([record("m")])
    assert store.info(pool()).url == f"{server.url}/memories"
    assert QdrantStore(f"qdrant://:s3cret@127.0.0.1:{server.port}", SPACE).count(pool()) == 1


@pytest.mark.parametrize(
    ("url", "key", "tls"),
    [
        ("qdrant://db:6333", "", False),
        ("qdrant://db:6333", "k", True),
        ("qdrant://:k@db", "", True),
        ("qdrant://:k@localhost", "", False),
        ("qdrant://:k@db?tls=0", "", False),
        ("qdrant://db/team?tls=1", "", True),
        ("qdrant://db/team?ssl=true", "", True),
        ("qdrant://:k@db?ssl=no", "", False),
    ],
)
def test_a_key_is_sent_to_other_machines_only_over_tls(
    url: str, key: str, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", key)
    transport = QdrantStore(url, SPACE)._driver._transport  # type: ignore[attr-defined]
    assert transport._client.address.tls is tls
    assert transport._client.address.port == 6333


@pytest.mark.parametrize(
    "url",
    [
        "qdrant:///", "qdrant://", "qdrant://:6333", "qdrant://db:port", "qdrant://db:99999", "qdrant://db/a~b",
        "qdrant://db/a/b", "qdrant://db?tls=maybe", "qdrant://db?key=x", "qdrant://:a%0Ab@db",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused_with_a_one_line_error(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        QdrantStore(url, SPACE)
    assert "\n" not in str(raised.value)


def test_a_server_version_that_would_overwrite_points_is_refused(server: ApiServer) -> None:
    server.version = "1.16.3"
    store = QdrantStore(server.url, SPACE)
    assert store.count(pool()) == 0
    with pytest.raises(StoreError, match=r"is Qdrant 1\.16\.3; update it to 1\.17 or later"):
        store.append([record("m")])
    assert server.client.get_collections().collections == []


def test_another_programs_collection_is_refused(server: ApiServer) -> None:
    server.client.create_collection(
        "memories", vectors_config=models.VectorParams(size=4, distance="Dot")
    )
    server.indexes["memories"] = {}
    store = QdrantStore(server.url, SPACE)
    for use in (
        lambda: search(store, "x"),
        lambda: store.info(pool()),
        lambda: store.append([record("m")]),
    ):
        with pytest.raises(StoreError, match="does not belong to Memories; choose another name"):
            use()
    assert server.indexes["memories"] == {}


def test_the_error_names_a_missing_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        StoreError, match=rf"Cannot connect to Qdrant at 127\.0\.0\.1:{port}. Is it running\?"
    ):
        QdrantStore(f"qdrant://127.0.0.1:{port}", SPACE).count(pool())


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (404, b"<html>no such page</html>", StoreError, "is not Qdrant; check the address"),
        (200, b"<html>welcome</html>", StoreError, "is not Qdrant; check the address"),
        (200, b"[]", StoreError, "is not Qdrant; check the address"),
        (
            500,
            b'{"status":{"error":"Service internal error: disk"}}',
            StoreError,
            "status 500: Service internal error",
        ),
        (
            429,
            b'{"status":{"error":"Too many"}}',
            StoreUnreachable,
            "not ready (status 429): Too many; try again later",
        ),
        (503, b"", StoreUnreachable, "not ready (status 503): no reason given; try again later"),
        (307, b"", StoreError, "is not Qdrant"),
    ],
)
def test_every_refusal_is_a_one_line_error(
    server: ApiServer, status: int, body: bytes, kind: type[StoreError], message: str
) -> None:
    server.refusing = (status, body)
    for use in (lambda store: store.count(pool()), lambda store: store.append([record("m")])):
        with pytest.raises(kind, match=re.escape(message)):
            use(QdrantStore(server.url, SPACE))


def test_a_write_that_is_not_finished_is_not_acknowledged(server: ApiServer) -> None:
    driver = QdrantDriver(RestTransport("127.0.0.1", server.port), "memories")
    driver.add(RECORDS, [point("a")])
    server.status = "wait_timeout"
    with pytest.raises(StoreBusy, match="did not finish a write in time"):
        driver.add(RECORDS, [point("b")])


def test_a_dead_connection_is_reopened_and_nothing_is_done_twice(server: ApiServer) -> None:
    store = QdrantStore(f"{server.url}/team", SPACE)
    store.append([record("m")])
    server.cut = 1
    store.append([record("n", text="said once")])
    assert sorted(found.text for found in everything(store, pool())) == ["note m 1", "said once"]
    server.cut = 2
    with pytest.raises(StoreError, match=r"the connection to Qdrant at .* was lost"):
        store.count(pool())
    assert store.count(pool()) == 2


def test_a_write_whose_response_is_lost_may_be_stored(server: ApiServer) -> None:
    driver = QdrantDriver(RestTransport("127.0.0.1", server.port), "memories")
    driver.add(RECORDS, [point("a", ended=1)])
    for write in (
        lambda: driver.add(RECORDS, [point("b", ended=1)]),
        lambda: driver.update(RECORDS, {"a": {"ended": 2}}),
        lambda: driver.delete(RECORDS, ["a"]),
    ):
        driver.count(RECORDS)
        server.cut = 2
        with pytest.raises(
            StoreUnreachable, match="may or may not be stored; check before you write it again"
        ):
            write()
    assert payloads(driver) == {"b": {"body": "b", "ended": 1}}


def test_a_search_over_rest_does_not_load_the_client(
    server: ApiServer, run_python: RunPython
) -> None:
    store = QdrantStore(server.url, SPACE)
    store.append([record("m")])
    run_python(
        """
import sys
from memories.embedders.fake import FakeEmbedder
from memories.stores.records import Collection, Filter
from memories.stores import open_store
store = open_store(sys.argv[1], FakeEmbedder.space)
mine = Filter(Collection.MEMORY, ("ann",))
assert store.count(mine) == 1
heavy = {"qdrant_client", "pydantic", "numpy", "httpx"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
found = store.candidates(mine, vector=FakeEmbedder().embed("note m")[0], terms=["note"], k=3)
assert [hit.record.ref.group for hit in found] == ["m"]
assert not (heavy - {"numpy"}) & sys.modules.keys()
""",
        server.url,
    )


# --- a folder


OPEN = """
import sys
from memories.embedders.fake import FakeEmbedder
from memories.stores.records import Collection, Filter, Record, Ref
from memories.stores.qdrant import folder as qdrant_folder
from memories.stores.qdrant.store import QdrantStore
store = QdrantStore(f"qdrant:///{sys.argv[1]}", FakeEmbedder.space)
mine = Filter(Collection.MEMORY, ("ann",))
"""


def test_waiting_for_a_folder_used_by_another_process_is_bounded(
    folder: Path, run_python: RunPython
) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m")])
    script = f"{OPEN}\nqdrant_folder.BUSY_SECONDS = 0.3\nprint(store.count(mine))"
    refused = run_python(script, folder, check=False)
    assert "StoreBusy: another process has qdrant:///" in refused.stderr
    store.close()
    assert run_python(script, folder).stdout == "1\n"


def test_a_process_waits_until_the_folder_is_free(folder: Path) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m")])
    script = (
        f"{OPEN}\nqdrant_folder.BUSY_SECONDS = 50\n"
        "print('waiting', flush=True)\nprint(store.count(mine))"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    other = subprocess.Popen(
        [sys.executable, "-c", script, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip
    assert other.stdout is not None and other.stdout.readline() == "waiting\n"
    store.append([record("n")])
    store.close()
    out, errors = other.communicate(timeout=300)
    assert (out, errors) == ("2\n", "")


def test_a_forked_process_opens_the_folder_itself(folder: Path, run_python: RunPython) -> None:
    """It waits like any other process, doesn't write through its parent's store, and gets the
    folder when the parent closes it.
    """
    done = run_python(
        f"""{OPEN}
import os
from datetime import UTC, datetime
from memories.errors import Conflict, StoreBusy
doc = lambda text: [Record(Ref(Collection.MEMORY, "ann", "doc", 1), text, datetime.now(UTC))]
store.append([Record(Ref(Collection.MEMORY, "ann", "first", 1), "first", datetime.now(UTC))])
said, say = os.pipe()
go, let_go = os.pipe()
child = os.fork()
if child == 0:
    os.close(let_go)
    qdrant_folder.BUSY_SECONDS = 0.2
    try:
        store.append(doc("of the child"))
    except StoreBusy:
        os.write(say, b"busy")
    os.read(go, 1)
    qdrant_folder.BUSY_SECONDS = 20
    try:
        store.append(doc("of the child"))
    except Conflict:
        ref = Ref(Collection.MEMORY, "ann", "child", 1)
        store.append([Record(ref, "of the child", datetime.now(UTC))])
    store.close()
    os._exit(0)
assert os.read(said, 9) == b"busy"
store.append(doc("of the parent"))
store.close()
os.write(let_go, b".")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(sorted(found.text for found in store.scan(mine, limit=9)))
store.close()
""",
        folder,
    )
    assert done.stdout == "['first', 'of the child', 'of the parent']\n"


def test_stores_of_one_process_share_a_folder_until_the_last_one_closes(folder: Path) -> None:
    first, second = (QdrantStore(f"qdrant:///{folder}", SPACE) for _ in range(2))
    first.append([record("m")])
    assert second.count(pool()) == 1
    first.close()
    second.append([record("n")])
    second.close()
    assert folder not in qdrant_folder._open_folders


def test_reading_creates_no_folder(folder: Path) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    assert search(store, "anything") == {}
    assert store.namespaces(MEMORY) == []
    assert not folder.exists()


@pytest.mark.parametrize("dies_at", range(6))
def test_an_unfinished_write_of_a_killed_process_is_completed(
    folder: Path, run_python: RunPython, dies_at: int
) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("before")])
    store.close()
    killed = run_python(
        f"""{OPEN}
import os
from datetime import UTC, datetime
from memories.stores.qdrant.local import persistence
CollectionPersistence = persistence().CollectionPersistence
refs = [Ref(Collection.MEMORY, "ann", f"m{{n}}", 1) for n in range(4)]
records = [Record(ref, f"text {{ref.group}}", datetime.now(UTC)) for ref in refs]
store.count(mine)
persist, written = CollectionPersistence.persist, []
def dying(self, point):
    if len(written) == int(sys.argv[2]):
        os._exit(9)
    written.append(persist(self, point))
CollectionPersistence.persist = dying
store.append(records)
os._exit(0)
""",
        folder, dies_at, check=False,
    )  # fmt: skip
    assert killed.returncode == (9 if dies_at < 4 else 0), killed.stderr
    found = {entry.ref.group for entry in everything(store, pool())}
    assert found == {"before", "m0", "m1", "m2", "m3"}
    store.close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the client leaves its file open
def test_a_folder_that_another_program_has_open_is_busy(folder: Path) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m")])
    store.close()
    other = QdrantClient(path=str(folder))
    with pytest.raises(StoreBusy, match="another process has qdrant:///"):
        store.count(pool())
    gc.collect()
    other.close()
    assert store.count(pool()) == 1
    store.close()


def test_the_next_writer_completes_a_write_interrupted_by_a_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("before")])
    kept = persistence().CollectionPersistence
    persist, left = kept.persist, iter([True, False])

    def full(self: Any, entry: Any) -> None:
        if not next(left, True):
            raise sqlite3.OperationalError("database or disk is full")
        persist(self, entry)

    with monkeypatch.context() as patched:
        patched.setattr(kept, "persist", full)
        with pytest.raises(StoreError, match=r"database or disk is full; check whether"):
            store.append([record(f"m{number}", vectors=None) for number in range(3)])
    store.append([record("after")])
    found = {entry.ref.group for entry in everything(store, pool())}
    store.close()
    assert found == {"before", "m0", "m1", "m2", "after"}
    assert {entry.ref.group for entry in everything(store, pool())} == found
    store.close()


def test_an_unreadable_folder_is_reported_as_damaged(folder: Path) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m")])
    store.close()
    (file,) = folder.glob("collection/memories/storage.sqlite")
    good = file.read_bytes()
    for path, content in ((file, b"no database" * 1000), (folder / "meta.json", b"{")):
        before = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(StoreDamaged, match="; restore a copy of the folder"):
            store.count(pool())
        assert path.read_bytes() == content
        path.write_bytes(before)
    assert file.read_bytes() == good
    assert store.count(pool()) == 1
    store.close()


class _Payload:
    """A hostile point, which creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_opening_a_folder_runs_no_code(folder: Path, tmp_path: Path, protocol: int) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m")])
    store.close()
    for file in folder.glob("collection/*/storage.sqlite"):
        with contextlib.closing(sqlite3.connect(file)) as db:
            assert all(
                point.startswith(b'{"id"') for (point,) in db.execute("SELECT point FROM points")
            )
            hostile = pickle.dumps(_Payload(tmp_path / "ran"), protocol=protocol)
            db.execute("INSERT INTO points VALUES ('x', ?)", (hostile,))
            db.commit()
    with pytest.raises(StoreDamaged, match="pickled objects, which can run code"):
        store.count(pool())
    assert not (tmp_path / "ran").exists()


def test_folders_of_other_programs_still_use_their_own_format(folder: Path, tmp_path: Path) -> None:
    """This holds even within the same process."""
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m")])
    store.close()
    for _ in range(2):
        client = QdrantClient(path=str(tmp_path / "theirs"))
        if not client.collection_exists("c"):
            client.create_collection(
                "c", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT)
            )
            client.upsert("c", [models.PointStruct(id=1, vector=[1.0, 2.0], payload={"a": 1})])
        assert client.count("c").count == 1
        client.close()
    with contextlib.closing(
        sqlite3.connect(tmp_path / "theirs" / "collection" / "c" / "storage.sqlite")
    ) as db:
        assert db.execute("SELECT point FROM points").fetchone()[0].startswith(b"\x80")


@pytest.mark.skipif(os.name != "posix", reason="requires POSIX permissions")
def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m")])
    store.close()
    folder.chmod(0o777)
    with pytest.raises(StoreError, match="is writable by everyone; run: chmod o-w"):
        store.count(pool())


@pytest.mark.skipif(os.name != "posix", reason="requires POSIX permissions")
def test_only_the_owner_can_read_the_files_of_a_folder(folder: Path) -> None:
    before = os.umask(0)
    try:
        store = QdrantStore(f"qdrant:///{folder}", SPACE)
        store.append([record("m")])
        store.close()
    finally:
        os.umask(before)
    assert {part.stat().st_mode & 0o077 for part in [folder, *folder.rglob("*")]} == {0}


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = QdrantStore(f"qdrant:///{tmp_path / 'file' / 'qdrant'}", SPACE)
    assert store.count(pool()) == 0
    with pytest.raises(StoreError, match="can't be used"):
        store.append([record("m")])


def test_without_the_client_the_error_names_the_command_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(ConfigError, match=r"run: .* install .*\[qdrant\]"):
        QdrantStore(f"qdrant:///{folder}", SPACE).append([record("m")])


def test_a_filter_selects_the_same_points_as_a_plain_check(driver: QdrantDriver) -> None:
    """Both drivers give the results of a plain check of every point."""
    points = [
        point(
            f"p{number}", group=f"g{number % 3}", ended=number % 4, labels=[f"l{number % 2}", "all"]
        )
        for number in range(24)
    ]
    driver.add(RECORDS, points)
    driver.add(RECORDS._replace(namespace="bob"), points)
    driver.update(RECORDS, {f"p{number}": {"ended": None} for number in range(0, 24, 5)})
    driver.delete(RECORDS, ["p1", "p2"])
    kept = payloads(driver)
    assert len(kept) == 22
    cases: list[tuple[Condition, Callable[[Any], bool]]] = [
        (Condition("group", "=", "g1"), lambda found: found["group"] == "g1"),
        (Condition("group", "in", ["g0", "g2", "none"]), lambda found: found["group"] != "g1"),
        (Condition("labels", "has", "l1"), lambda found: "l1" in found["labels"]),
        (Condition("ended", "=", 2), lambda found: found.get("ended") == 2),
        (Condition("ended", "<", 2), lambda found: found.get("ended", 9) < 2),
        (Condition("ended", "<=", 2), lambda found: found.get("ended", 9) <= 2),
        (Condition("ended", ">", 1), lambda found: found.get("ended", 0) > 1),
        (Condition("ended", ">=", 1), lambda found: found.get("ended", 0) >= 1),
        (Condition("key", "=", "none"), lambda _: False),
    ]
    for first, holds in cases:
        for second, too in cases:
            expected = {name for name, found in kept.items() if holds(found) and too(found)}
            assert set(driver.ids(RECORDS, [first, second])) == expected, (first, second)
            assert {found.id for found in driver.find(RECORDS, [first, second])} == expected


def test_records_are_returned_with_their_refs(folder: Path) -> None:
    store = QdrantStore(f"qdrant:///{folder}", SPACE)
    store.append([record("m", 3)])
    assert [found.ref for found in everything(store, pool())] == [Ref(MEMORY, "ann", "m", 3)]
    store.close()
