"""The store of a remote server passes the contract; also tests of tokens, namespaces, and clients
that die.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("contract")

from contract import SPACE, OpenStore, StoreContract, everything, pool, record  # noqa: E402

from live_server import Live, running  # noqa: E402
from memories import Memories  # noqa: E402
from memories.config import load_config  # noqa: E402
from memories.core.http import Answer, JsonClient, NoAnswer  # noqa: E402
from memories.errors import (  # noqa: E402
    ConfigError,
    Conflict,
    ErasureUnfinished,
    InvalidInput,
    StoreError,
    StoreUnreachable,
)
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
def test_a_token_reaches_no_other_namespace_through_a_disguised_list(
    live: Live, tmp_path: Path, method: str, kind: Any
) -> None:
    """A store only iterates over its argument, so any tuple can pass for a list of addresses."""
    client(live).append([record("m", namespace="bob")])
    own, others = record("m", namespace="ann").ref, record("m", namespace="bob").ref
    disguised = kind(own, *[others] * (len(kind._fields) - 1))
    with pytest.raises(ConfigError, match=r"may not .* namespace bob"):
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


def test_a_transaction_of_another_token_is_unknown(live: Live, tmp_path: Path) -> None:
    mine, other = client(live), client(live, _token(tmp_path, "ann:admin"))
    with mine.transaction():
        other._local.transaction = mine._local.transaction
        with pytest.raises(StoreError, match="no such transaction"):
            other.append([record("m")])
    assert everything(mine, pool("ann")) == []


def test_a_client_that_dies_holds_no_lock(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "IDLE_SECONDS", 0.3)
    dead, alive = client(live), client(live)
    dead._local.transaction = dead._ask("begin")
    dead.append([record("dead")])
    alive.append([record("alive")])  # waits until the server has rolled back the dead one
    assert [each.ref.group for each in everything(alive, pool())] == ["alive"]
    with pytest.raises(StoreError, match="rolled back"):
        dead._ask("commit")


def test_a_request_that_arrives_twice_is_done_once(
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

    def noted(store: SQLiteStore, added: Any) -> None:
        calls.append(len(added))
        begun.set()
        if len(calls) == 2:
            has_come.set()
        assert has_come.wait(60)
        append(store, added)

    monkeypatch.setattr(records, "Future", Noted)
    monkeypatch.setattr(SQLiteStore, "append", noted)
    monkeypatch.setattr("memories.stores.http.os.urandom", lambda size: b"x" * size)
    with ThreadPoolExecutor(2) as threads:
        sent = [threads.submit(client(live).append, [record("m")])]
        assert begun.wait(60)
        sent.append(threads.submit(client(live).append, [record("m")]))
        assert [each.result(120) for each in sent] == [None, None]
    assert calls == [1]


def test_the_number_of_spaces_of_clients_is_limited(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_SPACES", 3)
    for number in range(3):
        assert everything(client(live, space=SPACE._replace(model=f"model {number}")), pool()) == []
    with pytest.raises(InvalidInput, match="spaces"):
        everything(client(live, space=SPACE._replace(model="one more")), pool())
    assert everything(client(live, space=SPACE._replace(model="model 0")), pool()) == []


def test_an_invalid_list_of_namespaces_is_refused(live: Live, tmp_path: Path) -> None:
    mine = client(live, _token(tmp_path, "ann:r"))
    for wrong in ("ann", [["ann"]], None, ["ann", 1]):
        with pytest.raises(InvalidInput):
            mine._ask("values", Collection.MEMORY, wrong, "type")
    with pytest.raises(InvalidInput):
        mine._ask("values", Collection.MEMORY, namespaces=["bob"], key="type")


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
        ("https://memories.example/?token=mem_secret", "without a path"),
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
def test_a_response_of_another_program_is_an_error_of_the_store(
    live: Live, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr(JsonClient, "_send", lambda *_: Answer(200, value))
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


def test_changes_by_a_client_reach_the_scratchpad_on_the_server(live: Live, tmp_path: Path) -> None:
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
            patched.setattr(SQLiteFile, "erase_free_pages", lambda *_: (_ for _ in ()).throw(full))
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
