"""The store of a remote server passes the contract; also tests of tokens, namespaces, and clients
that die.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.register_assert_rewrite("contract")

from contract import SPACE, OpenStore, StoreContract, everything, pool, record  # noqa: E402
from contract.samples import embed  # noqa: E402

from live_server import Live, running  # noqa: E402
from live_server import everything as received  # noqa: E402
from memories import Memories, TurnDraft  # noqa: E402
from memories.config import load_config  # noqa: E402
from memories.core.http import JsonClient, NoAnswer, ServerResponse  # noqa: E402
from memories.errors import (  # noqa: E402
    ConfigError,
    Conflict,
    EmbedderMismatch,
    ErasureUnfinished,
    InvalidInput,
    StoreBusy,
    StoreError,
    StoreUnreachable,
)
from memories.guard.origin import Origin  # noqa: E402
from memories.identity import tokens  # noqa: E402
from memories.server.api import records  # noqa: E402
from memories.settings import Config  # noqa: E402
from memories.stores import open_store as open_url  # noqa: E402
from memories.stores.http import HttpStore  # noqa: E402
from memories.stores.records import (  # noqa: E402
    Candidate,
    Collection,
    Finding,
    Patch,
    Record,
    Space,
)
from memories.stores.sqlite.connection import SQLiteFile  # noqa: E402
from memories.stores.sqlite.store import SQLiteStore  # noqa: E402
from memories.stores.wire import to_wire  # noqa: E402
from memories.transfer.doctor import examine  # noqa: E402
from memories.transfer.foreign import Importer, SourceTerms  # noqa: E402
from memories.transfer.sources.items import SourceMessage  # noqa: E402
from opening import opening  # noqa: E402


def config_of(folder: Path) -> Config:
    """Return the configuration of a server whose home and store are in a folder."""
    home = folder / "server"
    environment = {
        "MEMORY_HOME": str(home),
        "EMBEDDER": "fake",
        "MEMORY_STORE": f"sqlite:///{home}/m.db",
    }
    return load_config(environment=environment, folder=folder)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A server for one test."""
    with running(config_of(tmp_path)) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for tests that need only a new store on it; see `fresh`."""
    with running(config_of(tmp_path_factory.mktemp("shared"))) as server:
        yield server


@pytest.fixture
def fresh(shared: Live, tmp_path: Path) -> Iterator[Live]:
    """The shared server, with a home and a store that don't exist yet."""
    state = shared.app.state
    state.server.config = config_of(tmp_path)
    state.records = records.Records(state.server)
    yield shared
    state.records.close()


def client(live: Live, token: str | None = None, space: Space | None = SPACE) -> HttpStore:
    """Return a store that connects to a server."""
    config = load_config(environment={"MEMORY_TOKEN": token or live.token}, folder=Path("/nowhere"))
    return HttpStore(live.url, space, config)


