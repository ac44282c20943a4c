"""Generates the OpenAPI 3.1 document from the routes, and defines the responses' JSON schemas."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from memories import __version__
from memories.answers.fields import ALWAYS, CREATED, HIT, KIND, MEMORY, TURN, VERSION, Field
from memories.server.api.routes import SPACE, Route
from memories.server.api.routes import Field as Input

Schema = dict[str, Any]
_TYPES: dict[str, Schema] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    "texts": {"type": "array", "items": {"type": "string"}},
    "objects": {"type": "array"},
    "wholes": {"type": "array", "items": {"type": "integer"}},
    "time": {"type": "string", "format": "date-time"},
}


def _type(name: str) -> Schema:
    """Return the schema for a type's or an object's name: `[Memory]` is a list, `text?` may be
    null.
    """
    if name.startswith("["):
        return {"type": "array", "items": _type(name[1:-1])}
    if name.endswith("?"):
        schema = _type(name[:-1])
        return schema | {"type": [schema["type"], "null"]}
    return _TYPES.get(name) or {"$ref": f"#/components/schemas/{name}"}


def _object(always: str, sometimes: str = "", base: str = "") -> Schema:
    """Return an object's schema.

    Args:
        always: Its required members with their types, such as `id:text count:whole`.
        sometimes: Its optional members.
        base: An object whose members are included.
    """
    required = [pair.partition(":")[0] for pair in always.split()]
    members = {
        name: _type(kind)
        for name, _, kind in (pair.partition(":") for pair in f"{always} {sometimes}".split())
    }
    shape: Schema = {"type": "object", "required": required, "properties": members}
    return {"allOf": [_type(base), shape]} if base else shape


def _shape(*fields: Field, sometimes: str = "") -> Schema:
    """Return the schema of an object with these fields; `sometimes` is as in `_object`."""
    always: list[str] = []
    optional = [sometimes]
    for field in fields:
        members = always if field.default is ALWAYS else optional
        members.append(f"{field.name}:{field.kind}")
    schema = _object(" ".join(always), " ".join(optional))
    for field in fields:
        schema["properties"][field.name] = _type(field.kind) | {"description": field.about}
    return schema


SCHEMAS: dict[str, Schema] = {
    "Memory": _shape(*MEMORY),
    "Hit": {"allOf": [{"anyOf": [_type("Memory"), _type("Turn")]}, _shape(KIND, *HIT)]},
    "Similar": _object(
        "id:text content:text similarity:number? created_at:time",
        "agent:text difference:text origin:object suspicious:texts corrected_by:text",
    ),
    "Created": _shape(
        Field("id", "text?", "Its id; null if nothing was stored."),
        *CREATED,
        *(field._replace(default=None) for field in MEMORY if field.name != "id"),
    ),
    "CreatedMany": _object("results:[object] count:whole"),
    "Listed": {"anyOf": [_type("Hit"), _type("Memory")]},
    "Results": _object(
        "results:[Listed] count:whole",
        "next_cursor:text? note:text tier:text explain:object damaged:[object]",
    ),
    "Page": _object("results:[Memory] count:whole", "next_cursor:text?"),
    "Waiting": _object("", "import:text duplicates:[Similar] similar_to:[Similar]", base="Memory"),
    "ReviewPage": _object("results:[Waiting] count:whole", "next_cursor:text?"),
    "Changed": _object("", "hint:text", base="Memory"),
    "Deleted": _object("id:text deleted:flag", "note:text"),
    "Reinforced": _object("id:text confidence:number last_reinforced_at:text"),
    "Forgotten": _object("id:text forgotten:flag versions:whole also_in:texts", "note:text"),
    "ForgottenTurns": _object(
        "conversation_id:text forgotten:flag turns:whole also_in:texts",
        "memories:whole current_again:texts dry_run:flag",
    ),
    "Version": _shape(*VERSION, sometimes="origin:object diff:[object]"),
    "History": _object(
        "id:text versions:[object] count:whole",
        "supersedes:text superseded_by:text corrects:text corrected_by:text "
        "also_corrects:texts pending:flag",
    ),
    "Duplicates": _object("results:[object] count:whole"),
    "Ids": _object("results:texts count:whole"),
    "ShortIds": _object("short_ids:tags"),
    "Tags": _object("", "keys:[object] key:text values:[object]"),
    "Step": _object("id:text action:text content:text", "reason:text"),
    "Affected": _object(
        "count:whole dry_run:flag counts:counts steps:[object]",
        "left:whole undo:object also_in:texts current_again:texts current_again_count:whole",
    ),
    "Moved": _object(
        "ids:texts namespace:text into:text versions:whole count:whole", "current_again:texts"
    ),
    "Accepted": _object("accepted:whole left:whole results:[object] dry_run:flag"),
    "Rejected": _object("rejected:whole results:[object] dry_run:flag"),
    "Turn": _shape(*TURN),
    "Turns": _object("results:[Turn] count:whole"),
    "Added": _object(
        """
        conversation_id:text count:whole last_index:whole? stored:whole known:whole
        refused:whole results:[object]
        """,
        "redacted:texts",
    ),
    "Conversation": _object(
        "conversation_id:text namespace:text turn_count:whole first_at:text last_at:text",
        "waiting_count:whole title:text user:text tags:tags",
    ),
    "Conversations": _object("results:[Conversation] count:whole next_cursor:text?"),
    "Context": _object(
        """
        conversation_id:text? history:[object] memories:[object] latest_message:text
        recalled:[object] metadata:object prompt:text
        """
    ),
    "Entry": _object(
        """
        id:text content:text pinned:flag namespace:text tags:tags updated_at:text
        created_at:text version:whole access_count:whole
        """,
        "key:text written_by:text trust:text suspicious:texts cut:whole",
    ),
    "Scratchpad": _object(
        "results:[Entry] count:whole namespace:text pending_count:whole", "file:text? notes:texts"
    ),
    "Prompt": _object(
        """
        prompt:text memories:texts sessions:texts pending_count:whole left_out:counts
        tokens:whole degraded:flag
        """,
        "error:text notes:texts",
    ),
    "Me": _object("id:text name:text namespaces:tags"),
    "Namespaces": _object("namespaces:[object] count:whole"),
    "Status": _object(
        """
        status:text memory_count:whole turn_count:whole deleted_count:whole
        without_vector_count:whole namespace:text namespaces_read:texts embedder:text
        store_model:text? schema_version:whole? size_bytes:whole?
        """,
        """
        store:text collection:text unfinished_erasure:flag log_bytes:whole missing_commits:whole
        read_only:flag compact:flag chromadb_host:text pending_count:whole error:text
        """,
    ),
    "Stats": _object(
        """
        since:time? noted_since:time? namespaces:texts operations:[Operation] agents:counts
        projects:counts by_namespace:counts per_day:counts memory_count:whole
        never_used_count:whole most_used:[Used] never_used:[Used] tokens:whole
        """
    ),
    "Operation": _object(
        """
        name:text total:whole failed:whole p50_ms:number? p95_ms:number? results:whole
        written:whole tokens:whole
        """
    ),
    "Used": _object("id:text content:text access_count:whole"),
    "Log": _object("results:[object] count:whole"),
    "LogChecks": _object("verified:flag logs:[object]"),
    "BackedUp": _object(
        """
        backup:text verified:flag kind:text records:whole size_bytes:whole sha256:text
        store:text removed:texts queued:whole
        """
    ),
    "Imported": _object(
        """
        imported:whole known:whole conflict_count:whole conflicts:[object] without_vector:whole
        dry_run:flag trusted:flag pending:whole
        """,
        """
        redacted:counts note:text still_pending:whole proposals_left_out:whole import:text
        hint:text
        """,
    ),
    "Ok": _object("ok:flag"),
    "Problem": _object(
        "type:text title:text status:whole detail:text error:text",
        "kind:text exit_code:whole matches:texts",
    ),
}


_STREAMS = {"Lines": "application/x-ndjson", "Events": "text/event-stream"}
_ERRORS = {
    "400": "A value is invalid.",
    "401": "The token is missing or unknown.",
    "403": "The token lacks the right to do this in this namespace.",
    "404": "Not found.",
    "409": "The request conflicts with the stored data.",
    "429": "Too many requests.",
    "503": "The store or the server is temporarily unable to do this.",
    "507": "The disk is full.",
}
_BODY_ERRORS = {"413": "The body is too large.", "415": "The body is not JSON in UTF-8."}
_HEADER_ERRORS = {
    "Idempotency-Key": {"422": "The key was used for a different request."},
    "If-Match": {"412": "The memory has another version."},
}
_HEADERS = {
    "Idempotency-Key": "A retry with the same key gets the same answer and is not applied again.",
    "If-Match": "Change the memory only if this is still its ETag.",
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Memories",
            "version": __version__,
            "description": (
                "Persistent memory for agents: the same verbs and JSON as the memory command."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "memory tokens create"}
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    words = re.findall(r"\w+", route.path.replace("-", "_"))
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": route.summary,
        "description": f"Scope: {route.scope}.",
        "parameters": parameters,
        "responses": {str(status): _answer(route.schema) for status in route.statuses},
    }
    fields = dict(route.query)
    if route.scope not in ("signed", "store"):
        fields |= SPACE
    parameters += [_parameter(name, field) for name, field in fields.items()]
    headers = ["Idempotency-Key"] if route.repeatable else []
    if route.versioned:
        headers.append("If-Match")
    parameters += map(_header, headers)
    errors = _ERRORS if route.method == "GET" else _ERRORS | _BODY_ERRORS
    for header in headers:
        errors = errors | _HEADER_ERRORS[header]
    if route.body is not None:
        content = {"application/json": {"schema": _members(route.body)}}
        is_required = any(field.required for field in route.body.values())
        operation["requestBody"] = {"required": is_required, "content": content}
    elif route.streams and route.method == "POST":
        content = {"application/x-ndjson": {"schema": {"type": "string"}}}
        operation["requestBody"] = {"required": True, "content": content}
    for status, description in sorted(errors.items()):
        problem = {"application/problem+json": {"schema": _type("Problem")}}
        if status in operation["responses"]:
            operation["responses"][status]["content"] |= problem
        else:
            operation["responses"][status] = {"description": description, "content": problem}
    return operation


def _answer(schema: str) -> dict[str, Any]:
    if schema in _STREAMS:
        return {
            "description": schema,
            "content": {_STREAMS[schema]: {"schema": {"type": "string"}}},
        }
    return {"description": schema, "content": {"application/json": {"schema": _type(schema)}}}


def _parameter(name: str, field: Input) -> dict[str, Any]:
    schema = _type("texts") if field.kind == "tags" else _schema(field)
    return {
        "name": name,
        "in": "query",
        "required": field.required,
        "description": field.about,
        "schema": schema,
    }


def _header(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": _HEADERS[name],
        "schema": _type("text"),
    }


def _members(fields: Mapping[str, Input]) -> dict[str, Any]:
    required = [name for name, field in fields.items() if field.required]
    members = {
        name: _schema(field) | {"description": field.about} for name, field in fields.items()
    }
    return {
        "type": "object",
        "properties": members,
        "required": required,
        "additionalProperties": False,
    }


def _schema(field: Input) -> dict[str, Any]:
    schema = dict(_type(field.kind))
    if field.choices:
        schema["enum"] = list(field.choices)
    if field.of is not None:
        schema["items"] = _members(field.of)
    return schema
