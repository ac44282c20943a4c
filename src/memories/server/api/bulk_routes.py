"""Routes that change many memories in one request: tags, deletion, erasure, rollback and review."""

import functools
from collections.abc import Callable
from typing import Any

from memories.answers import shapes
from memories.core.times import to_iso
from memories.errors import InvalidInput
from memories.guard.validate import MAX_LIMIT, canonical_namespace
from memories.search.filters import SCOPES
from memories.server.api.memory_routes import CURSOR, FILTERED, LIMIT
from memories.server.api.routes import Call, Field, Fields, Route, read_route, write_route
from memories.write.bulk import Affected

_DEFAULT_STEPS = 10
_WHERE = Field("text", "An expression of the filter language.", required=True)
_MANY: Fields = {
    "dry_run": Field("flag", "Change nothing; only report what would change."),
    "show": Field("whole", f"How many steps to report, up to {MAX_LIMIT}; 10 by default."),
}
_RULES: Fields = {
    "trust": FILTERED["trust"],
    "written_by": FILTERED["written_by"],
    "since": FILTERED["since"],
    "until": FILTERED["until"],
    "import_id": Field("text", "Only memories from this import."),
    "match": Field("text", "Only memories that contain all of these words."),
    "suspicious": Field(
        "flag", "Only memories that are marked as suspicious (true) or that are not (false)."
    ),
}
_DECIDE: Fields = {
    "ids": Field("texts", "The ids of the memories."),
    "all": Field("flag", "All memories that the filters select, instead of ids."),
    "dry_run": _MANY["dry_run"],
}


def _change_many(call: Call, run: Callable[..., Affected], *names: str) -> Any:
    arguments = {name: call.arguments[name] for name in names if name in call.arguments}
    show = call.arguments.get("show", _DEFAULT_STEPS)
    if not 0 <= show <= MAX_LIMIT:
        raise InvalidInput(f"show must be a whole number from 0 to {MAX_LIMIT}")
    affected = run(**arguments, dry_run=call.arguments.get("dry_run", False))
    shape = shapes.bulk_result(affected, None, show)
    if affected.undo_to is not None:
        shape["undo"] = {"to": to_iso(affected.undo_to), "where": affected.undo_where}
    return shape


def retag(call: Call) -> Any:
    """Set, remove, rename or merge tags of many memories."""
    where = call.arguments.get("where")
    tag = functools.partial(call.memories.tag_where, where)
    return _change_many(call, tag, "tags", "remove_tags", "rename_tags")


def delete_where(call: Call) -> Any:
    """Delete all memories that match an expression."""
    return _change_many(call, call.memories.delete_where, "where")


def forget_where(call: Call) -> Any:
    """Permanently erase all memories or turns that match an expression."""
    call.arguments["scope"] = call.arguments.pop("in", "memories")
    return _change_many(call, call.memories.forget_where, "where", "scope")


def rollback(call: Call) -> Any:
    """Restore memories to their state at an earlier time."""
    return _change_many(call, call.memories.rollback, "to", "where")


def move(call: Call) -> Any:
    """Move memories to another namespace: all of them, or none."""
    into = canonical_namespace(call.arguments["to"])
    call.who.require("admin", into)
    if not call.arguments["ids"]:
        raise InvalidInput("ids is empty; name at least one memory")
    return shapes.move_result(call.memories.move(call.arguments["ids"], into))


def waiting(call: Call) -> Any:
    """List the pending memories, each with the current memories that resemble it."""
    limit = call.arguments.pop("limit", call.memories.config.default_limit)
    review = call.memories.review
    page = review.page(limit=limit, **call.arguments)
    return shapes.review_page(page, review.compare(page.memories))


def _select(call: Call) -> tuple[list[str], list[str]]:
    """Return the ids that the request names, and the ids that its filters select."""
    named = call.arguments.get("ids", [])
    filters = {name: call.arguments[name] for name in _RULES if name in call.arguments}
    if bool(named) == bool(call.arguments.get("all", False) or filters):
        raise InvalidInput('give either ids or filters; "all" selects every memory')
    if named:
        return named, []
    return [], call.memories.review.select(**filters)


def accept(call: Call) -> Any:
    """Accept pending memories, so that searches find them."""
    named, selected = _select(call)
    force, dry_run = call.arguments.get("force", False), call.arguments.get("dry_run", False)
    content = call.arguments.get("content")
    if content is not None and len(named) != 1:
        raise InvalidInput('"content" requires exactly one id')
    review = call.memories.review
    reviewed = review.accept(named, content=content, force=force, dry_run=dry_run)
    if selected:
        suspicious = call.arguments.get("suspicious", False)
        reviewed += review.accept(selected, suspicious=suspicious, force=force, dry_run=dry_run)
    return shapes.accept_result(reviewed, dry_run=dry_run)


def reject(call: Call) -> Any:
    """Delete pending memories."""
    named, selected = _select(call)
    dry_run = call.arguments.get("dry_run", False)
    return shapes.reject_result(
        call.memories.review.reject([*named, *selected], dry_run=dry_run), dry_run=dry_run
    )


ROUTES = (
    write_route(
        "POST",
        "/api/tags",
        retag,
        "Affected",
        {
            "where": Field("text", "Only memories that match this expression; by default all."),
            "tags": Field("tags", "Tags to set."),
            "remove_tags": Field("texts", "Tag keys to remove."),
            "rename_tags": Field(
                "tags",
                "A map from old keys to new keys, or from old key=value pairs to new pairs.",
            ),
            **_MANY,
        },
    ),
    write_route("POST", "/api/delete", delete_where, "Affected", {"where": _WHERE, **_MANY}),
    write_route(
        "POST",
        "/api/forget",
        forget_where,
        "Affected",
        {
            "where": _WHERE,
            "in": Field("text", "What to erase.", choices=SCOPES),
            **_MANY,
        },
        scope="admin",
    ),
    Route(
        "POST",
        "/api/move",
        move,
        "Moved",
        {"to": Field("text", "The target namespace; admin is required there too.", required=True)},
        {"ids": Field("texts", "The ids of the memories.", required=True)},
        scope="admin",
        kind="write",
    ),
    write_route(
        "POST",
        "/api/rollback",
        rollback,
        "Affected",
        {
            "to": Field("text", "The time; a date means the start of that day.", required=True),
            "where": Field("text", "Only memories that match this expression."),
            **_MANY,
        },
    ),
    read_route("/api/review", waiting, "ReviewPage", _RULES | LIMIT | CURSOR),
    write_route(
        "POST",
        "/api/review/accept",
        accept,
        "Accepted",
        _DECIDE
        | _RULES
        | {
            "content": Field("text", "Accept the memory with this text."),
            "force": Field("flag", "Accept without comparing with existing memories."),
        },
        scope="admin",
    ),
    write_route("POST", "/api/review/reject", reject, "Rejected", _DECIDE | _RULES, scope="admin"),
)
