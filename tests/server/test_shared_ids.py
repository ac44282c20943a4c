"""Two namespaces with the same ids: a request reaches only the copies that its token allows."""

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from memories import Draft, Memories
from memories.config import load_config
from memories.identity import tokens
from memories.server.api import memory_routes
from memories.server.api.access import OWNER
from memories.server.api.routes import Call
from memories.server.app import Options, build
from memories.server.pages.routes import routes as page_routes
from memories.stores.records import Collection, Filter

if TYPE_CHECKING:
    from memories.server.api.server import ServerState

OWN, SHARED = "eve", "shared"
GRANTS = (
    ("eve:r", "shared:r"),
    ("eve:rw", "shared:r"),
    ("eve:admin",),
    ("eve:admin", "shared:rw"),
    ("eve:r", "shared:admin"),
    ("eve:admin", "*:r"),
    ("*:rw",),
    ("*:admin",),
)
CORE = (
    GRANTS[1],
    GRANTS[4],
    GRANTS[5],
)  # by default, only tokens that write to their own namespace, manage the shared one, or read all
EACH = [
    pytest.param(grants, id=" ".join(grants), marks=() if grants in CORE else pytest.mark.thorough)
    for grants in GRANTS
]
LEVELS = {"r": 1, "rw": 2, "admin": 3}


class Verb(NamedTuple):
    """A request about one memory or conversation.

    Attributes:
        needs: The required level: 1 to read, 2 to write, 3 to manage.
        state: The state of the memory before the request: `current`, `deleted` or `pending`; or
            `conversation`.
    """

    needs: int
    method: str
    path: str
    body: dict[str, Any] | None = None
    state: str = "current"


ONE, TALK = "/api/memories/{}", "/api/conversations/{}"
VERBS = (
    Verb(1, "GET", ONE),
    Verb(1, "GET", f"{ONE}/history"),
    Verb(1, "GET", "/memories/{}?format=json"),
    Verb(1, "GET", f"{TALK}/turns", state="conversation"),
    Verb(1, "GET", "/conversations/{}?format=json", state="conversation"),
    Verb(2, "PATCH", ONE, {"content": "said otherwise"}),
    Verb(2, "DELETE", ONE),
    Verb(2, "POST", f"{ONE}/restore", {}, "deleted"),
    Verb(2, "POST", f"{ONE}/reinforce", {}),
    Verb(2, "POST", f"{ONE}/confirm", {}),
    Verb(2, "POST", f"{ONE}/pin", {}),
    Verb(2, "POST", "/api/memories", {"content": "new words", "supersedes": "NAME", "force": True}),
    Verb(2, "POST", "/api/delete", {"where": 'id = "NAME"'}),
    Verb(2, "POST", "/api/tags", {"where": 'id = "NAME"', "tags": {"team": "core"}}),
    Verb(2, "PATCH", TALK, {"title": "Daily"}, "conversation"),
    Verb(2, "POST", f"{TALK}/turns", {"turns": [{"content": "more"}]}, "conversation"),
    Verb(3, "POST", f"{ONE}/forget", {}),
    Verb(3, "POST", "/api/forget", {"where": 'id = "NAME"'}),
    Verb(3, "POST", "/api/review/accept", {"ids": ["NAME"], "force": True}, "pending"),
    Verb(3, "POST", "/api/review/reject", {"ids": ["NAME"]}, "pending"),
    Verb(3, "POST", f"{TALK}/forget", {}, "conversation"),
)


class Site(NamedTuple):
    """A server, and its store as the library sees it."""

    client: TestClient
    home: Path
    own: Memories
    shared: Memories

    def token(self, name: str, *grants: str) -> dict[str, str]:
        """Return a header with a new token."""
        secret, _ = tokens.create(self.home, name, tokens.parse_grants(grants))
        return {"authorization": f"Bearer {secret}"}

    def contents(self, namespace: str, name: str | None = None) -> list[Any]:
        """Return the records of a namespace, or of one memory or conversation, without the read
        counts.
        """
        kinds = (Collection.MEMORY, Collection.HISTORY)
        wanted = (Filter(kind, (namespace,), state="any", group=name) for kind in kinds)
        found = (self.own._store.scan(where, limit=10_000) for where in wanted)
        return [record._replace(accesses=0) for records in found for record in records]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server for a store in which two namespaces have the same ids."""
    folder = tmp_path_factory.mktemp("site")
    home = folder / "home"
    environment = {"MEMORY_HOME": str(home), "PROJECT_DETECTION": "false", "NAMESPACE": SHARED}
    config = load_config({"embedder": "none"}, environment=environment, folder=folder)
    options = Options(port=8765, routes=page_routes())
    with (
        Memories(config=config, namespace=OWN, embedder="none") as own,
        Memories(config=config, namespace=SHARED, embedder="none") as shared,
        TestClient(
            build(config, options), base_url="http://127.0.0.1:8765", raise_server_exceptions=False
        ) as client,
    ):
        yield Site(client, home, own, shared)


def prepare(site: Site, state: str, count: int, numbers: "itertools.count[int]") -> Iterator[str]:
    """Create memories or conversations with the same ids in both namespaces; return the ids."""
    ids = [f"01a1fdf1-92cd-7000-8000-{next(numbers):012}" for _ in range(count)]
    drafts = [
        Draft(f"words {name}", decay="reinforceable", id=name, pending=state == "pending")
        for name in ids
    ]
    for one in (site.own, site.shared):
        with one.transaction():
            if state != "conversation":
                one.create_many(drafts, force=True)
            for name in ids:
                if state == "deleted":
                    one.delete(name)
                elif state == "conversation":
                    one.add_turns(name, ["words"])
    return iter(ids)


def level(grants: tuple[str, ...], namespace: str) -> int:
    """Return the level of a token's rights in a namespace."""
    known = dict(grant.split(":") for grant in grants)
    return LEVELS.get(known.get(namespace, known.get("*", "")), 0)


