"""The OpenAPI document is valid and complete: a client generated from it can call every route."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from starlette.testclient import TestClient

from memories.server.app import ROUTES

DEPLOY = "Deploys happen on Tuesdays"


class Client:
    """A client that knows only the operations in a document."""

    def __init__(self, document: dict[str, Any], http: TestClient) -> None:
        self.document, self.http = document, http
        self.called: set[str] = set()
        self.operations = {
            operation["operationId"]: (path, method, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
        }
        self.registry = Registry().with_resource("urn:api", Resource(document, DRAFT202012))

    def call(self, name: str, body: Any = None, *, data: bytes | None = None, **given: Any) -> Any:
        path, method, operation = self.operations[name]
        query: dict[str, Any] = {}
        headers: dict[str, str] = {}
        for parameter in operation["parameters"]:
            if parameter["name"] not in given:
                assert not parameter["required"], f"{name} needs {parameter['name']}"
                continue
            value = given.pop(parameter["name"])
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", value)
            else:
                (query if parameter["in"] == "query" else headers)[parameter["name"]] = value
        assert not given, f"{name} takes no {given}"
        if body is not None:
            self.check(body, operation["requestBody"]["content"]["application/json"]["schema"])
        if data is not None:
            [kind] = operation["requestBody"]["content"]
            headers["content-type"] = kind
        answer = self.http.request(
            method, path, params=query, json=body, content=data, headers=headers
        )
        self.called.add(name)
        told = operation["responses"][str(answer.status_code)]["content"]
        kind = answer.headers["content-type"].partition(";")[0]
        if kind in ("application/json", "application/problem+json"):
            self.check(answer.json(), told[kind]["schema"])
            return answer.json()
        assert kind in told
        return answer.text

    def check(self, value: Any, schema: dict[str, Any]) -> None:
        inner = json.loads(json.dumps(schema).replace('"#/components', '"urn:api#/components'))
        Draft202012Validator(inner, registry=self.registry).validate(value)


@pytest.fixture
def document(nobody: TestClient) -> dict[str, Any]:
    """The document that the server serves."""
    found: dict[str, Any] = nobody.get("/openapi.json").json()
    return found


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_every_route_is_in_the_document(document: dict[str, Any]) -> None:
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert told == {(route.method, route.path) for route in ROUTES}
    assert len({route.summary for route in ROUTES}) == len(ROUTES)


def test_a_client_generated_from_the_document_can_call_every_route(
    document: dict[str, Any], owner: TestClient
) -> None:
    client = Client(document, owner)
    _memories(client)
    _many(client)
    _conversations(client)
    _whole(client)
    rest = {name for name in client.operations if name not in client.called}
    assert rest == {"get_api_changes"}  # an endless stream: see test_changes


def test_the_document_describes_every_member_of_a_new_memory(
    document: dict[str, Any], owner: TestClient
) -> None:
    made = owner.post("/api/memories", json={"content": DEPLOY, "key": "team/deploys"}).json()
    assert made.keys() <= document["components"]["schemas"]["Created"]["properties"].keys()


def test_the_document_names_the_statuses_of_refused_requests(document: dict[str, Any]) -> None:
    change = document["paths"]["/api/memories/{id}"]["patch"]["responses"]
    assert {"409", "412", "413", "415", "422"} <= change.keys()
    assert not {"412", "413", "415", "422"} & set(
        document["paths"]["/api/memories/{id}"]["get"]["responses"]
    )


def _memories(client: Client) -> None:
    """Call every route of memories."""
    made = client.call(
        "post_api_memories", {"content": DEPLOY, "tags": {"type": "fact"}, "key": "team/deploys"}
    )
    name = made["id"]
    again = client.call("post_api_memories", {"content": DEPLOY})
    assert (again["stored"], again["id"]) == (False, name)
    many = client.call(
        "post_api_memories_batch",
        {"memories": [{"content": "The office is in Berlin"}, {"content": ""}]},
    )
    assert [each["stored"] for each in many["results"]] == [True, False]
    assert client.call("get_api_memories", q="when do we deploy?")["results"][0]["id"] == name
    assert client.call("get_api_memories", q="deploy", explain=True)["explain"]["considered"]
    assert client.call("get_api_memories", limit=1)["next_cursor"]
    assert client.call("get_api_memories", tag=["type=fact"])["count"] == 1
    assert client.call("get_api_keys_key", key="team%2Fdeploys")["id"] == name
    assert client.call("get_api_memories_id", id=name)["content"] == DEPLOY
    changed = client.call(
        "patch_api_memories_id", {"content": "Deploys happen on Thursdays"}, id=name
    )
    assert changed["version"] == 2
    assert client.call("get_api_memories_id_history", id=name, diff=True)["count"] == 2
    assert client.call("get_api_memories", as_of="2020-01-01")["count"] == 0
    assert client.call("delete_api_memories_id", id=name)["deleted"]
    assert client.call("post_api_memories_id_restore", {}, id=name)["version"] == 3
    fading = client.call(
        "post_api_memories", {"content": "Ann likes tea", "decay": "reinforceable"}
    )
    assert client.call("post_api_memories_id_reinforce", {}, id=fading["id"])["confidence"] == 1.0
    assert client.call("post_api_memories_id_confirm", {}, id=fading["id"])["version"] == 2
    assert client.call("post_api_memories_id_pin", {}, id=fading["id"])["pinned"]
    assert "pinned" not in client.call("post_api_memories_id_unpin", {}, id=fading["id"])
    assert client.call("get_api_stats", since="7d")["operations"]
    assert {each["content"] for each in client.call("get_api_scratchpad")["results"]} >= {
        "Deploys happen on Thursdays"
    }
    assert (
        "Thursdays"
        in client.call("get_api_prompt", budget=500, project="shop", **{"for": "mcp"})["prompt"]
    )
    assert client.call("post_api_memories_id_forget", {}, id=fading["id"])["forgotten"]
    client.call("get_api_duplicates")
    assert client.call("get_api_ids", prefix=name[:8])["results"]
    assert client.call("get_api_short_ids", id=[name])["short_ids"]


def _many(client: Client) -> None:
    """Call every route that changes many memories."""
    assert client.call("get_api_tags")["keys"]
    assert client.call("get_api_tags_key", key="type")["values"]
    tagged = client.call("post_api_tags", {"tags": {"project": "shop"}, "where": "type = fact"})
    assert (tagged["count"], set(tagged["undo"])) == (1, {"to", "where"})
    assert client.call("post_api_delete", {"where": "content ~ Berlin"})["count"] == 1
    assert client.call("post_api_rollback", {"to": "2020-01-01", "dry_run": True})["dry_run"]
    assert (
        client.call("post_api_forget", {"where": "content ~ Berlin", "in": "all", "dry_run": True})[
            "count"
        ]
        == 1
    )
    waits = client.call("post_api_memories", {"content": "The port is 8080", "pending": True})
    more = client.call("post_api_memories", {"content": "Ann moved to Rome", "pending": True})
    assert client.call("get_api_review")["count"] == 2
    current = client.call("post_api_memories", {"content": "The port is 8080."})
    newest, oldest = client.call("get_api_review")["results"]
    assert [memory["id"] for memory in oldest["duplicates"]] == [current["id"]]
    assert "duplicates" not in newest
    moved = client.call("post_api_move", {"ids": [current["id"]]}, to="attic")
    assert (moved["into"], moved["count"]) == ("attic", 1)
    assert client.call("post_api_review_accept", {"ids": [waits["id"]]})["accepted"] == 1
    assert client.call("post_api_review_reject", {"all": True})["results"][0]["id"] == more["id"]


def _conversations(client: Client) -> None:
    """Call every route of conversations."""
    said = [
        {"content": "We ship on Friday", "speaker": "Ann"},
        {"content": "Good", "role": "assistant"},
    ]
    assert (
        client.call(
            "post_api_conversations_conversation_turns", {"turns": said}, conversation="a%2Fb"
        )["stored"]
        == 2
    )
    assert client.call("get_api_conversations")["results"][0]["conversation_id"] == "a/b"
    assert client.call(
        "patch_api_conversations_conversation", {"title": "Release"}, conversation="a%2Fb"
    )["title"]
    assert (
        client.call("get_api_conversations_conversation", conversation="a%2Fb")["turn_count"] == 2
    )
    assert (
        client.call("get_api_conversations_conversation_turns", conversation="a%2Fb", start=1)[
            "count"
        ]
        == 1
    )
    assert client.call("get_api_waiting_turns")["count"] == 0
    built = client.call(
        "post_api_context", {"query": "When do we ship?", "conversation": "a/b", "budget": 2000}
    )
    assert "Friday" in built["prompt"]
    gone = client.call(
        "post_api_conversations_conversation_forget", {"index": 1}, conversation="a%2Fb"
    )
    assert gone["turns"] == 1


def _whole(client: Client) -> None:
    """Call every route for the whole store."""
    assert client.call("get_api_me")["namespaces"] == {"*": "admin"}
    assert client.call("get_api_namespaces")["count"] == 2
    assert client.call("get_api_status")["status"] == "healthy"
    assert client.call("get_api_log", action="forget")["count"] == 2
    assert client.call("get_api_log_verify")["verified"]
    assert client.call("post_api_backup", {"keep": 2})["verified"]
    lines = client.call("get_api_export", vectors=True)
    back = client.call("post_api_import", data=lines.encode(), dry_run=True)
    assert (back["imported"], back["trusted"]) == (0, True)