class TestHttpStore(StoreContract):
    @pytest.fixture(autouse=True)
    def lenient(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the server store invalid records, for tests of how they are read."""
        if "an_invalid" in request.node.name:
            monkeypatch.setattr("memories.stores.wire.find_problem", lambda _: None)

    @pytest.fixture
    def open_store(self, fresh: Live) -> Iterator[OpenStore]:
        with opening(lambda space: client(fresh, space=space)) as open_store:
            yield open_store


# --- rights of tokens


def _token(tmp_path: Path, *grants: str) -> str:
    """Create a token with these grants."""
    return tokens.create(tmp_path / "server", "ann", tokens.parse_grants(grants))[0]


def test_a_token_reaches_only_its_namespaces(live: Live, tmp_path: Path) -> None:
    client(live).append([record("m"), record("m", namespace="bob")])
    mine = client(live, _token(tmp_path, "ann:admin", "shared:r"))
    assert len(everything(mine, pool("ann"))) == 1
    mine.append([record("n")])
    for forbidden in (
        lambda: everything(mine, pool("bob")),
        lambda: mine.count(pool("ann", "bob")),
        lambda: mine.read([record("m", namespace="bob").ref]),
        lambda: mine.values(Collection.MEMORY, ["bob"], "type"),
        lambda: mine.append([record("x"), record("x", namespace="bob")]),
        lambda: mine.append([record("x", namespace="shared")]),
        lambda: mine.remove([record("m", namespace="bob").ref]),
        lambda: mine.namespaces(Collection.MEMORY),
        lambda: mine.unstaged(SPACE, Collection.MEMORY, limit=1),
        lambda: mine.switch(SPACE),
        mine.repair,
        lambda: list(mine.check(deep=True)),
    ):
        with pytest.raises(ConfigError, match="refused the token"):
            forbidden()
    assert len(everything(client(live), pool("ann", "bob", "shared"))) == 3


@pytest.mark.parametrize("method", ["read", "vectors", "touch", "remove"])
@pytest.mark.parametrize("kind", [Candidate, Finding, Patch, Record])
def test_a_disguised_list_gives_a_token_no_access_to_other_namespaces(
    live: Live, tmp_path: Path, method: str, kind: Any
) -> None:
    """A store only iterates over its argument, so any tuple can pass as a list of addresses."""
    client(live).append([record("m", namespace="bob")])
    own, others = record("m", namespace="ann").ref, record("m", namespace="bob").ref
    disguised = kind(own, *[others] * (len(kind._fields) - 1))
    with pytest.raises(
        InvalidInput, match=f"the store's method {method} was given an invalid refs"
    ):
        client(live, _token(tmp_path, "ann:admin"))._ask(method, disguised)
    assert len(everything(client(live), pool("bob"))) == 1


def test_a_token_without_admin_rights_cannot_write_records(live: Live, tmp_path: Path) -> None:
    """A record names its writer and the trust in it, which only a manager of the namespace may
    set.
    """
    mine = client(live, _token(tmp_path, "ann:rw"))
    assert everything(mine, pool("ann")) == []
    with pytest.raises(ConfigError, match="refused the token"):
        mine.append([record("m")])
    with pytest.raises(ConfigError, match="refused the token"), mine.transaction():
        pass


def test_a_token_without_shared_gets_advice(live: Live, tmp_path: Path) -> None:
    mine = client(live, _token(tmp_path, "ann:admin"))
    advice = "leave it out with --no-shared, and name another with --namespace"
    with pytest.raises(ConfigError, match=f"may not read namespace shared; {advice}"):
        mine.count(pool("ann", "shared"))


def test_doctor_examines_only_what_a_limited_token_may_read(live: Live, tmp_path: Path) -> None:
    client(live).append([record("m"), record("n"), record("m", namespace="bob")])
    environment = {
        "MEMORY_HOME": str(tmp_path / "mine"),
        "MEMORY_TOKEN": _token(tmp_path, "ann:r"),
        "MEMORY_STORE": live.url,
        "EMBEDDER": "fake",
    }
    config = load_config(environment=environment, folder=tmp_path)
    mine = examine(config._replace(namespace="ann"), deep=True)
    assert (mine.findings, mine.facts["records"], mine.facts["namespaces"]) == ([], 2, 1)
    assert mine.facts["limited"] == "only namespace ann; others need another token"
    [finding] = examine(config._replace(namespace="bob"), deep=True).findings
    assert "the store can't be used" in finding.what
    assert "may not read namespace bob" in finding.what


def test_a_limited_token_imports_a_session(live: Live, tmp_path: Path) -> None:
    origin = Origin("user", "import", "ann", None, "ann", "host", "0", "ann")
    terms = SourceTerms("codex", "ann", origin, False, None, datetime.now(UTC), False)
    messages = [SourceMessage("codex:s1", TurnDraft("Fix the login test", message_id="1"))]
    mine = client(live, _token(tmp_path, "ann:admin"), space=None)
    for new, known in ((1, 0), (0, 1)):
        importer = Importer(mine, None, config_of(tmp_path), terms, lambda: None)
        list(importer.store(messages))
        assert (importer.counts.turns, importer.counts.known) == (new, known)


def test_another_tokens_transaction_is_unknown(live: Live, tmp_path: Path) -> None:
    mine, other = client(live), client(live, _token(tmp_path, "ann:admin"))
    with mine.transaction():
        other._local.transaction = mine._local.transaction
        with pytest.raises(StoreError, match="no such transaction"):
            other.append([record("m")])
    assert everything(mine, pool("ann")) == []


def test_a_client_that_dies_leaves_no_lock(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "IDLE_SECONDS", 0.3)
    dead, alive = client(live), client(live)
    dead._local.transaction = dead._ask("begin")
    dead.append([record("dead")])
    alive.append([record("alive")])  # waits until the server has rolled back the dead one
    assert [each.ref.group for each in everything(alive, pool())] == ["alive"]
    with pytest.raises(StoreError, match="rolled back"):
        dead._ask("commit")


def test_a_request_that_arrives_twice_is_executed_once(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.stores.http.os.urandom", lambda size: b"x" * size)
    store = client(live)
    store.append([record("m")])
    store.append([record("m")])
    monkeypatch.undo()
    with pytest.raises(Conflict):
        store.append([record("m")])


def test_a_repeated_request_waits_for_the_answer_to_the_first(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = SQLiteStore.append, list[int]()
    begun, has_come = threading.Event(), threading.Event()

    class Noted(Future[bytes]):
        """An answer that records that a second request waits for it."""

        def result(self, timeout: float | None = None) -> bytes:
            has_come.set()
            return super().result(timeout)

    def noted(store: SQLiteStore, records: Any) -> None:
        calls.append(len(records))
        begun.set()
        if len(calls) == 2:
            has_come.set()
        assert has_come.wait(60)
        append(store, records)

    monkeypatch.setattr(records, "Future", Noted)
    monkeypatch.setattr(SQLiteStore, "append", noted)
    monkeypatch.setattr("memories.stores.http.os.urandom", lambda size: b"x" * size)
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(client(live).append, [record("m")])]
        assert begun.wait(60)
        sent.append(threads.submit(client(live).append, [record("m")]))
        assert [each.result(120) for each in sent] == [None, None]
    assert calls == [1]


def test_a_reader_cannot_use_up_the_vector_spaces(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_SPACES", 2)
    token = _token(tmp_path, "ann:r")
    client(live).append([record("m")])
    for number in range(4):
        other = client(live, token, space=SPACE._replace(model=f"model {number}"))
        assert len(everything(other, pool("ann"))) == 1
    assert len(live.app.state.records._stores) == 3
    for space in (None, SPACE, SPACE._replace(model="model 0")):
        assert len(everything(client(live, space=space), pool("ann"))) == 1


def test_a_client_with_another_embedder_is_not_told_to_restart_the_server(live: Live) -> None:
    client(live).append([record("m")])
    other = client(live, space=SPACE._replace(model="another"))
    with pytest.raises(EmbedderMismatch) as refused:
        other.candidates(pool(), vector=embed("note")[0], terms=[], k=1)
    assert "restart" not in str(refused.value)
    assert "set EMBEDDER to the one that created them" in str(refused.value)


def test_a_space_in_use_stays_open(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_SPACES", 1)
    other = client(live, space=SPACE._replace(model="another"))
    with other.transaction():
        with pytest.raises(StoreBusy, match="1 vector spaces are in use"):
            client(live, space=SPACE._replace(model="one more")).count(pool())
        assert other.count(pool()) == 0
    assert client(live, space=SPACE._replace(model="one more")).count(pool()) == 0


# --- malformed requests

_REF: Any = {"Ref": [{"collection": "memory"}, "ann", "m", 1]}
_LOG: Any = {"Filter": [{"collection": "log"}, {"tuple": ["ann"]}]}
_ANN: Any = {"Filter": [{"collection": "memory"}, {"tuple": ["ann"]}]}


def _array(*shape: int, dtype: str = "float32", value: float = 1.0) -> Any:
    """Return an encoded array."""
    return to_wire(np.full(shape, value, dtype=dtype))


def _record(ref: Any = _REF, text: Any = "text", **others: Any) -> Any:
    """Return an encoded record."""
    parts = {"time": {"time": "2026-06-01T00:00:00+00:00"}, "ended_at": None, "ended_by": None}
    parts |= {"key": None, "labels": {"map": []}, "fields": {"map": []}, "vectors": None}
    return {"Record": [ref, text, *(parts | {"accesses": 0, "session": None} | others).values()]}


@pytest.mark.parametrize(
    ("method", "arguments", "named", "said"),
    [
        ("scan", [_ANN], {}, "scan: missing a required argument: 'limit'"),
        ("scan", [_ANN], {"limit": 1, "more": 2}, "unexpected keyword argument 'more'"),
        ("scan", [_ANN, 5], {"limit": 1}, "too many positional arguments"),
        ("scan", [_ANN], {"limit": "5"}, "the store's method scan was given an invalid limit"),
        ("scan", [_ANN], {"limit": True}, "an invalid limit"),
        ("scan", [_ANN], {"limit": 10**30}, "an invalid limit"),
        ("scan", [_ANN], {"limit": -1}, "an invalid limit"),
        ("scan", [_ANN], {"limit": 1, "after": ["m"]}, "an invalid after"),
        ("scan", [{"map": []}], {"limit": 1}, "an invalid where"),
        (
            "count",
            [{"Filter": [{"collection": "memory"}, {"tuple": ["ann", 1]}]}],
            {},
            "an invalid where",
        ),
        ("count", [{"Filter": [{"collection": "memory"}, ["ann"]]}], {}, "an invalid where"),
        ("count", [{"Filter": [{"collection": "x"}, {"tuple": ["ann"]}]}], {}, "valid collection"),
        ("labels", [_ANN, "\ud800"], {}, "an invalid key"),
        ("labels", [_ANN, _REF], {}, "an invalid key"),
        ("read", [_REF], {}, "an invalid refs"),
        ("read", [[{"Ref": [{"collection": "memory"}, 1, "m", 1]}]], {}, "an invalid refs"),
        ("values", [{"collection": "memory"}, "ann", "type"], {}, "an invalid namespaces"),
        ("candidates", [_ANN], {"vector": _array(1, 64), "terms": [], "k": 5}, "an invalid vector"),
        ("candidates", [_ANN], {"vector": _array(3), "terms": [], "k": 5}, "dimensions"),
        ("candidates", [_LOG], {"vector": None, "terms": [], "k": 5}, "the log has neither"),
        (
            "candidates",
            [_ANN],
            {"vector": _array(64, value=float("nan")), "terms": [], "k": 5},
            "an invalid vector",
        ),
        ("candidates", [_ANN], {"vector": _array(64, dtype="bool"), "terms": [], "k": 5}, "vector"),
        ("info", [_LOG], {}, "the log has neither"),
        ("append", [[_record(text=None)]], {}, "an invalid records"),
        ("append", [[_record(session=-1)]], {}, "a record has a session that is not"),
        ("append", [[_record(fields={"map": [["confidence", 7]]})]], {}, "the confidence"),
        ("append", [[_record(fields={"map": [["x", ["list"]]]})]], {}, "an invalid records"),
        ("append", [[_record(time={"time": "0001-01-01T00:00:00+23:00"})]], {}, "valid time"),
        ("append", [[_record(vectors=_array(1, 3))]], {}, "dimensions"),
        ("append", [[_record(vectors=_array(0, 64))]], {}, "an invalid records"),
        ("append", [_record()], {}, "an invalid records"),
        ("patch", [[{"Patch": [_REF, None, "\n", {"map": []}]}]], {}, "an ended_by that"),
        (
            "stage",
            [{"Space": ["m", 2**40, 0, 0, 0, 0, {"tuple": [0, 0]}]}, {"map": []}],
            {},
            "an invalid space",
        ),
        ("begin", 5, {}, "not a request to a store"),
        ("nothing", [], {}, "the store has no such method"),
    ],
)
def test_a_malformed_request_gets_a_one_sentence_error(
    shared: Live, method: str, arguments: Any, named: Any, said: str
) -> None:
    shape = {
        "call": said,
        "space": to_wire(SPACE),
        "arguments": arguments,
        "named": {"map": list(named.items())},
    }
    status, answer = shared.ask("POST", f"/store/v1/{method}", shape)
    assert (status, answer["kind"]) == (400, "InvalidInput"), answer
    assert said in answer["detail"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"call": "x", "arguments": [NaN]}', "NaN is not a number"),
        (b"[]", "not a request to a store"),
        (b'{"call": "x", "arguments": [], "named": []}', "not a request to a store"),
        (b'{"call": ["x"], "arguments": [], "named": {"map": []}}', "not a request to a store"),
        (b'{"call": "x", "arguments": [{"No": 1}], "named": {"map": []}}', "not a valid No"),
    ],
)
def test_a_body_that_is_not_a_request_gets_a_one_sentence_error(
    shared: Live, body: bytes, said: str
) -> None:
    head = shared.head(
        "POST /store/v1/count HTTP/1.1",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    with contextlib.closing(socket.create_connection(("127.0.0.1", shared.port))) as line:
        line.sendall(head + body)
        answer = received(line).decode()
    assert answer.startswith("HTTP/1.1 400 ")
    assert said in answer


def test_many_records_are_added_in_one_transaction_of_several_requests(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memories.stores.http.BATCH_BYTES", 20_000)
    store = client(live)
    with pytest.raises(Conflict):
        store.append([record(f"m{number}") for number in range(40)] + [record("m0")])
    assert everything(store, pool()) == []
    store.append([record(f"m{number}") for number in range(40)])
    assert len(everything(store, pool())) == 40


# --- URLs and tokens


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://memories.example", "unencrypted"),
        ("http://192.168.1.5:8765", "unencrypted"),
        ("http://127.0.0.1.example:1", "unencrypted"),
        ("https://mem_secret@memories.example", "MEMORY_TOKEN"),
        ("https://me:mem_secret@memories.example", "MEMORY_TOKEN"),
        ("https://memories.example/?token=mem_secret", "no query"),
        ("https://memories.example:99999", "port"),
        ("https://memories.example", "requires a token"),
    ],
)
def test_a_url_that_would_reveal_a_secret_is_refused(url: str, said: str, tmp_path: Path) -> None:
    config = load_config(environment={"MEMORY_HOME": str(tmp_path)}, folder=tmp_path)
    with pytest.raises(ConfigError, match=said) as refused:
        open_url(url, SPACE, config)
    assert "secret" not in str(refused.value)


def test_a_setting_allows_plain_http(tmp_path: Path) -> None:
    environment = {
        "MEMORY_HOME": str(tmp_path),
        "MEMORY_TOKEN": "mem_x",
        "MEMORY_PLAIN_HTTP": "true",
    }
    open_url(
        "http://memories.example", SPACE, load_config(environment=environment, folder=tmp_path)
    ).close()


def test_a_token_file_must_be_private_to_its_user(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{live.token}\n")
    config = load_config(environment={"MEMORY_TOKEN_FILE": str(file)}, folder=tmp_path)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        HttpStore(live.url, SPACE, config)
    file.chmod(0o600)
    assert HttpStore(live.url, SPACE, config).count(pool()) == 0
    file.write_text("")
    with pytest.raises(ConfigError, match="one token"):
        HttpStore(live.url, SPACE, config)


def test_a_wrong_token_and_a_stopped_server_have_different_errors(live: Live) -> None:
    refused = "refused the token: this token is unknown, revoked or expired"
    with pytest.raises(ConfigError, match=refused):
        client(live, "mem_wrong_wrong_wrong").count(pool())
    config = load_config(environment={"MEMORY_TOKEN": "mem_x"}, folder=Path("/nowhere"))
    silent = r"does not answer: Connection refused; check that memory serve is running there"
    with pytest.raises(StoreUnreachable, match=silent):
        HttpStore("http://127.0.0.1:9", SPACE, config).count(pool())


def break_after(monkeypatch: pytest.MonkeyPatch, method: str, then: Callable[[], object]) -> None:
    """Break the connection after the server has carried out a method, then run a function."""
    send, broken = JsonClient._send, list[str]()

    def break_once(client: JsonClient, verb: str, path: str, data: bytes, seconds: float) -> Any:
        answer = send(client, verb, path, data, seconds)
        if path.endswith(method) and not broken:
            broken.append(path)
            then()
            raise NoAnswer("Connection reset by peer", sent=True) from ConnectionResetError()
        return answer

    monkeypatch.setattr(JsonClient, "_send", break_once)


def test_a_commit_that_was_sent_again_to_a_restarted_server_is_in_doubt(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = client(live)

    def restart() -> None:
        """Forget the transactions and the answers, as a new server would."""
        live.app.state.records.close()
        live.app.state.records = records.Records(live.app.state.server)

    break_after(monkeypatch, "commit", restart)
    with pytest.raises(StoreUnreachable, match="may or may not be stored"), store.transaction():
        store.append([record("m")])
    assert len(everything(store, pool())) == 1


def test_a_commit_whose_server_is_gone_is_in_doubt(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = client(live)

    def refuse(*_: object) -> None:
        """Refuse a connection."""
        raise NoAnswer("Connection refused") from ConnectionRefusedError()

    break_after(monkeypatch, "commit", lambda: monkeypatch.setattr(JsonClient, "_send", refuse))
    with pytest.raises(StoreUnreachable, match="may or may not be stored"), store.transaction():
        store.append([record("m")])


@pytest.mark.parametrize(
    "value",
    [None, "<html>", [], {}, {"ok": True}, {"value": {"new": 1}}, {"value": 1, "damaged": 2}],
)
def test_a_response_from_another_program_is_a_store_error(
    live: Live, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr(JsonClient, "_send", lambda *_: ServerResponse(200, value))
    with pytest.raises(StoreError, match="a response that this version does not understand"):
        client(live).info(pool())


def test_the_library_works_against_a_server(live: Live, tmp_path: Path) -> None:
    environment = {
        "MEMORY_HOME": str(tmp_path / "mine"),
        "MEMORY_TOKEN": live.token,
        "EMBEDDER": "fake",
    }
    config = load_config({"store": live.url}, environment=environment, folder=tmp_path)
    with Memories(config=config, namespace="ann") as memories:
        made = memories.create("Deploys happen on Tuesdays", tags={"type": "fact"}).memory
        assert made is not None
        assert memories.search("when do we deploy?")[0].found.id == memories.get(made.id).id
        assert memories.update(made.id, "Deploys happen on Thursdays").version == 2
        assert memories.delete(made.id).deleted
        assert memories.verify_log()[0].problem is None
        status = memories.status()
        assert (status.store, status.deleted_count) == (live.url, 1)
        assert memories.forget(made.id).versions == 2


def test_changes_by_a_client_appear_in_the_scratchpad_on_the_server(
    live: Live, tmp_path: Path
) -> None:
    here = load_config(
        environment={"MEMORY_HOME": f"{tmp_path}/server", "EMBEDDER": "fake", "MEMORY_STORE": f"sqlite:///{tmp_path}/server/m.db"},
        folder=tmp_path,
    )  # fmt: skip
    environment = {
        "MEMORY_HOME": str(tmp_path / "mine"),
        "MEMORY_TOKEN": live.token,
        "EMBEDDER": "fake",
    }
    afar = load_config({"store": live.url}, environment=environment, folder=tmp_path)
    file = tmp_path / "server" / "ann" / "scratchpad.yaml"
    with Memories(config=here, namespace="ann") as memories:
        made = [
            memories.create(text).id
            for text in ("The plan is secret", "The port is 80", "Ann sails", "It rains")
        ]
        memories.scratchpad()
    assert "The plan is secret" in file.read_text()
    with Memories(config=afar, namespace="ann") as memories:
        memories.forget(made[0] or "")
        memories.update(made[1] or "", "The port is 81")
        memories.delete(made[2] or "")
        memories.create("Bob was here")
        with pytest.raises(RuntimeError), memories.transaction():
            memories.delete(made[3] or "")
            raise RuntimeError
    text = file.read_text()
    assert [each in text for each in ("secret", "port is 80", "Ann sails", "It rains")] == [
        False,
        False,
        False,
        True,
    ]
    with Memories(config=here, namespace="ann") as memories:
        shown = {entry.content for entry in memories.scratchpad().entries}
    assert shown == {"The port is 81", "It rains", "Bob was here"}


def test_an_erasure_that_fails_on_the_server_after_its_commit_is_unfinished(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(
        environment={"MEMORY_TOKEN": live.token, "EMBEDDER": "fake"}, folder=tmp_path
    )
    with Memories(live.url, config=config) as memories:
        made = memories.create("the quixotrumpel").memory
        assert made is not None
        with monkeypatch.context() as patched:
            full = StoreError(
                "the disk is full; nothing was written; free some space and try again"
            )
            patched.setattr(
                SQLiteFile, "erase_leftover_bytes", lambda *_: (_ for _ in ()).throw(full)
            )
            with pytest.raises(
                ErasureUnfinished, match=r"is gone, but .* \(the disk is full\); forget it again"
            ):
                memories.forget(made.id)
        assert not memories.list().memories
        memories.forget(made.id)
    assert [
        file.name
        for file in (tmp_path / "server").glob("m.db*")
        if b"quixotrump" in file.read_bytes()
    ] == []
