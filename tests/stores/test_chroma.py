"""The store on a real Chroma server passes the contract, even if server or clients are killed."""

import http.server
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("contract")

from contract import (  # noqa: E402 - after its assertions are rewritten
    MEMORY,
    SPACE,
    OpenStore,
    StoreContract,
    at,
    by_words,
    everything,
    pool,
    record,
    search,
    unit_vectors,
)

from memories.errors import ConfigError, MemoriesError, StoreError, StoreUnreachable  # noqa: E402
from memories.stores.chroma import ChromaStore  # noqa: E402
from memories.stores.documents.driver import Kind, Partition  # noqa: E402
from memories.stores.records import (  # noqa: E402
    Patch,
    Ref,
)
from opening import opening  # noqa: E402

PACKAGE = "chromadb==1.5.9"


class ChromaServer:
    """A separate `chroma run` process, which keeps its port and folder when it is restarted."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def url(self, collection: str) -> str:
        return f"chroma://127.0.0.1:{self.port}/{collection}"

    def start(self) -> None:
        command = [
            self._program,
            "run",
            "--path",
            self._folder / "data",
            "--host",
            "127.0.0.1",
            "--port",
        ]
        self._process = subprocess.Popen(
            [*command, str(self.port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, cwd=self._folder,
        )  # fmt: skip
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(
                    f"http://127.0.0.1:{self.port}/api/v2/heartbeat", timeout=5
                ).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(300)
            self._process = None


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> Path:
    """The path of the server's program: on PATH, or installed once into pytest's cache (500 MB)."""
    known = shutil.which("chroma")
    if known:
        return Path(known)
    environment = Path(request.config.cache.mkdir("chroma")) / "env"
    done = environment / "installed"
    if not done.exists():
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=300)
        pip = [environment / "bin" / "pip", "install", "-q", PACKAGE]
        installed = subprocess.run(pip, capture_output=True, text=True, timeout=900)
        if installed.returncode:
            pytest.skip(f"Chroma can't be installed here: {installed.stderr[-300:]}")
        done.touch()
    return environment / "bin" / "chroma"


@pytest.fixture(scope="module")
def server(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaServer]:
    """A server for all tests that don't kill it; each test has its own store on it."""
    server = ChromaServer(program, tmp_path_factory.mktemp("chroma"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def open_store(server: ChromaServer) -> Iterator[OpenStore]:
    """Opens a store on the server, which no other test uses."""
    url = server.url(f"t-{uuid.uuid4()}")
    with opening(lambda space: ChromaStore(url, space)) as open_store:
        yield open_store


@pytest.mark.slow
class TestChromaStore(StoreContract):
    sequences = 15
    exact_scores = False


# --- URLs, and servers that are not Chroma


@pytest.mark.parametrize(
    ("url", "collection", "shown"),
    [
        ("chroma://localhost:8000", None, "chroma://localhost:8000/memories"),
        ("chroma://localhost", None, "chroma://localhost:8000/memories"),
        ("chroma://localhost:9000/", "team", "chroma://localhost:9000/team"),
        ("chroma://localhost:9000/own-name_1", "team", "chroma://localhost:9000/own-name_1"),
        ("chroma://[::1]:9000/own", None, "chroma://[::1]:9000/own"),
        ("chroma://:s3cret@host:9000/own?ssl=true", None, "chroma://host:9000/own"),
    ],
)
def test_a_url_names_the_server_and_the_collection(
    url: str, collection: str | None, shown: str
) -> None:
    assert ChromaStore(url, SPACE, collection)._driver.url == shown


@pytest.mark.parametrize(
    ("query", "tls"), [("", False), ("?ssl=true", True), ("?tls=1", True), ("?ssl=no", False)]
)
def test_a_url_says_whether_tls_is_used(query: str, tls: bool) -> None:
    assert ChromaStore(f"chroma://host:9000/own{query}", SPACE)._driver._client.address.tls is tls  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url", ["chroma://host?tsl=1", "chroma://host?ssl=maybe", "chroma://:s3cret%0A@host"]
)
def test_other_parts_of_a_url_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"only tls=1 or tls=0|only printable ASCII") as caught:
        ChromaStore(url, SPACE)
    assert "s3cret" not in str(caught.value)


def test_every_part_has_its_own_collection() -> None:
    driver: Any = ChromaStore("chroma://host:9000/own", SPACE)._driver
    first = Partition(Kind.VECTORS, MEMORY, "a\0b", "c")
    names = {
        driver._collection_name(part)
        for part in (first, first._replace(namespace="a", space="b\0c"))
    }
    assert len(names) == 2
    assert all(len(name.rpartition(".")[2]) == 32 for name in names)


def test_the_places_that_may_still_hold_removed_records_are_named() -> None:
    driver = ChromaStore("chroma://:s3cret@host:9000/own", SPACE)._driver
    (files,) = driver.remains
    assert files == (
        "the files of ChromaDB at host:9000: its log, which `chroma vacuum` does not erase, keeps "
        "the last 1,000 changes"
    )
    assert driver.collection == "own"


