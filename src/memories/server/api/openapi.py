"""The table of routes as an OpenAPI 3.1 document; there is no other list of routes."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from memories import __version__
from memories.server.api.params import Field
from memories.server.api.routes import SPACE, Route
from memories.server.api.schemas import SCHEMAS

_KINDS: Mapping[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    "texts": {"type": "array", "items": {"type": "string"}},
    "objects": {"type": "array"},
}
_STREAMS = {"Lines": "application/x-ndjson", "Events": "text/event-stream"}
_ERRORS = {"400": "A value is not acceptable.", "401": "No token, or one that is not known.",
           "403": "The token may not do this there.", "404": "There is no such thing.",
           "409": "It goes against what is there.", "429": "Too many requests.",
           "503": "The store, or the server, can't do it now.", "507": "The disk is full."}  # fmt: skip
_HEADERS = {
    "Idempotency-Key": "A retry with the same key is not done twice: it gets the same answer.",
    "If-Match": "Only if the memory has this ETag still.",
}
_CHANGED = ("PATCH /api/memories/{id}", "DELETE /api/memories/{id}", "POST /api/memories/{id}/restore",
            "POST /api/memories/{id}/reinforce")  # fmt: skip


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of these routes."""
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Memories",
            "version": __version__,
            "description": "Persistent memory for agents: the verbs and the JSON of the command `memory`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "memory tokens create"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    named = re.findall(r"{(\w+)}", route.path)
    found: dict[str, Any] = {
        "operationId": "_".join(re.findall(r"\w+", f"{route.method.lower()} {route.path.replace('-', '_')}")),
        "summary": route.summary,
        "description": f"Scope: {route.scope}.",
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named],
        "responses": {str(status): _answer(schema) for status, schema in route.answers.items()},
    }
    space = {} if route.scope in ("open", "signed", "store") else SPACE
    found["parameters"] += [_parameter(name, field) for name, field in {**route.query, **space}.items()]
    found["parameters"] += [_header(name) for name in _HEADERS if _takes(route, name)]
    if route.scope == "open":
        found["security"] = []
    if route.body is not None:
        content = {"application/json": {"schema": _members(route.body)}}
        found["requestBody"] = {"required": any(each.required for each in route.body.values()), "content": content}
    elif route.streams and route.method == "POST":
        found["requestBody"] = {"required": True, "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
    for status, said in _ERRORS.items():
        problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        if status in found["responses"]:
            found["responses"][status]["content"] |= problem
        else:
            found["responses"][status] = {"description": said, "content": problem}
    return found


def _takes(route: Route, header: str) -> bool:
    if header == "If-Match":
        return f"{route.method} {route.path}" in _CHANGED
    return route.repeatable


def _answer(schema: str) -> dict[str, Any]:
    if schema in _STREAMS:
        return {"description": schema, "content": {_STREAMS[schema]: {"schema": {"type": "string"}}}}
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": schema, "content": content}


def _parameter(name: str, field: Field) -> dict[str, Any]:
    schema = _KINDS["texts"] if field.kind == "tags" else _schema(field)
    return {"name": name, "in": "query", "required": field.required, "description": field.about, "schema": schema}


def _header(name: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": _HEADERS[name], "schema": _KINDS["text"]}


def _members(fields: Mapping[str, Field]) -> dict[str, Any]:
    required = [name for name, field in fields.items() if field.required]
    members = {name: _schema(field) | {"description": field.about} for name, field in fields.items()}
    return {"type": "object", "properties": members, "required": required, "additionalProperties": False}


def _schema(field: Field) -> dict[str, Any]:
    schema = dict(_KINDS[field.kind])
    if field.choices:
        schema["enum"] = list(field.choices)
    if field.of is not None:
        schema["items"] = _members(field.of)
    return schema
