"""Routes that concern several memories: tags, changes by an expression, roll-back, review."""

from collections.abc import Callable
from typing import Any

from memories.answers import shapes
from memories.core.times import to_iso
from memories.errors import InvalidInput
from memories.guard.validate import MAX_LIMIT
from memories.server.api.params import Field, Fields
from memories.server.api.routes import Call, Route
from memories.server.api.verbs import AS_OF, CURSOR, FILTERED, LIMIT
from memories.write.many import Affected

_SHOWN = 10
_WHERE = Field("text", "An expression of the filter language.", required=True)
_MANY: Fields = {
    "dry_run": Field("flag", "Change nothing, only tell what would be done."),
    "show": Field("whole", f"How many steps are told, up to {MAX_LIMIT}; 10 by default."),
}
_RULES: Fields = {
    "trust": FILTERED["trust"],
    "written_by": FILTERED["written_by"],
    "since": FILTERED["since"],
    "until": FILTERED["until"],
    "import_id": Field("text", "Only what this import brought."),
    "match": Field("text", "Only what has this text."),
    "suspicious": Field("flag", "Only what is marked as suspicious, or only what is not."),
}
_DECIDE: Fields = {
    "ids": Field("texts", "The memories, each by its id."),
    "all": Field("flag", "Instead of ids: all that the filters choose."),
    "dry_run": _MANY["dry_run"],
}


def _told(call: Call, run: Callable[..., Affected], *names: str) -> Any:
    given = {name: call.given[name] for name in names if name in call.given}
    show = call.given.get("show", _SHOWN)
    if not 0 <= show <= MAX_LIMIT:
        raise InvalidInput(f"show must be a whole number from 0 to {MAX_LIMIT}")
    done = run(**given, dry_run=call.given.get("dry_run", False))
    answer = shapes.affected(done, None, show)
    if done.undo_to is not None:
        answer["undo"] = {"to": to_iso(done.undo_to), "where": done.undo_where}
    return answer


def tags(call: Call) -> Any:
    """Return tag keys with their counts."""
    return shapes.tags(None, call.memories.tags(**call.given))


def tag_values(call: Call) -> Any:
    """Return the values of a tag with their counts."""
    given = dict(call.given)
    key = given.pop("key")
    return shapes.tags(key, call.memories.tags(key, **given))


def retag(call: Call) -> Any:
    """Set, remove or rename tags."""
    where = call.given.get("where")
    return _told(call, lambda **given: call.memories.tag_where(where, **given), "tags", "remove_tags", "rename_tags")


def delete(call: Call) -> Any:
    """Delete what meets an expression."""
    return _told(call, call.memories.delete_where, "where")


def forget(call: Call) -> Any:
    """Erase what meets an expression."""
    call.given["scope"] = call.given.pop("in", "memories")
    return _told(call, call.memories.forget_where, "where", "scope")


def rollback(call: Call) -> Any:
    """Put memories back as they were."""
    return _told(call, call.memories.rollback, "to", "where")


def waiting(call: Call) -> Any:
    """List what waits for review."""
    limit = call.given.pop("limit", call.memories.config.default_limit)
    return shapes.page(call.memories.review.page(limit=limit, **call.given))


def _chosen(call: Call) -> tuple[list[str], list[str]]:
    """Return the memories that are named, and those that filters choose."""
    named = call.given.get("ids", [])
    which = {name: call.given[name] for name in _RULES if name in call.given}
    if bool(named) == bool(call.given.get("all", False) or which):
        raise InvalidInput("give ids, or else all or filters")
    if named:
        return named, []
    return [], call.memories.review.select(**which)


def accept(call: Call) -> Any:
    """Accept what waits."""
    named, batch = _chosen(call)
    force, dry_run = call.given.get("force", False), call.given.get("dry_run", False)
    content = call.given.get("content")
    if content is not None and len(named) != 1:
        raise InvalidInput("content goes with the id of one memory")
    review = call.memories.review
    done = review.accept(named, content=content, force=force, dry_run=dry_run)
    if batch:
        done += review.accept(batch, suspicious=call.given.get("suspicious", False), force=force, dry_run=dry_run)
    return shapes.accepted(done, dry_run=dry_run)


def reject(call: Call) -> Any:
    """Delete what waits."""
    named, batch = _chosen(call)
    dry_run = call.given.get("dry_run", False)
    return shapes.rejected(call.memories.review.reject([*named, *batch], dry_run=dry_run), dry_run=dry_run)


_COUNTED: Fields = {"written_by": FILTERED["written_by"], "trust": FILTERED["trust"], **AS_OF}
ROUTES = (
    Route("GET", "/api/tags", tags, "read", "List tags and how many memories have each.", {200: "Tags"}, _COUNTED),
    Route("GET", "/api/tags/{key}", tag_values, "read", "List the values of a tag.", {200: "Tags"}, _COUNTED),
    Route("POST", "/api/tags", retag, "write", "Set, remove, rename or merge tags of many memories.",
          {200: "Affected"},
          body={
              "where": Field("text", "Which memories; all of the namespace by default."),
              "tags": Field("tags", "Tags to set."),
              "remove_tags": Field("texts", "Keys of tags to remove."),
              "rename_tags": Field("tags", "Keys by their new keys, or key=value by key=value."),
              **_MANY,
          }, kind="write"),
    Route("POST", "/api/delete", delete, "write", "Delete all memories that meet an expression.",
          {200: "Affected"}, body={"where": _WHERE, **_MANY}, kind="write"),
    Route("POST", "/api/forget", forget, "admin", "Erase all memories or turns that meet an expression, for good.",
          {200: "Affected"},
          body={"where": _WHERE, "in": Field("text", "What is erased.", choices=("memories", "history", "all")),
                **_MANY}, kind="write"),
    Route("POST", "/api/rollback", rollback, "write", "Put memories back as they were at a time.", {200: "Affected"},
          body={"to": Field("text", "The time; a date means its beginning.", required=True),
                "where": Field("text", "Only memories that meet this expression."), **_MANY}, kind="write"),
    Route("GET", "/api/review", waiting, "read", "List what waits for review.", {200: "Page"},
          _RULES | LIMIT | CURSOR),
    Route("POST", "/api/review/accept", accept, "admin", "Accept memories that wait, so that they are found.",
          {200: "Accepted"},
          body=_DECIDE | _RULES | {
              "content": Field("text", "Accept it with this text."),
              "force": Field("flag", "Without comparing with what is there."),
          }, kind="write"),
    Route("POST", "/api/review/reject", reject, "admin", "Delete memories that wait.", {200: "Rejected"},
          body=_DECIDE | _RULES, kind="write"),
)  # fmt: skip
