"""Rules for all routes: errors, versions, idempotency keys, namespaces, limits, browsers, and logs
without content.
"""

import errno
import itertools
import json
import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from starlette.testclient import TestClient

from memories import Memories, TurnDraft
from memories.answers import conversation_shapes, shapes
from memories.core import events
from memories.core.ids import short_form
from memories.embedders.fake import FakeEmbedder
from memories.errors import (
    ConfigError,
    EmbedderError,
    EmbedderMismatch,
    SchemaTooNew,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from memories.identity import tokens
from memories.server.api import access, idempotency, memory_routes, middleware
from memories.server.app import Options, build
from memories.server.group_commit import GroupCommit
from memories.server.pages import routes as pages
from memories.settings import Config
from memories.stores import claims, open_store
from memories.transfer import migrate
from memories.write.create import Created
from memories.write.similar import Similar

BASE = "http://127.0.0.1:8765"
Token = Callable[..., dict[str, str]]
LINES = {"content-type": "application/x-ndjson"}


def create(
    api: TestClient, content: str = "Deploys happen on Tuesdays", headers: Any = None, **fields: Any
) -> Any:
    """Create a memory over HTTP."""
    return api.post("/api/memories", json={"content": content, **fields}, headers=headers)


def contents(config: Config, namespace: str = "shared") -> list[str]:
    """Return the contents of a namespace's memories."""
    with Memories(config=config, namespace=namespace, shared=False) as memories:
        return sorted(memory.content for memory in memories.list(limit=1000).memories)


# --- answers and errors


def test_an_api_response_equals_the_output_of_the_command(
    owner: TestClient, config: Config
) -> None:
    made = create(owner, tags={"type": "fact"}).json()
    with Memories(config=config) as memories:
        assert owner.get("/api/memories").json() == shapes.page(memories.list())
        assert owner.get(f"/api/memories/{made['id']}/history").json() == shapes.history(
            memories.history(made["id"])
        )


def test_writes_in_shared_transactions_get_the_same_answers_as_alone(
    config: Config, tmp_path: Path
) -> None:
    bodies: list[dict[str, Any]] = [
        {"content": "The deploy day is Tuesday"},
        {"content": "The deploy day is Tuesday", "tags": {"team": "web"}},
        {"content": "The deploy day is Thursday"},
        {"content": "vim", "key": "user/editor"},
        {"content": " "},
        {"content": "x", "supersedes": "01a1fdf1-92cd-72f2-8000-000000000000"},
        {"content": "the token is ghp_0123456789abcdefghijABCDEFGHIJ012345"},
        {"content": "waits", "pending": True},
    ]
    told: list[Any] = []
    for name in ("alone", "shared"):
        store = open_store(f"sqlite:///{tmp_path}/{name}.db", FakeEmbedder().space, config)
        group_commit = GroupCommit(store)
        options = Options(port=8765, store=store, embedder=FakeEmbedder())
        shared = options._replace(group_commit=group_commit)
        headers = {"authorization": f"Bearer {tokens.own(config.home)}"}
        app = build(config, shared if name == "shared" else options)
        with TestClient(app, base_url=BASE, headers=headers) as api:
            answers = [api.post("/api/memories", json=body) for body in bodies]
        ids: dict[str, str] = {}
        for answer in answers:
            ids.setdefault(answer.json().get("id") or "", f"memory {len(ids)}")
        text = json.dumps([[answer.status_code, answer.json()] for answer in answers])
        for each, number in ids.items():
            text = text.replace(each, number) if each else text
        told.append(re.sub(r'"20[0-9T:.-]+Z"', '"time"', text))
        assert group_commit.writes == (7 if name == "shared" else 0)
        assert group_commit.close(60)
        store.close()
    assert told[0] == told[1]


def test_a_memory_can_be_named_by_its_short_id(owner: TestClient) -> None:
    memory_id = create(owner).json()["id"]
    short = short_form(memory_id)
    assert owner.get(f"/api/memories/{short}").json()["id"] == memory_id
    assert owner.get(f"/api/memories/{short}/history").json()["id"] == memory_id
    assert owner.delete(f"/api/memories/{short}").json() == {"id": memory_id, "deleted": True}


# requests, each with the status and a part of the message of its refusal
REFUSED: tuple[tuple[str, str, Any, int, str], ...] = (
    ("GET", "/api/memories?limit=0", None, 400, "limit must be a whole number from 1 to 1000"),
    ("GET", "/api/memories?lmit=1", None, 400, 'unknown parameter "lmit"; use '),
    ("GET", "/api/memories?deleted=true&q=x", None, 400, "deleted can't be used with a search"),
    ("GET", "/api/memories?tag=a%3Db&tag=a%3Dc", None, 400, 'tag "a" is given twice, as "b"'),
    ("GET", "/api/memories?where=nonsense%20%3D", None, 400, ""),
    ("GET", "/api/memories?q=x&min_confidence=2", None, 400, "min_confidence must be a number"),
    ("POST", "/api/move?to=ann", {"ids": []}, 400, "ids is empty"),
    ("POST", "/api/conversations/c/turns", {"turns": []}, 400, "turns must contain 1 to 1000"),
    ("GET", "/api/memories/01a1fdf1-92cd-72f2", None, 404, "Memory not found"),
    ("GET", "/api/memories/x", None, 400, ""),
    ("GET", "/api/conversations/nobody", None, 404, ""),
    ("POST", "/api/memories", {"content": ""}, 400, "content is empty"),
    ("POST", "/api/memories", {"content": "a", "tags": {"": "b"}}, 400, ""),
    ("POST", "/api/memories", [1], 400, "the body must be a JSON object"),
    ("PATCH", "/api/memories/01a1fdf1-92cd-72f2", {"content": "a"}, 404, ""),
    ("POST", "/api/review/accept", {}, 400, "give either ids"),
    ("POST", "/api/backup", {"keep": 0}, 400, "keep must be a whole number from 1 to 10000"),
    ("POST", "/api/backup", {"keep": -1}, 400, "keep must be a whole number from 1 to 10000"),
    ("DELETE", "/api/memories", None, 405, "DELETE is not supported for this path"),
    ("GET", "/nowhere", None, 404, "there is nothing at this path"),
)


def test_an_error_is_a_problem_document_with_the_message_of_the_command(owner: TestClient) -> None:
    failures = []
    for method, path, body, status, said in REFUSED:
        answer = owner.request(method, path, json=body)
        told = answer.json()
        found = (answer.status_code, answer.headers["content-type"], told["status"])
        says = said in told["detail"] and told["detail"] == told["error"]
        if found != (status, "application/problem+json", status) or not says:
            failures.append(
                f"{method} {path} {body}: expected {status} {said!r}, found {found} {told}"
            )
    assert failures == []


def test_an_unsupported_method_gets_405_with_the_supported_methods(config: Config) -> None:
    options = Options(port=8765, routes=pages.routes())
    with TestClient(build(config, options), base_url=BASE) as client:
        found = [
            (answer.status_code, answer.headers.get("allow"))
            for method in ("PUT", "OPTIONS", "PROPFIND")
            for path in ("/mcp", "/health", "/login", "/api/memories", "/store/v1/scan", "/nowhere")
            for answer in [client.request(method, path)]
        ]
    expected = [
        (405, "DELETE, GET, HEAD, POST"),
        (405, "GET, HEAD"),
        (405, "GET, HEAD, POST"),
        (405, "GET, HEAD, POST"),
        (405, "POST"),
        (404, None),
    ]
    assert found == expected * 3


def test_urls_stay_complete_if_the_home_folder_is_the_root(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    bob = access.Principal("t1", "bob", {"bob": "rw"})
    without_folders = access.Access(config, 8765, None).without_folders
    assert without_folders(bob, "no answer from http://db.example/x") == (
        "no answer from http://db.example/x"
    )
    assert without_folders(bob, f"no space for {config.home}/m.db") == "no space for m.db"


def test_only_managers_of_the_store_see_the_folders_of_its_files(
    owner: TestClient, token: Token, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = token("bob:admin")
    for text in ("tea", "boats", "bread", "rain"):
        create(owner, f"Bob likes {text}", headers=bob)
    for name in ("c0", "c1"):
        add = {"turns": [{"content": "hello"}]}
        owner.post(f"/api/conversations/{name}/turns", json=add, headers=bob)
    backup = owner.post("/api/backup", json={}).json()["backup"]
    ids = [memory["id"] for memory in owner.get("/api/memories", headers=bob).json()["results"]]
    for number, (headers, shown) in enumerate(
        ((bob, f"backups/{Path(backup).name}"), ({}, backup))
    ):
        erased = [
            owner.post(path, params={"namespace": "bob"}, json=body, headers=headers).json()
            for path, body in (
                (f"/api/memories/{ids[number]}/forget", {}),
                ("/api/forget", {"where": f"id = {ids[number + 2]}"}),
                (f"/api/conversations/c{number}/forget", {}),
            )
        ]
        assert [answer["also_in"] for answer in erased] == [[shown]] * 3, erased

    def full(*_: object, **__: object) -> None:
        """Fail as a full disk does."""
        raise StoreFull(f"the disk of {config.home}/m.db is full")

    monkeypatch.setattr(Memories, "list", full)
    seen = [owner.get("/api/memories", headers=headers).json()["detail"] for headers in (bob, {})]
    assert seen == ["the disk of m.db is full", f"the disk of {config.home}/m.db is full"]


def test_a_repetition_returns_the_stored_memory(owner: TestClient) -> None:
    made = create(owner, "The deploy of the shop happens on Tuesday morning").json()
    again = create(owner, "The deploy of the shop happens on Tuesday morning")
    assert (again.status_code, again.json()["stored"], again.json()["id"]) == (
        200,
        False,
        made["id"],
    )


def test_a_duplicate_is_a_conflict_that_lists_the_stored_memory(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> list[Created]:
        return [
            Created(
                False,
                None,
                duplicates=(Similar("01a1fdf1", "Ann likes tea", 0.99, datetime.now(UTC)),),
            )
        ]

    headers = {"authorization": f"Bearer {tokens.own(config.home)}"}
    monkeypatch.setattr(Memories, "create_many", refused)
    with TestClient(build(config, Options(port=8765)), base_url=BASE, headers=headers) as api:
        answer = create(api, "Ann loves tea")
    assert (answer.status_code, answer.json()["duplicates"][0]["id"]) == (409, "01a1fdf1")


def test_an_unexpected_error_reveals_nothing(
    owner: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the content is: secret plans")

    monkeypatch.setattr(Memories, "list", broken)
    answer = owner.get("/api/memories")
    assert (answer.status_code, "secret" in answer.text) == (500, False)
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


class _Sub(StoreDamaged):
    """An error class that clients don't know."""


# errors of a store, each with the client's status, Retry-After and kind of error
UNWELL: tuple[tuple[Exception, int, str | None, str | None], ...] = (
    (StoreBusy("why"), 503, "1", "StoreBusy"),
    (StoreUnreachable("why"), 503, "1", "StoreUnreachable"),
    (EmbedderError("why"), 503, "1", "EmbedderError"),
    (StoreFull("why"), 507, None, "StoreFull"),
    (StoreError("why"), 503, None, "StoreError"),
    (_Sub("why"), 503, None, "StoreDamaged"),
    (SchemaTooNew("why"), 503, None, "SchemaTooNew"),
    (EmbedderMismatch("why"), 503, None, "EmbedderMismatch"),
    (ConfigError("why"), 503, None, "ConfigError"),
    (OSError(errno.ENOSPC, "why", "/a/file"), 507, None, None),
    (OSError(errno.EMFILE, "why"), 503, "1", None),
    (PermissionError(errno.EACCES, "why"), 503, None, None),
)


def test_store_errors_are_not_internal_errors(
    owner: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = []
    for error, status, retry, kind in UNWELL:

        def broken(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(Memories, "list", broken)
        answer = owner.get("/api/memories")
        told = answer.json()
        found = (answer.status_code, answer.headers.get("retry-after"), told.get("kind"))
        is_problem = answer.headers["content-type"] == "application/problem+json"
        if found != (status, retry, kind) or not is_problem or "why" not in told["detail"]:
            failures.append(f"{error!r}: expected {(status, retry, kind)}, found {found} {told}")
        if "/a/file" in told["detail"]:
            failures.append(f"{error!r}: the answer names a file: {told}")
    assert failures == []


class _OtherModel(FakeEmbedder):
    """The embedder after `memory reembed`."""

    space = FakeEmbedder.space._replace(model="other/1")


def test_a_server_started_before_reembed_asks_for_a_restart(
    owner: TestClient, config: Config
) -> None:
    create(owner)
    store = open_store(config.store, _OtherModel.space, config)
    migrate.reembed(store, _OtherModel(), progress=lambda *_: None)
    store.close()
    answer = owner.get("/api/memories", params={"q": "deploys"})
    assert (answer.status_code, answer.json()["kind"]) == (503, "EmbedderMismatch")
    assert "created by other/1" in answer.json()["detail"]
    assert "restart the server if memory reembed ran" in answer.json()["detail"]


# --- versions


def test_if_match_restricts_a_change_to_the_version_that_was_read(owner: TestClient) -> None:
    made = create(owner, decay="reinforceable").json()
    path = f"/api/memories/{made['id']}"
    tag = owner.get(path).headers["etag"]
    first = owner.patch(
        path, json={"content": "Deploys happen on Thursdays"}, headers={"if-match": tag}
    )
    assert (first.status_code, first.headers["etag"]) == (200, '"2"')
    for method, body, more in (
        ("PATCH", {"content": "Never"}, ""),
        ("DELETE", None, ""),
        ("POST", {}, "/reinforce"),
    ):
        late = owner.request(method, path + more, json=body, headers={"if-match": tag})
        assert late.status_code == 412
    for weak in ("3", 'W/"2"', "", "x"):
        assert owner.delete(path, headers={"if-match": weak}).status_code == 412
    for version in ("1", "7"):  # one that was current, and one that never was
        stale = owner.patch(path, json={"content": "x"}, headers={"if-match": f'"{version}"'})
        assert stale.json()["detail"] == (
            "If-Match is not the memory's version, which is 2; read the memory again"
        )
    assert owner.get(path).json()["content"] == "Deploys happen on Thursdays"
    assert (
        owner.patch(path, json={"content": "Never"}, headers={"if-match": '"1", "3"'}).status_code
        == 412
    )
    again = owner.patch(path, json={"tags": {"of": "two"}}, headers={"if-match": '"1", "2"'})
    assert (again.status_code, again.headers["etag"]) == (200, '"3"')
    assert owner.delete(path, headers={"if-match": '"1", "3"'}).status_code == 200
    assert owner.post(f"{path}/restore", json={}, headers={"if-match": "*"}).status_code == 200


def test_restore_names_a_current_memory_with_the_same_text(owner: TestClient) -> None:
    old = owner.post("/api/memories", json={"content": "Ports are open"}).json()["id"]
    owner.delete(f"/api/memories/{old}")
    new = owner.post("/api/memories", json={"content": "Ports are open"}).json()["id"]
    refused = owner.get(f"/api/memories/{old}")
    advice = f"it was deleted; to restore it, run: memory restore {old}"
    assert (refused.status_code, refused.json()["detail"]) == (404, f"Memory not found: {advice}")
    answer = owner.post(f"/api/memories/{old}/restore", json={})
    assert answer.json()["hint"] == f"memory {new} says the same thing; delete one of them"


def test_suggested_commands_name_the_namespace_of_the_request(
    owner: TestClient, token: Token
) -> None:
    path = "/api/memories?namespace=bob"
    old = owner.post(path, json={"content": "Dana's manager is Max"}).json()["id"]
    new = owner.post(path, json={"content": "Dana's manager is Tom"}).json()
    assert f"run: memory update -n bob {new['id']} --not-corrects {old}" in new["hint"]
    assert owner.delete(f"/api/memories/{old}?namespace=bob").status_code == 200
    expected = f"to restore it, run: memory restore {old} -n bob"
    for headers in (None, token("bob:rw")):
        refused = owner.get(f"/api/memories/{old}?namespace=bob", headers=headers).json()
        assert refused["detail"] == f"Memory not found: it was deleted; {expected}"
        assert refused["error"] == refused["detail"]


def test_only_the_owner_gets_commands_with_the_store_of_the_server(
    config: Config, options: Options, token: Token
) -> None:
    chosen = config._replace(sources={**config.sources, "store": "flag"})
    with TestClient(build(chosen, options), base_url=BASE) as client:
        client.headers["authorization"] = f"Bearer {tokens.own(config.home)}"
        old = create(client).json()["id"]
        client.delete(f"/api/memories/{old}")
        said = client.get(f"/api/memories/{old}").json()["detail"]
        assert said.endswith(f"run: memory restore --store {config.store} {old}")
        said = client.get(f"/api/memories/{old}", headers=token("*:admin")).json()["detail"]
        assert said.endswith(f"run: memory restore {old}")


# --- idempotency keys


def test_a_write_without_a_version_check_refuses_if_match(owner: TestClient) -> None:
    path = f"/api/memories/{create(owner).json()['id']}"
    for action in ("forget", "pin", "unpin"):
        answer = owner.post(f"{path}/{action}", json={}, headers={"if-match": '"7"'})
        assert (answer.status_code, answer.json()["detail"]) == (
            400,
            "this request does not check versions; omit If-Match",
        )
    assert "pinned" not in owner.get(path, headers={"if-match": '"7"'}).json()


def test_a_retry_with_the_same_key_is_not_done_twice(owner: TestClient, config: Config) -> None:
    key = {"idempotency-key": "k1"}
    answers = [create(owner, headers=key, force=True) for _ in range(3)]
    assert len({answer.text for answer in answers}) == 1
    assert {answer.status_code for answer in answers} == {201}
    other = create(owner, "Another text", headers=key, force=True)
    assert (other.status_code, "different request" in other.json()["detail"]) == (422, True)
    assert contents(config) == ["Deploys happen on Tuesdays"]


def test_an_idempotency_key_survives_a_restart(config: Config) -> None:
    headers = {"authorization": f"Bearer {tokens.own(config.home)}", "idempotency-key": "k1"}
    told = []
    for _ in range(2):
        with TestClient(build(config, Options(port=8765)), base_url=BASE, headers=headers) as api:
            made = create(api, force=True)
            turn = api.post(
                "/api/conversations/standup/turns", json={"turns": [{"content": "hi"}]},
                headers={"idempotency-key": "k2"},
            )  # fmt: skip
            told.append((made.status_code, made.json()["id"], turn.json()["results"][0]["id"]))
            assert create(api, "Another text").status_code == 422
    assert told[0] == told[1]
    assert contents(config) == ["Deploys happen on Tuesdays"]
    file = idempotency.file_of(config)
    assert not any(b"Tuesdays" in part.read_bytes() for part in file.parent.glob(f"{file.name}*"))
    assert file.exists()


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("force", [True, False])
def test_a_request_interrupted_by_a_kill_is_stored_once(
    config: Config, monkeypatch: pytest.MonkeyPatch, stored: bool, force: bool
) -> None:
    """The server recorded the beginning of the request and stored the memory; then it was
    killed.
    """
    headers = {"authorization": f"Bearer {tokens.own(config.home)}", "idempotency-key": "k1"}

    create_many = Memories.create_many

    def create_and_die(memories: Memories, drafts: Any, **options: bool) -> Any:
        if stored:
            create_many(memories, drafts, **options)
        raise RuntimeError  # the outcome is unknown

    app = build(config, Options(port=8765))
    with monkeypatch.context() as patched:
        patched.setattr(Memories, "create_many", create_and_die)
        with TestClient(app, base_url=BASE, headers=headers, raise_server_exceptions=False) as api:
            assert create(api, force=force).status_code == 500
    with TestClient(build(config, Options(port=8765)), base_url=BASE, headers=headers) as api:
        answer = create(api, force=force)
        assert answer.status_code in (200, 201)
        assert answer.json()["content"] == "Deploys happen on Tuesdays"
    assert contents(config) == ["Deploys happen on Tuesdays"]


def test_turns_with_a_key_are_stored_once_despite_a_kill(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"authorization": f"Bearer {tokens.own(config.home)}", "idempotency-key": "k1"}
    said = {"turns": [{"content": "We ship on Friday"}, {"content": "We ship on Friday"}]}
    for _ in range(2):
        with TestClient(build(config, Options(port=8765)), base_url=BASE, headers=headers) as api:
            answer = api.post("/api/conversations/standup/turns", json=said)
            assert answer.json()["count"] == 2
            monkeypatch.setattr(
                idempotency.Once, "_end", lambda *_, **__: None
            )  # like a kill before the end was recorded
    with Memories(config=config) as memories:
        assert len(memories.turns("standup")) == 2


def test_a_refused_request_can_be_corrected_with_the_same_key(owner: TestClient) -> None:
    key = {"idempotency-key": "k1"}
    assert create(owner, "", headers=key).status_code == 400
    assert create(owner, "A text", headers=key).status_code == 201
    for wrong in ("", "x" * 300, "\x01"):
        assert create(owner, "B text", headers={"idempotency-key": wrong}).status_code == 400


def test_the_file_of_keys_has_a_bounded_size(
    owner: TestClient, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_KEPT", 5)
    monkeypatch.setattr(idempotency, "SWEEP_EVERY", 5)
    for number in range(25):
        assert (
            create(
                owner, f"Fact {number}", headers={"idempotency-key": f"k{number}"}, force=True
            ).status_code
            == 201
        )
    database = apsw.Connection(str(idempotency.file_of(config)))
    [(count,)] = database.execute("SELECT count(*) FROM request").fetchall()
    database.close()
    assert count <= 5 + 5
    assert (
        create(owner, "Fact 24", headers={"idempotency-key": "k24"}, force=True).status_code == 201
    )
    assert len(contents(config)) == 25


def test_idempotency_keys_are_separate_for_each_token(
    owner: TestClient, token: Token, config: Config
) -> None:
    create(owner, headers={"idempotency-key": "k1"})
    made = create(owner, "Bob's own", headers={**token("bob:rw"), "idempotency-key": "k1"})
    assert (made.status_code, contents(config, "bob")) == (201, ["Bob's own"])


# --- rights of tokens


@pytest.mark.parametrize("action", ["delete", "forget"])
def test_a_bulk_change_names_the_memories_that_are_current_again(
    owner: TestClient, action: str
) -> None:
    older, newer = (create(owner, f"The API listens on port {n}").json()["id"] for n in (1, 2))
    answer = owner.post(f"/api/{action}", json={"where": f"id = {newer}"}).json()
    assert (answer["current_again"], answer["current_again_count"]) == ([older], 1)


def test_a_token_has_only_its_granted_rights(
    owner: TestClient, token: Token, config: Config
) -> None:
    bob = token("bob:rw", "shared:r")
    made = create(owner, "Bob likes tea", headers=bob).json()
    assert (made["namespace"], made["origin"]["by"]) == ("bob", "agent")
    assert owner.get("/api/memories?namespace=bob", headers=bob).json()["count"] == 1
    for method, path, body in (
        ("GET", "/api/memories?namespace=ann", None),
        ("POST", "/api/memories?namespace=shared", {"content": "x"}),
        ("POST", f"/api/memories/{made['id']}/forget", {}),
        ("POST", "/api/forget", {"where": "content = x"}),
        ("POST", "/api/review/accept", {"all": True}),
        ("POST", "/api/conversations/c/forget", {}),
        ("POST", "/api/backup", {}),
        ("GET", "/api/export?all_namespaces=true", None),
        ("POST", "/api/import?trusted=true", {}),
    ):
        answer = owner.request(method, path, json=body, headers=bob)
        assert answer.status_code == 403, path
    assert owner.get("/api/namespaces", headers=bob).json()["namespaces"][0]["name"] == "bob"
    assert "store" not in owner.get("/api/status", headers=bob).json()
    assert contents(config) == []


def test_a_token_must_be_admin_in_every_namespace_to_manage_the_entire_store(
    owner: TestClient, token: Token
) -> None:
    limited = token("*:admin", "bob:r")
    for method, path in (
        ("POST", "/api/import?all_namespaces=true"),
        ("GET", "/api/export?all_namespaces=true"),
        ("POST", "/api/backup"),
    ):
        assert owner.request(method, path, headers=limited).status_code == 403, path
    tea = {"content": "Ann likes tea"}
    answer = owner.post("/api/memories?namespace=ann", json=tea, headers=limited)
    assert answer.status_code == 201


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/memories", {"content": "The key is AKIAQYLPMN5HHHFPZAM2"}),
        (
            "POST",
            "/api/memories/batch",
            {"memories": [{"content": "The key is AKIAQYLPMN5HHHFPZAM2"}]},
        ),
        ("PATCH", "/api/memories/{id}", {"content": "The key is AKIAQYLPMN5HHHFPZAM2"}),
        (
            "POST",
            "/api/conversations/c/turns",
            {"turns": [{"content": "AKIAQYLPMN5HHHFPZAM2", "role": "user"}]},
        ),
        ("PATCH", "/api/conversations/c", {"title": "AKIAQYLPMN5HHHFPZAM2"}),
    ],
)
def test_only_an_admin_of_the_namespace_can_switch_off_redaction(
    owner: TestClient, token: Token, method: str, path: str, body: Any
) -> None:
    bob = {"namespace": "bob"}
    seed = owner.post("/api/memories", json={"content": "seed"}, params=bob).json()["id"]
    owner.post(
        "/api/conversations/c/turns",
        json={"turns": [{"content": "seed", "role": "user"}]},
        params=bob,
    )
    writes, manages = token("bob:rw", "ann:admin", name="ann"), token("bob:admin")
    asked = {"url": path.format(id=seed), "json": body | {"redact": False}, "params": bob}
    before = owner.get("/api/export", params=bob).text
    answer = owner.request(method, headers=writes, **asked)
    assert (
        answer.status_code,
        "switch off redaction in namespace bob" in answer.json()["detail"],
    ) == (403, True)
    assert owner.get("/api/export", params=bob).text == before
    assert owner.request(method, headers=manages, **asked).is_success
    assert "AKIAQYLPMN5HHHFPZAM2" in owner.get("/api/export", params=bob).text


def test_an_export_contains_what_in_names(owner: TestClient) -> None:
    create(owner, "The port is 8080")
    assert "8080" in owner.get("/api/export", params={"in": "memories"}).text
    assert "8080" not in owner.get("/api/export", params={"in": "history"}).text


def test_an_import_is_redacted_unless_its_namespace_is_managed(
    owner: TestClient, token: Token
) -> None:
    create(owner, "The key is AKIAQYLPMN5HHHFPZAM2", redact=False)
    lines = owner.get("/api/export").text
    sent = {"content": lines, "headers": token("ann:rw", "bob:admin") | LINES}
    for at, into, redact, status in (
        ("ann", "ann", "false", 403),
        ("bob", "ann", "false", 403),
        ("ann", "ann", "true", 200),
        ("bob", "bob", "false", 200),
    ):
        asked = {"namespace": at, "as": into, "redact": redact}
        assert owner.post("/api/import", params=asked, **sent).status_code == status
    kept = [
        owner.get("/api/export", params={"namespace": name, "shared": "false"}).text
        for name in ("ann", "bob")
    ]
    assert ["AKIAQYLPMN5HHHFPZAM2" in text for text in kept] == [False, True]


def test_a_move_requires_admin_for_both_namespaces(
    owner: TestClient, config: Config, token: Token
) -> None:
    made = create(owner, "Bob likes tea", headers=token("bob:rw")).json()["id"]
    sent: Any = {"params": {"namespace": "bob", "to": "Ann"}, "json": {"ids": [made]}}
    for grants in (("bob:rw", "ann:rw"), ("bob:admin", "ann:rw"), ("bob:rw", "ann:admin")):
        refused = owner.post(
            "/api/move", headers=token(*grants, name="".join(grants).replace(":", "")), **sent
        )
        assert refused.status_code == 403
        assert "requires admin" in refused.json()["detail"]
    assert contents(config, "bob") == ["Bob likes tea"]
    answer = owner.post("/api/move", headers=token("bob:admin", "ann:admin", name="both"), **sent)
    assert answer.json() == {
        "ids": [made], "namespace": "bob", "into": "ann", "versions": 1, "count": 1
    }  # fmt: skip
    assert (contents(config, "bob"), contents(config, "ann")) == ([], ["Bob likes tea"])


def test_the_namespace_never_comes_from_the_body(owner: TestClient, token: Token) -> None:
    answer = create(owner, "x", headers=token("bob:rw"), namespace="ann")
    assert answer.status_code == 400
    assert 'unknown parameter "namespace"' in answer.json()["detail"]


def test_a_token_without_shared_finds_nothing_in_it(owner: TestClient, token: Token) -> None:
    made = create(owner, "The office is in Berlin").json()
    bob = token("bob:rw")
    assert owner.get("/api/memories?q=office", headers=bob).json()["count"] == 0
    assert owner.get(f"/api/memories/{made['id']}", headers=bob).status_code == 404
    assert "Berlin" not in owner.get("/api/export", headers=bob).text
    context = owner.post("/api/context", json={"query": "Where is the office?"}, headers=bob)
    assert "Berlin" not in context.text


def test_expiry_and_revocation_of_a_token_need_no_restart(
    owner: TestClient, token: Token, config: Config
) -> None:
    bob = token("bob:r", name="bob")
    late = token("bob:r", name="late", expires_at=datetime.now(UTC) + timedelta(seconds=3600))
    assert owner.get("/api/me", headers=bob).status_code == 200
    file = config.home / "tokens.json"
    shape = json.loads(file.read_text())
    shape["tokens"][1]["expires_at"] = "2020-01-01T00:00:00.000Z"
    file.write_text(json.dumps(shape))
    assert owner.get("/api/me", headers=late).status_code == 401
    tokens.revoke(config.home, "bob")
    assert owner.get("/api/me", headers=bob).status_code == 401


def test_an_unreadable_token_file_is_reported_without_its_path(
    owner: TestClient, token: Token, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    bob = token("bob:rw", name="bob")
    (config.home / "tokens.json").write_text("{")
    answer = owner.get("/api/me", headers=bob)
    assert (answer.status_code, str(config.home) in answer.text) == (503, False)
    assert str(config.home) in caplog.text
    assert owner.get("/api/me").status_code == 200


def test_the_last_use_of_a_token_is_recorded(config: Config, token: Token) -> None:
    bob = token("bob:r", name="bob")
    with TestClient(build(config, Options(port=8765)), base_url=BASE) as api:
        api.get("/api/me", headers=bob)
    assert tokens.read(config.home)[0].last_used_at is not None


def test_a_full_disk_does_not_prevent_reading(
    nobody: TestClient, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        """Fail as a write to a full disk does."""
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(access, "_FLUSH_SECONDS", 0)
    monkeypatch.setattr(tokens, "record_use", fail)
    assert nobody.get("/api/memories", headers=token("bob:r")).status_code == 200


def test_logs_contain_no_token_and_no_content(
    owner: TestClient, token: Token, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bob = token("bob:rw")
    create(owner, "a private plan", headers=bob)
    owner.get("/api/memories?q=private", headers=bob)
    owner.get("/api/memories?limit=private", headers=bob)
    ours = "\n".join(
        each.getMessage() for each in caplog.records if not each.name.startswith("httpx")
    )
    assert "private" not in ours
    assert bob["authorization"].removeprefix("Bearer ") not in caplog.text


# --- browsers


def test_a_browser_signs_in_with_a_token(nobody: TestClient, config: Config, token: Token) -> None:
    assert nobody.post("/login", json={"token": "mem_wrong_wrong"}).status_code == 401
    answer = nobody.post("/login", json={"token": token("bob:rw", name="bob")["authorization"][7:]})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("memories_8765=")
    assert {"httponly", "samesite=strict", "path=/"} <= {
        part.strip().lower() for part in cookie.split(";")
    }
    assert nobody.get("/api/me").json()["name"] == "bob"
    assert create(nobody).status_code == 403  # the request has no Origin header
    assert create(nobody, headers={"origin": BASE}).status_code == 201
    assert create(nobody, headers={"origin": "http://evil.example"}).status_code == 403
    assert create(nobody, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    tokens.revoke(config.home, "bob")
    assert nobody.get("/api/me").status_code == 401


def test_a_cookie_from_another_server_or_time_is_refused(
    nobody: TestClient, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody.post("/login", json={"token": tokens.own(config.home)})
    value = nobody.cookies["memories_8765"]
    assert nobody.get("/api/me").status_code == 200
    other = TestClient(build(config, Options(port=9999)), base_url="http://127.0.0.1:9999")
    with other:
        other.cookies.set("memories_9999", value)
        assert other.get("/api/me").status_code == 401
    said, _, signature = value.partition(".")
    for forged in (
        f"{said[:-2]}AA.{signature}",
        f"{said}.{signature[:-2]}AA",
        said,
        f".{signature}",
        ".",
    ):
        nobody.cookies.set("memories_8765", forged, domain="127.0.0.1")
        assert (
            nobody.get("/api/me", headers={"cookie": f"memories_8765={forged}"}).status_code == 401
        )
    now = access.time.time()
    monkeypatch.setattr(access.time, "time", lambda: now + access.SESSION_SECONDS + 1)
    nobody.cookies.clear()
    assert nobody.get("/api/me", headers={"cookie": f"memories_8765={value}"}).status_code == 401


def test_a_cookie_expires_with_its_token(nobody: TestClient, config: Config, token: Token) -> None:
    late = token("bob:r", name="late", expires_at=datetime.now(UTC) + timedelta(seconds=3600))
    nobody.post("/login", json={"token": late["authorization"][7:]})
    assert nobody.get("/api/me").json()["name"] == "late"
    file = config.home / "tokens.json"
    shape = json.loads(file.read_text())
    shape["tokens"][0]["expires_at"] = "2020-01-01T00:00:00.000Z"
    file.write_text(json.dumps(shape))
    assert nobody.get("/api/me").status_code == 401


def test_signing_out_ends_every_copy_of_the_session_and_no_other(
    nobody: TestClient, config: Config
) -> None:
    token, copies = {"token": tokens.own(config.home)}, []
    for _ in range(2):
        nobody.post("/login", json=token)
        copies.append({"cookie": f"memories_8765={nobody.cookies['memories_8765']}"})
        nobody.cookies.clear()
    assert nobody.post("/logout").status_code == 200  # no session is left to end
    assert nobody.post("/logout", headers=copies[0] | {"origin": BASE}).status_code == 200
    assert [nobody.get("/api/me", headers=each).status_code for each in copies] == [401, 200]
    with TestClient(build(config, Options(port=8765)), base_url=BASE) as restarted:
        assert [restarted.get("/api/me", headers=each).status_code for each in copies] == [401, 200]


def test_writes_from_a_browser_count_as_writes_by_a_person(
    nobody: TestClient, config: Config, token: Token
) -> None:
    bob = token("bob:admin", name="bob")
    by_token = create(nobody, "Bob uses vim", headers=bob).json()["id"]
    by_owner = create(
        nobody,
        "The office is in Bergen",
        headers={"authorization": f"Bearer {tokens.own(config.home)}"},
    )
    nobody.post("/login", json={"token": bob["authorization"][7:]})
    on_page = {"origin": BASE}
    by_page = create(nobody, "Deploys happen on Tuesdays", headers=on_page).json()["id"]

    def origin(memory_id: str, **query: str) -> Any:
        found = nobody.get(f"/api/memories/{memory_id}", params=query, headers=bob).json()["origin"]
        return found["channel"], found["trust"], found["by"]

    assert origin(by_token) == ("http", "agent", "bob")
    assert origin(by_page) == ("page", "user", "bob")
    assert nobody.patch(
        f"/api/memories/{by_token}", json={"content": "Bob uses Emacs"}, headers=on_page
    ).is_success
    assert origin(by_token) == ("page", "user", "bob")
    with Memories(config=config) as memories:
        written = memories.get(by_owner.json()["id"]).origin
    assert written is not None
    assert (written.channel, written.trust) == ("http", "agent")
    [waiting] = nobody.get(
        "/api/memories", params={"where": "channel = page and trust = user and type != x"}
    ).json()["results"][:1]
    assert waiting["id"] in (by_page, by_token)
    pending = create(nobody, "Lunch is at noon", headers=bob, pending=True).json()["id"]
    assert (
        nobody.post("/api/review/accept", json={"ids": [pending]}, headers=on_page).json()[
            "accepted"
        ]
        == 1
    )
    accepted = nobody.get(f"/api/memories/{pending}").json()
    assert accepted["origin"]["trust"] == "agent"
    assert accepted["accepted_by"].endswith("(user, page)")


# --- logs


def test_each_request_is_logged_once_with_its_sender(
    owner: TestClient, config: Config, token: Token
) -> None:
    bob = token("bob:admin", name="bob")
    made = create(owner, headers=bob).json()["id"]
    owner.get("/api/memories", params={"q": "deploys"}, headers=bob)
    owner.patch(f"/api/memories/{made}", json={"content": "Deploys happen on Fridays"}, headers=bob)
    owner.post(
        "/api/memories/batch",
        json={"memories": [{"content": "one"}, {"content": "two"}]},
        headers=bob,
    )
    owner.post("/api/context", json={"query": "when are deploys?"}, headers=bob)
    told = list(events.read(config.home))
    parts = ["search", "search"]  # one for memories, one for turns
    assert [each["op"] for each in told] == [
        "create",
        "search",
        "update",
        "create",
        *parts,
        "context",
    ]
    assert {(each["agent"], each["namespace"]) for each in told} == {("bob", "bob")}
    assert {each["channel"] for each in told[:-1]} == {"http"}
    assert [each.get("written") for each in told[:4]] == [1, None, 1, 2]
    assert owner.get("/api/stats", headers=bob).json()["agents"] == {"bob": 7}
    assert owner.get("/api/stats?namespace=ann").json()["agents"] == {}


# --- limits


def test_a_token_with_too_many_requests_gets_429(
    owner: TestClient, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "BURST", 3.0)
    monkeypatch.setattr(access, "RATE", 0.0)
    bob, ann = token("bob:r", name="bob"), token("ann:r", name="ann")
    answers = [owner.get("/api/me", headers=bob) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2
    assert answers[-1].headers["retry-after"] == "1"
    assert owner.get("/api/me", headers=ann).status_code == 200


def test_guessing_tokens_gets_429(nobody: TestClient) -> None:
    found = {
        nobody.get("/api/me", headers={"authorization": "Bearer mem_guess_guess"}).status_code
        for _ in range(60)
    }
    assert found == {401, 429}


def test_a_wrong_token_is_refused_while_all_writes_wait(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal waits neither for other requests nor for a free place in the queue."""
    go, begun = threading.Event(), threading.Semaphore(0)

    def waiting(*_: object, **__: object) -> Sequence[Created]:
        begun.release()
        go.wait(60)
        raise StoreBusy("later")

    most = 64
    monkeypatch.setattr(Memories, "create_many", waiting)
    app = build(config, Options(port=8765))
    right = {"authorization": f"Bearer {tokens.own(config.home)}"}
    wrong = {"authorization": "Bearer mem_guess_guess"}
    with (
        TestClient(app, base_url=BASE, raise_server_exceptions=False) as api,
        ThreadPoolExecutor(most) as pool,
    ):
        try:
            writes = [pool.submit(create, api, headers=right) for _ in range(most)]
            assert all(begun.acquire(timeout=60) for _ in range(most))
            assert create(api, headers=wrong).status_code == 401
        finally:
            go.set()
        assert {each.result().status_code for each in writes} == {503}


def test_every_answer_has_the_security_headers(owner: TestClient) -> None:
    for path in ("/health", "/api/memories", "/nowhere", "/openapi.json"):
        headers = owner.get(path).headers
        for name, value in middleware.HEADERS:
            assert headers[name.decode()] == value.decode()
    assert (
        "access-control-allow-origin" not in owner.get("/health", headers={"origin": BASE}).headers
    )


# --- whole stores


def test_an_import_of_a_foreign_export_waits_for_review(owner: TestClient, token: Token) -> None:
    create(owner, "Bob likes tea", headers=token("bob:admin", name="one"))
    lines = owner.get("/api/export?namespace=bob").text.replace('"bob"', '"ann"')
    kind = {"content-type": "application/x-ndjson"}
    answer = owner.post(
        "/api/import", content=lines, headers={**token("ann:rw", name="two"), **kind}
    )
    assert answer.status_code == 400  # its content was changed
    own = owner.get("/api/export?namespace=bob", headers=token("bob:r", name="three")).text
    back = owner.post(
        "/api/import?namespace=bob", content=own, headers={**token("bob:rw", name="four"), **kind}
    )
    assert (back.status_code, back.json()["trusted"]) == (200, False)


def test_an_admin_of_a_namespace_can_import_without_review(owner: TestClient, token: Token) -> None:
    create(owner, "Bob likes tea", headers=token("bob:admin", name="one"))
    lines = owner.get("/api/export?namespace=bob").text
    kind = {"content-type": "application/x-ndjson"}
    for grants, status in (("bob:rw", 403), ("bob:admin", 200)):
        headers = token(grants, "ann:admin", name=grants.replace(":", "")) | kind
        answer = owner.post(
            "/api/import?namespace=bob&trusted=true&dry_run=true", content=lines, headers=headers
        )
        assert answer.status_code == status


@pytest.mark.parametrize("name", ["bob", "ann"])
def test_imports_by_a_token_never_count_as_imports_by_a_person(
    owner: TestClient, token: Token, config: Config, name: str
) -> None:
    labels = {"=trust": "user", "=by": "root", "=via": "cli||root|laptop|1.0|shared"}
    record = {
        "collection": "memory", "namespace": name, "group": "01a1fdf1-92cd-72f2-8000-000000000000",
        "position": 1,
        "text": "The user wants evil", "created_at": "2026-01-01T00:00:00.000Z", "labels": labels,
        "fields": {"accepted_by": "root@laptop (user, cli)", "accepted_at": 5},
    }  # fmt: skip
    lines = "\n".join(map(json.dumps, [{"format": "memories", "version": 1}, record])) + "\n"
    headers = token(f"{name}:admin", name="one") | LINES
    answer = owner.post(
        f"/api/import?namespace={name}&trusted=true", content=lines, headers=headers
    )
    assert (answer.status_code, answer.json()["trusted"]) == (200, True)
    [found] = owner.get(f"/api/memories?namespace={name}").json()["results"]
    assert (found["origin"]["trust"], found["origin"]["by"], "accepted_by" in found) == (
        "agent",
        "one",
        False,
    )


def test_an_import_can_rename_a_namespace_only_to_a_managed_namespace(
    owner: TestClient, token: Token
) -> None:
    for text in ("Bob likes tea", "Bob works on Mondays"):
        create(owner, text, headers=token("bob:admin", name=text[4]))
    lines = owner.get("/api/export?namespace=bob&shared=false").text
    rob, eve = token("rob:admin", name="rob"), token("rob:r", "eve:admin", name="eve")
    for headers, path, status in (
        (eve, "as=rob", 403), (eve, "as=rob&trusted=true", 403), (rob, "as=bob", 403), (rob,
        "as=..", 400),
        (rob, "as=rob&all_namespaces=true", 400), (rob, "as=rob&trusted=true", 200),
    ):  # fmt: skip
        assert (
            owner.post(f"/api/import?{path}", content=lines, headers=headers | LINES).status_code
            == status
        ), path
    found = owner.get("/api/memories?namespace=rob", headers=rob).json()["results"]
    assert {each["content"] for each in found} == {"Bob likes tea", "Bob works on Mondays"}
    assert owner.get("/api/memories?namespace=bob").json()["count"] == 2


def test_an_import_stores_no_more_than_the_quota_allows(config: Config, owner: TestClient) -> None:
    for text in ("Ann likes tea", "Ann sails"):
        create(owner, text)
    lines = owner.get("/api/export").text
    headers = {"authorization": owner.headers["authorization"], **LINES}
    tight = build(config._replace(namespace_quota="memories=3,bob.memories=1"), Options(port=8765))
    with TestClient(tight, base_url=BASE, headers=headers) as api:
        refused = api.post("/api/import?as=bob", content=lines)
        assert (refused.status_code, "its quota is 1" in refused.json()["detail"]) == (409, True)
        assert api.post("/api/import?as=eve", content=lines).status_code == 200
    assert (contents(config, "bob"), len(contents(config, "eve"))) == ([], 2)


def test_an_import_appears_in_the_scratchpad_and_the_operations(
    owner: TestClient, config: Config
) -> None:
    with Memories(config=config, namespace="eve") as eve:
        eve.create("Eve likes tea")
        assert len(eve.scratchpad().entries) == 1
    create(owner, "Ann sails")
    lines = owner.get("/api/export").text
    assert owner.post("/api/import?as=eve", content=lines, headers=LINES).json()["imported"] == 1
    assert owner.post("/api/import?as=eve", content="{}", headers=LINES).status_code == 400
    assert owner.post("/api/backup", json={}).status_code == 200
    with Memories(config=config, namespace="eve") as eve:
        assert {entry.content for entry in eve.scratchpad().entries} == {
            "Eve likes tea",
            "Ann sails",
        }
    noted = [json.loads(line) for line in (config.home / "events.jsonl").read_text().splitlines()]
    whole = [
        (each["op"], each["outcome"], each["channel"])
        for each in noted
        if each["op"] in ("export", "import", "backup")
    ]
    assert whole == [
        ("export", "ok", "http"), ("import", "ok", "http"), ("import", "InvalidInput", "http"),
        ("backup", "ok", "http")
    ]  # fmt: skip


def test_scratchpad_and_prompt_follow_the_rights_of_the_token(
    owner: TestClient, token: Token
) -> None:
    create(owner, "The office is in Berlin")
    create(owner, "Ann sails", headers=token("ann:rw", name="ann"))
    bob = token("bob:rw", name="bob")
    create(owner, "Bob likes tea", headers=bob)
    for path in ("/api/scratchpad", "/api/prompt", "/api/prompt?project=shop&budget=300&for=mcp"):
        told = owner.get(path, headers=bob)
        assert [
            each in told.text for each in ("Bob likes tea", "Berlin", "Ann", "scratchpad.yaml")
        ] == [*(True, False, False, False)], path
        assert (
            owner.get(f"{path}{'&' if '?' in path else '?'}namespace=ann", headers=bob).status_code
            == 403
        )
    assert owner.get("/api/scratchpad").json()["file"].endswith("scratchpad.yaml")
    for wrong in ("budget=99", "budget=100001", "for=tool", "refresh=true"):
        assert owner.get(f"/api/prompt?{wrong}").status_code == 400


def test_a_prompt_accepts_the_last_part_of_a_projects_name(
    owner: TestClient,
) -> None:
    create(owner, "Deploys happen on Tuesdays", tags={"project": "example.com/acme/shop"})
    for name, is_shown in (("shop", True), ("example.com/acme/shop", True), ("op", False)):
        block = owner.get(f"/api/prompt?project={name}").json()
        assert ("Deploys happen" in block["prompt"]) is is_shown


def test_an_import_can_be_larger_than_other_bodies(owner: TestClient) -> None:
    with_blanks = owner.get("/api/export").text + (" " * 999 + "\n") * 1_200
    kind = {"content-type": "application/x-ndjson"}
    assert owner.post("/api/import", content=with_blanks, headers=kind).status_code == 200
    assert (
        owner.post(
            "/api/memories", content=b" " * 1_100_000, headers={"content-type": "application/json"}
        ).status_code
        == 413
    )


def test_answers_as_of_a_time_equal_those_of_the_library(owner: TestClient, config: Config) -> None:
    first = datetime(2026, 5, 1, 12, tzinfo=UTC)
    with Memories(config=config, clock=lambda: first) as memories:
        one = memories.create(
            "Deploys happen on Tuesdays", tags={"type": "fact"}, key="deploys"
        ).memory
        memories.add_turns("talk", [TurnDraft("hello", created_at=first)])
    assert one
    with Memories(config=config) as memories:
        memories.update(one.id, "Deploys happen on Fridays", tags={"type": "decision"})
        memories.add_turns("talk", [TurnDraft("again")])
        then = "2026-05-02"
        asked = {
            f"/api/memories/{one.id}": shapes.memory(memories.get(one.id, as_of=then)),
            "/api/keys/deploys": shapes.memory(memories.get(one.id, as_of=then)),
            f"/api/memories/{one.id}/history": shapes.history(memories.history(one.id, as_of=then)),
            "/api/tags/type": {"key": "type", "values": [{"value": "fact", "count": 1}]},
            "/api/tags": {"keys": [{"key": "type", "count": 1}]},
            "/api/conversations": conversation_shapes.conversations(
                memories.list_conversations(as_of=then)
            ),
            "/api/conversations/talk": conversation_shapes.conversation(
                memories.conversation("talk", as_of=then)
            ),
            "/api/conversations/talk/turns": conversation_shapes.turns(
                memories.turns("talk", as_of=then)
            ),
            "/api/namespaces": {
                "namespaces": [
                    {"name": "shared", "memory_count": 1, "turn_count": 1, "read": True}
                ],
                "count": 1,
            },
        }
    for path, shape in asked.items():
        assert owner.get(f"{path}?as_of={then}").json() == shape, path
    told = owner.get(f"/api/memories/{one.id}?as_of=2026-04-01")
    assert (
        told.status_code,
        "it did not exist until 2026-05-01T12:00:00.000Z" in told.json()["detail"],
    ) == (404, True)


@pytest.mark.first(1)
@pytest.mark.parametrize(("force", "count"), [(True, 501), (False, 26)], ids=["forced", "compared"])
def test_a_refused_draft_in_a_later_transaction_affects_no_other(
    owner: TestClient, force: bool, count: int
) -> None:
    given: list[dict[str, Any]] = [
        {"content": f"{'word ' * (n % 7)}number {n * n}"} for n in range(count)
    ]
    given[-1]["supersedes"] = "019b76da-a800-7fff-8000-000000000000"
    answer = owner.post("/api/memories/batch", json={"memories": given, "force": force}).json()
    assert [each["stored"] for each in answer["results"]] == [True] * (count - 1) + [False]
    assert "not found" in answer["results"][-1]["error"]
    assert owner.get("/api/status").json()["memory_count"] == count - 1


def test_an_error_after_the_first_drafts_says_how_many_were_processed(
    owner: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, calls = memory_routes._store, itertools.count()

    def busy_the_second_time(*arguments: Any) -> Sequence[Created]:
        if next(calls) == 1:
            raise StoreBusy("another program kept it busy; nothing was written; try again")
        return store(*arguments)

    monkeypatch.setattr(memory_routes, "_store", busy_the_second_time)
    given = [{"content": f"{'word ' * (n % 7)}number {n * n}"} for n in range(40)]
    answer = owner.post("/api/memories/batch", json={"memories": given})
    problem = "25 records were processed, but another program kept it busy; try again"
    assert (answer.status_code, answer.json()["detail"]) == (503, problem)


def test_rank_is_a_parameter_of_a_search(owner: TestClient, config: Config) -> None:
    with Memories(config=config, embedder="fake") as memories:
        for hour, year in (("noon", 2020), ("nine", 2026)):
            at = datetime(year, 5, 1, tzinfo=UTC)
            memories.create(f"the ferry to Skye leaves at {hour}", created_at=at, force=True)

    def first(rank: str) -> str:
        asked = {"q": "the ferry to Skye leaves at noon", "rank": rank}
        return str(owner.get("/api/memories", params=asked).json()["results"][0]["content"][-4:])

    assert [first(rank) for rank in ("relevance", "similarity", "formula")] == [
        "noon",
        "noon",
        "nine",
    ]
    refused = owner.get("/api/memories", params={"q": "ferry", "rank": "best"})
    assert (refused.status_code, "relevance, similarity or formula" in refused.text) == (400, True)