@pytest.mark.parametrize(
    "url",
    [
        "chroma://",
        "chroma://host:port",
        "chroma://host:99999",
        "chroma://host/a",
        "chroma://:s3cret@host/a/b/c",
        "chroma://host/ü-collection",
    ],
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not a Chroma URL") as caught:
        ChromaStore(url, SPACE)
    assert "s3cret" not in str(caught.value)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_stopped_server_causes_the_specified_error(host: str) -> None:
    port = free_port()
    store = ChromaStore(f"chroma://:s3cret@{host}:{port}", SPACE)
    sentence = f"Cannot connect to ChromaDB at {host}:{port}. Is Docker running?"
    for do in (
        lambda: store.info(pool()),
        lambda: store.append([record("m")]),
        lambda: search(store, "x"),
    ):
        with pytest.raises(StoreError) as caught:
            do()
        assert str(caught.value) == sentence
    store.close()


class Impostor(http.server.BaseHTTPRequestHandler):
    """A server that is not Chroma: it gives a configured answer."""

    status, text, drop = 200, "<html>hello</html>", False
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.drop:
            self.close_connection = True
            return
        body = self.text.encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_GET  # noqa: N815 - names that the library requires

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "text", "drop", "said"),
    [
        (200, "<html>hello</html>", False, "refused"),
        (
            404,
            "<html>nothing here</html>",
            False,
            "1.0 or newer; update the server, or check the address",
        ),
        (404, '{"detail": "Not Found"}', False, "does not provide the API of ChromaDB"),
        (
            410,
            '{"error": "Unimplemented", "message": "The v1 API is deprecated"}',
            False,
            "does not provide the API",
        ),
        (500, '{"error": "InternalError", "message": "disk full"}', False, "disk full"),
        (401, "no", False, "refused the key"),
        (503, "starting", False, "not ready|did not finish"),
        (429, '{"error": "RateLimited"}', False, "not ready"),
        (502, "bad gateway", False, "not ready|did not finish"),
        (200, "", True, "was lost"),
    ],
)
def test_a_server_that_is_not_chroma_is_a_one_line_error(
    status: int, text: str, drop: bool, said: str
) -> None:
    handler = type("Told", (Impostor,), {"status": status, "text": text, "drop": drop})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        store = ChromaStore(f"chroma://:s3cret@127.0.0.1:{server.server_port}", SPACE)
        for do in (
            lambda: store.info(pool()),
            lambda: store.append([record("m")]),
            lambda: search(store, "x"),
        ):
            with pytest.raises(StoreError, match=said) as caught:
                do()
            assert f"127.0.0.1:{server.server_port}" in str(caught.value)
            assert isinstance(caught.value, StoreUnreachable) is (drop or status in (429, 502, 503))
            assert "s3cret" not in str(caught.value)
            assert "\n" not in str(caught.value)
        store.close()
        server.shutdown()


# --- the server