def fill_name(given: Any, name: str) -> Any:
    """Replace the placeholder NAME everywhere in a request."""
    return json.loads(json.dumps(given).replace("NAME", name))


@pytest.mark.first(1)
@pytest.mark.parametrize("grants", EACH)
def test_a_token_changes_only_copies_in_its_namespaces(site: Site, grants: tuple[str, ...]) -> None:
    numbers = itertools.count(1_000 * GRANTS.index(grants))
    sizes = {"current": 30, "deleted": 6, "pending": 8, "conversation": 12}
    pools = {state: prepare(site, state, size, numbers) for state, size in sizes.items()}
    wrong: list[str] = []
    headers = site.token(f"token of {' '.join(grants)}", *grants)
    untouched = [name for name in (OWN, SHARED) if level(grants, name) < 2]
    whole = {name: site.contents(name) for name in untouched}
    names = {state: next(pool) for state, pool in pools.items()}
    for namespace, verb in itertools.product((OWN, SHARED), VERBS):
        name, other = names[verb.state], OWN if namespace == SHARED else SHARED
        before, beside = site.contents(namespace, name), site.contents(other, name)
        mark = "&" if "?" in verb.path else "?"
        answer = site.client.request(
            verb.method,
            f"{verb.path.format(name)}{mark}namespace={namespace}",
            headers=headers,
            json=None if verb.body is None else fill_name(verb.body, name),
        )
        allowed = level(grants, namespace) >= verb.needs
        told = f"{' '.join(grants)}: {verb.method} {verb.path} in {namespace}: {answer.status_code}"
        if (answer.status_code < 300) is not allowed or (not allowed and answer.status_code != 403):
            wrong.append(f"{told} {answer.text[:200]}")
        if (site.contents(namespace, name) != before) is not (allowed and verb.needs > 1):
            wrong.append(f"{told}, and what it names there was {'left' if allowed else 'changed'}")
        if site.contents(other, name) != beside:
            wrong.append(f"{told}, and the copy in {other} was changed")
        shown = (
            answer.json().get("namespace", namespace)
            if allowed and answer.status_code < 300
            else namespace
        )
        if shown != namespace:
            wrong.append(f"{told}, and it shows the copy in {shown}")
        if allowed and verb.needs > 1:
            names[verb.state] = next(pools[verb.state])
    for name, known in whole.items():
        if site.contents(name) != known:
            wrong.append(f"{' '.join(grants)}: {name} was changed")
    assert not wrong, "\n".join(wrong)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "grants", [("mallory:admin", "shared:r"), ("mallory:admin", "*:r")], ids=" ".join
)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_token_that_only_reads_shared_cannot_empty_it(
    site: Site, grants: tuple[str, ...], trusted: bool
) -> None:
    headers = site.token(f"mallory {grants} {trusted}", *grants)
    made = [
        site.shared.create(f"the build runs on {day}", force=True).id
        for day in ("Monday", "Tuesday")
    ]
    whole = site.contents(SHARED)
    where = {"where": " or ".join(f'id = "{name}"' for name in made), "namespace": SHARED}
    lines = site.client.get("/api/export", params=where, headers=headers)
    assert lines.status_code == 200
    query = {"namespace": "mallory", "as": "mallory", "trusted": str(trusted).lower()}
    taken = site.client.post(
        "/api/import",
        params=query,
        content=lines.content,
        headers=headers | {"content-type": "application/x-ndjson"},
    )
    assert (taken.status_code, taken.json()["imported"]) == (200, 2), taken.text
    for name in made:
        answer = site.client.post(
            f"/api/memories/{name}/forget",
            params={"namespace": "mallory"},
            json={},
            headers=headers,
        )
        assert (answer.status_code, answer.json()["versions"]) == (200, 1)
        again = site.client.post(
            f"/api/memories/{name}/forget",
            params={"namespace": "mallory"},
            json={},
            headers=headers,
        )
        assert (again.status_code, "is in namespace shared" in again.json()["detail"]) == (
            409,
            True,
        )
    assert site.contents("mallory") == []
    assert site.contents(SHARED) == whole


def test_a_retry_ignores_changes_to_the_copy_in_another_namespace(
    site: Site,
) -> None:
    """A server that repeats a request looks up the earlier change in the log, which contains both
    namespaces.
    """
    deleted, forgotten, restored = prepare(site, "current", 3, itertools.count(900_000))
    server: ServerState = site.client.app.state.server  # type: ignore[attr-defined]
    begun_at = datetime.now(UTC) - timedelta(hours=1)
    request = Request({"type": "http", "headers": []})
    memories = server.handles.of(OWNER, OWN)
    call = Call(
        server, OWNER, memories, {}, request, shared=True, key="k", begun_at=begun_at, again=True
    )
    site.shared.delete(deleted)
    site.shared.delete(restored)
    site.shared.restore(restored)
    site.own.delete(restored)
    assert memory_routes.delete(call._replace(arguments={"id": deleted})) == {
        "id": deleted,
        "deleted": True,
    }
    assert site.own.history(deleted).versions[-1].ended_by == "delete"
    assert (
        memory_routes.restore(call._replace(arguments={"id": restored})).shape["namespace"] == OWN
    )
    site.own.forget(forgotten)
    again = memory_routes.forget(call._replace(arguments={"id": forgotten}))
    assert (again["id"], again["versions"]) == (forgotten, 1)
    assert site.shared.get(forgotten).version == 1