@pytest.mark.slow
def test_another_programs_collection_is_not_touched(server: ChromaServer) -> None:
    url = f"http://127.0.0.1:{server.port}/api/v2/tenants/default_tenant/databases/default_database/collections"
    body = json.dumps({"name": "theirs", "metadata": {"owner": "somebody"}}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()
    store = ChromaStore(server.url("theirs"), SPACE)
    for do in (lambda: store.info(pool()), lambda: store.append([record("m")])):
        with pytest.raises(StoreError, match="another program"):
            do()
    with urllib.request.urlopen(f"{url}/theirs", timeout=10) as found:
        assert json.load(found)["metadata"] == {"owner": "somebody"}
    store.close()


@pytest.mark.slow
def test_a_text_with_very_many_different_words_is_found_by_each_of_them(
    open_store: OpenStore,
) -> None:
    """A list of more than 5,461 words would permanently break the server's collection."""
    store = open_store(SPACE)
    text = " ".join(f"w{number}" for number in range(30_000))
    store.append([record("long", text=text, vectors=None), record("short", text="w5 short")])
    assert set(by_words(store, ["w5"])) == {"long", "short"}
    assert set(by_words(store, ["w29999"])) == {"long"}
    assert set(by_words(store, ["w29999 short"])) == set()
    assert set(by_words(store, ["w7999 w8000"])) == {"long"}
    assert store.scan(pool(group="long"), limit=1)[0].text == text
    store.remove([Ref(MEMORY, "ann", "long", 1)])
    assert by_words(store, ["w29999"]) == {}
    store.append([record("long", text="anew")])
    assert by_words(store, ["w29999"]) == {}
    assert set(by_words(store, ["anew"])) == {"long"}


@pytest.mark.slow
def test_a_prefix_finds_words_in_other_scripts(open_store: OpenStore) -> None:
    store = open_store(SPACE)
    store.append(
        [
            record("m", text="мы говорили о проектах"),
            record("n", text="проекция"),
            record("o", text="other"),
        ]
    )
    assert set(by_words(store, ["проек*"])) == {"m", "n"}
    assert set(by_words(store, ["проекта*"])) == {"m"}


@pytest.mark.slow
def test_recall_of_the_ten_nearest_is_at_least_99_in_100(open_store: OpenStore) -> None:
    store = open_store(SPACE)
    vectors, queries = unit_vectors(5_000), unit_vectors(100, seed=2)
    for start in range(0, 5_000, 500):
        names = range(start, start + 500)
        store.append([record(f"m{n:04}", text="x", vectors=vectors[[n]]) for n in names])
    hits = 0
    for query in queries:
        best = set(sorted(range(5_000), key=lambda n: -float(vectors[n] @ query))[:10])
        found = store.candidates(pool(), vector=query, terms=[], k=10)
        hits += len(best & {int(each.record.ref.group[1:]) for each in found})
    assert hits >= 990


@pytest.fixture
def own_server(program: Path, tmp_path: Path) -> Iterator[ChromaServer]:
    """A server that the test may kill."""
    server = ChromaServer(program, tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.mark.slow
def test_a_killed_and_restarted_server_loses_nothing(own_server: ChromaServer) -> None:
    """It is killed with SIGKILL during writes, several times; the same store object works after
    each restart.
    """
    store = ChromaStore(own_server.url("memories"), SPACE)
    acknowledged: dict[str, int] = {}
    random.seed(5)
    for round_ in range(4):
        stop = threading.Timer(random.uniform(0.5, 2.0), own_server.kill)
        stop.start()
        number = 0
        try:
            while True:
                name = f"m{round_}-{number:03}"
                store.append([record(name, text=f"note of {name}", labels={"n": name})])
                acknowledged[name] = 1
                with store.transaction():
                    store.patch(
                        [Patch(Ref(MEMORY, "ann", name, 1), at(5), "update", {"mark": number})]
                    )
                    store.append([record(name, 2, text=f"second of {name}")])
                acknowledged[name] = 2
                number += 1
        except MemoriesError as exc:
            assert "127.0.0.1" in str(exc)
        stop.join()
        with pytest.raises(StoreError, match="Cannot connect to ChromaDB"):
            store.count(pool())
        own_server.start()
        assert len(acknowledged) > round_
        found = {
            (entry.ref.group, entry.ref.position): entry for entry in everything(store, pool())
        }
        for name, version in acknowledged.items():
            assert (name, version) in found
            live = [
                position
                for position in (1, 2)
                if found.get((name, position)) and not found[name, position].ended_at
            ]
            assert len(live) == 1
            assert live[0] >= version
        name = random.choice(list(acknowledged))
        hit = search(store, found[name, acknowledged[name]].text, k=200)
        assert hit[name].word_score > 0
        assert hit[name].similarity is not None
    store.close()


WRITER = """
import os, sys
sys.path[:0] = [sys.argv[2], os.path.dirname(sys.argv[2])]
from contract import MEMORY, SPACE, at, record
from memories.stores.chroma import ChromaStore
from memories.stores.records import Patch, Ref
store = ChromaStore(sys.argv[1], SPACE)
number = int(sys.argv[3])
while True:
    name = f"m{number:05}"
    store.append([record(name, key=f"k{number}", text=f"note of {name}")])
    print(name, 1, flush=True)
    with store.transaction():
        store.patch([Patch(Ref(MEMORY, "ann", name, 1), at(5), "update", {"mark": number})])
        store.append([record(name, 2, key=f"k{number}", text=f"second of {name}")])
    print(name, 2, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_a_killed_client_leaves_no_partial_changes(server: ChromaServer) -> None:
    """It is killed with SIGKILL at a random moment, thirty times; each memory has one current
    version, and every acknowledged write is there.
    """
    url = server.url(f"t-{uuid.uuid4()}")
    acknowledged: dict[str, int] = {}
    random.seed(7)
    for round_ in range(30):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(Path(__file__).parent), str(round_ * 1000)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(random.uniform(0.0, 0.15))
        process.kill()
        for line in [first, *process.stdout.read().splitlines()]:
            name, version = line.split()
            acknowledged[name] = int(version)
        process.wait(300)
        process.stdout.close()
    store = ChromaStore(url, SPACE)
    found = everything(store, pool())
    texts = {(entry.ref.group, entry.ref.position): entry for entry in found}
    for name, version in acknowledged.items():
        assert (name, version) in texts
    current = [entry.ref.group for entry in store.scan(pool(), limit=10_000)]
    assert sorted(current) == sorted({entry.ref.group for entry in found})
    for name in list(acknowledged)[-20:]:
        (entry,) = store.scan(pool(key=f"k{int(name[1:])}"), limit=9)
        hit = search(store, entry.text, k=50)
        assert hit[name].similarity == pytest.approx(1.0, abs=0.01)
        last = entry.ref.position
        with store.transaction():  # the dead client blocks no other
            store.patch([Patch(entry.ref, at(9), "update", {})])
            store.append([record(name, last + 1, key=f"k{int(name[1:])}", text="and on")])
    assert len(current) == store.count(pool())
    store.close()
