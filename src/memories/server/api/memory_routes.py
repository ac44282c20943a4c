"""Routes that find memories, and routes that store, read, change and erase one or many of them."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from memories.answers import fields, shapes
from memories.answers.compare import compare_versions
from memories.core.ids import same_id
from memories.errors import Conflict, InvalidInput, RequestError
from memories.identity.place import find_project
from memories.models import CHANGEABLE, LIST_ORDERS, Change, Draft, Forgotten, Memory
from memories.search.filters import FILTERS, Parameter
from memories.server.api.problems import Refused
from memories.server.api.routes import (
    Answer,
    Call,
    Field,
    Fields,
    Later,
    Route,
    read_route,
    write_route,
)
from memories.stores.protocol import add_count_to_errors
from memories.write.create import BATCH, BATCH_COMPARED, Created

_KINDS = {"time": "text", "share": "number"}  # kinds not named here keep their names


def _make_fields(rows: Mapping[str, Parameter]) -> Fields:
    return {
        row.public_name: Field(_KINDS.get(row.kind, row.kind), row.meaning, choices=row.choices)
        for row in rows.values()
    }


FILTERED = _make_fields(FILTERS)
LIMIT: Fields = {"limit": FILTERED["limit"]}
CURSOR: Fields = {"cursor": Field("text", "Continue after a page; use its next_cursor.")}
AS_OF: Fields = {"as_of": FILTERED["as_of"]}
SEARCH: Fields = {
    "q": Field(
        "text", "The question: search, best match first. Without it, list memories, newest first."
    ),
    **FILTERED,
    "explain": Field("flag", "Also return every candidate, its scores, and why it was left out."),
}
LISTING: Fields = {
    "deleted": Field("flag", "List deleted memories instead."),
    "sort": Field(
        "text",
        "How the list is sorted.",
        choices=LIST_ORDERS,
    ),
    "reverse": Field("flag", "Reverse the order of the list."),
    **{row.public_name: FILTERED[row.public_name] for row in FILTERS.values() if row.in_lists},
    **CURSOR,
}


def find(call: Call) -> Any:
    """Search memories and turns if q is given, else list memories."""
    arguments = dict(call.arguments)
    if "q" not in arguments:
        _only(arguments, LISTING, "a list; add q to search")
        return shapes.page(call.memories.list(**_to_method_names(arguments)))
    _only(arguments, SEARCH, "a search; leave out q to list")
    query, explain = arguments.pop("q"), arguments.pop("explain", False)
    return shapes.search_result(
        call.memories.explain(query, **_to_method_names(arguments)), explain=explain
    )


def _only(arguments: dict[str, Any], known: Fields, what: str) -> None:
    for name in arguments:
        if name not in known:
            raise InvalidInput(f"{name} can't be used with {what}")


def _to_method_names(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a query's values under the names that the methods of `Memories` use."""
    aliases = {row.alias: name for name, row in FILTERS.items() if row.alias}
    if "project" in arguments:
        arguments["project"] = find_project(arguments["project"])
    return {aliases.get(name, name): value for name, value in arguments.items()}


def memory_answer(
    memory: Memory, before: Memory | None = None, changes: Mapping[str, Any] | None = None
) -> Answer:
    """Return a memory, with its version as the ETag.

    If its state before a change is given, the answer may include a hint about the change.
    """
    shape = shapes.memory(memory)
    if before is not None:
        shape = shapes.change_result(before, memory, changes or {})
    return Answer(shape, headers={"etag": f'"{memory.version}"'})


def by_key(call: Call) -> Answer:
    """Return the memory with this key."""
    arguments = dict(call.arguments)
    as_of = arguments.pop("as_of", None)
    memory_id = call.memories.id_of_key(**arguments)
    return memory_answer(call.memories.get(memory_id, as_of=as_of))


def duplicates(call: Call) -> Any:
    """Find memories that repeat older ones."""
    groups = call.memories.duplicates(**call.arguments)
    results = [
        shapes.memory(group.memory) | {"duplicates": shapes.similar(group.of)} for group in groups
    ]
    return {"results": results, "count": len(results)}


def ids(call: Call) -> Any:
    """Return the memory ids that start with a prefix."""
    results = call.memories.ids(call.arguments["prefix"], limit=call.arguments.get("limit"))
    return {"results": results, "count": len(results)}


def short_ids(call: Call) -> Any:
    """Return the shortest unique prefix of each memory id."""
    return {"short_ids": call.memories.short_ids(call.arguments["id"])}


def tags(call: Call) -> Any:
    """List tag keys and the number of memories with each."""
    return shapes.tags(None, call.memories.tags(**call.arguments))


def tag_values(call: Call) -> Any:
    """List the values of a tag."""
    arguments = dict(call.arguments)
    key = arguments.pop("key")
    return shapes.tags(key, call.memories.tags(key, **arguments))


_COUNTED: Fields = {"written_by": FILTERED["written_by"], "trust": FILTERED["trust"], **AS_OF}


MAX_BATCH = 1_000
DRAFT: Fields = {
    "content": Field("text", "The statement.", required=True),
    "tags": Field(
        "tags",
        "Arbitrary pairs; agent, personality, project, type and global have a special meaning.",
    ),
    **_make_fields(fields.DRAFT),
    "pending": Field("flag", "Hold the memory for review."),
    "anchors": Field(
        "texts", "What makes the memory true: path, FILE::SYMBOL, FILE::LITERAL, URL …"
    ),
    "valid_until": Field("text", "When the memory stops being true; a date means that day's end."),
    "recheck": Field("text", "How long until the memory should be confirmed again, such as 90d."),
}
WRITING: Fields = {
    "force": Field("flag", "Store without comparing with existing memories."),
    "redact": Field("flag", "Redact secrets; true by default."),
}
CHANGE: Fields = {
    "content": Field("text", "The new text; by default, the text stays the same."),
    "tags": Field("tags", "Tags to add or change."),
    "remove_tags": Field("texts", "Tag keys to remove."),
    **{name: DRAFT[name] for name in CHANGEABLE},
    "not_corrects": Field(
        "text", "The id of a memory that this one does not correct after all; both stay current."
    ),
    "anchors": Field("texts", "New anchors, in place of the old ones; an empty list removes them."),
    "valid_until": Field("text", "When the memory stops being true; empty for never."),
    "recheck": Field(
        "text", "How long until the memory should be confirmed again; empty for never."
    ),
    "redact": WRITING["redact"],
}


def create(call: Call) -> Answer:
    """Store a memory, unless it is a duplicate."""
    draft, force, redact = _read_draft(call)
    [created] = _store(call, [draft], force, redact)
    return _created_answer(created)


def submit(call: Call) -> Later:
    """Store a memory without blocking a thread until it is stored."""
    draft, force, redact = _read_draft(call)
    assert call.server.group_commit is not None
    future = call.server.group_commit.submit(call.memories, draft, force, redact)
    return Later(future, lambda results: _created_answer(results[0]))


def _read_draft(call: Call) -> tuple[Draft, bool, bool]:
    """Return the draft, whether to store it even if it is a duplicate, and whether to redact it."""
    arguments = dict(call.arguments)
    force, redact = arguments.pop("force", False), arguments.pop("redact", True)
    return Draft(**arguments), force, redact


def _created_answer(created: Created) -> Answer:
    if created.stored:
        return Answer(shapes.create_result(created), 201)
    return Answer(shapes.create_result(created), 409 if created.memory is None else 200)


def _store(
    call: Call, drafts: Sequence[Draft], force: bool, redact: bool, first: int = 0
) -> Sequence[Created]:
    """Store drafts. When a request with an idempotency key is repeated, the ids stay the same."""
    if call.key is not None and call.begun_at is not None:
        seed = f"{call.who.id}/{call.key}"
        ids = (same_id(call.begun_at, seed, number) for number in range(first, first + len(drafts)))
        drafts = [
            replace(draft, id=id_, fresh=not call.again)
            for draft, id_ in zip(drafts, ids, strict=True)
        ]
    if call.server.group_commit is None:
        return call.memories.create_many(drafts, force=force, redact=redact)
    return call.server.group_commit.create(call.memories, drafts, force, redact)


def get(call: Call) -> Answer:
    """Return one memory; its ETag is its version."""
    return memory_answer(call.memories.get(call.id, as_of=call.arguments.get("as_of")))


def create_many(call: Call) -> Answer:
    """Store many memories at once.

    Several hundred share a transaction; a refused memory does not affect the others.
    """
    drafts = [Draft(**arguments) for arguments in call.arguments["memories"]]
    if not 1 <= len(drafts) <= MAX_BATCH:
        raise InvalidInput(f"memories must contain 1 to {MAX_BATCH} objects, not {len(drafts)}")
    force, redact = call.arguments.get("force", False), call.arguments.get("redact", True)
    results: list[dict[str, Any]] = []
    size = BATCH if force else BATCH_COMPARED
    with add_count_to_errors(lambda: len(results), "processed"):
        for first in range(0, len(drafts), size):
            results += _store_batch(call, drafts[first : first + size], force, redact, first)
    return Answer({"results": results, "count": len(results)})


def _store_batch(
    call: Call, drafts: Sequence[Draft], force: bool, redact: bool, first: int
) -> list[dict[str, Any]]:
    """Store drafts in one transaction, or individually if that fails; return each result."""
    try:
        return [
            shapes.create_result(created) for created in _store(call, drafts, force, redact, first)
        ]
    except RequestError as exc:  # no draft has been stored
        if len(drafts) == 1:
            return [{"id": None, "stored": False, "error": str(exc)}]
    results = []
    for number, draft in enumerate(drafts, first):
        results += _store_batch(call, [draft], force, redact, number)
    return results


def _allowed_versions(call: Call) -> list[int] | None:
    """Return the versions that If-Match allows; None for any.

    Raises:
        Refused: 412, the header contains no version.
    """
    if_match = call.request.headers.get("if-match")
    if if_match is None or if_match.strip() == "*":
        return None
    versions = [int(number) for number in re.findall(r'(?<![/"\w])"(\d{1,9})"', if_match)]
    if not versions:
        raise Refused(412, 'If-Match must be the memory\'s ETag, such as "3"')
    return versions


@contextlib.contextmanager
def _if_match(call: Call) -> Iterator[None]:
    """Check that If-Match allows the current version. Other writers wait until the context ends."""
    allowed = _allowed_versions(call)
    if allowed is None:
        yield
        return
    with call.memories.transaction():
        _refuse_other_version(call, allowed)
        yield


def _refuse_other_version(call: Call, allowed: Sequence[int]) -> None:
    """Refuse a change unless If-Match allows the memory's current version.

    Raises:
        Refused: 412.
    """
    version = call.memories.history(call.id).versions[-1].version
    if version not in allowed:
        raise Refused(
            412, f"If-Match is not the memory's version, which is {version}; read the memory again"
        )


def _find_logged(call: Call, action: str) -> Change | None:
    """Return the change that an earlier attempt at this request logged before it was cut short."""
    if not call.again:
        return None
    for entry in call.own.log(call.id, since=call.begun_at):
        for change in entry.changes:
            if change.action == action and (change.id or "").startswith(call.id):
                return change
    return None


def _is_updated(call: Call) -> bool:
    """Return whether an earlier attempt at this request added its version. Other requests may have
    added later versions.
    """
    arguments, begun_at = call.arguments, call.begun_at
    if not call.again or begun_at is None:
        return False
    if not arguments.keys() & {"content", "tags", "remove_tags"}:
        return False
    history = call.memories.history(arguments["id"])
    if history.namespace != call.memories.namespace:
        return False
    removed_tags = set(arguments.get("remove_tags", ()))
    for version in history.versions:
        if version.operation != "update" or version.created_at < begun_at:
            continue
        has_content = arguments.get("content", version.content) == version.content
        has_tags = arguments.get("tags", {}).items() <= version.tags.items()
        if has_content and has_tags and not version.tags.keys() & removed_tags:
            return True
    return False


def _read_before(call: Call) -> Memory | None:
    """Return a memory before it changes; None if it can't be read. The change reports the error."""
    with contextlib.suppress(RequestError):
        return call.memories.truth.peek(call.id)
    return None


def update(call: Call) -> Answer:
    """Add a version with new text or tags; with If-Match, only to the version that it names."""
    if _is_updated(call):
        return memory_answer(call.own.get(call.id))
    arguments = dict(call.arguments)
    allowed = _allowed_versions(call)
    several = allowed is not None and len(allowed) > 1
    if allowed is not None and not several:
        arguments["if_version"] = allowed[0]
    try:
        with _if_match(call) if several else contextlib.nullcontext():
            before = _read_before(call)
            memory_id, content = arguments.pop("id"), arguments.pop("content", None)
            memory = call.memories.update(memory_id, content, **arguments)
            return memory_answer(memory, before, arguments)
    except Conflict:
        if allowed is not None:
            _refuse_other_version(call, allowed)
        raise


def _change_once(call: Call, action: str, change: Callable[[], Memory]) -> Memory:
    """Make a change that If-Match allows, unless an earlier attempt at this request made it."""
    if _find_logged(call, action):
        return call.own.get(call.id)
    with _if_match(call):
        return change()


def delete(call: Call) -> Any:
    """Delete a memory; restore undoes this."""
    if change := _find_logged(call, "delete"):
        return {"id": change.id, "deleted": True}
    with _if_match(call):
        return shapes.delete_result(call.memories, call.memories.delete(call.id))


def restore(call: Call) -> Answer:
    """Restore a deleted or superseded memory, or an earlier version."""
    restore = partial(call.memories.restore, call.id, version=call.arguments.get("version"))
    return _restate(call, "restore", restore)


def reinforce(call: Call) -> Any:
    """Restart a reinforceable memory's decay."""
    reinforce = partial(call.memories.reinforce, call.id)
    return shapes.reinforce_result(_change_once(call, "reinforce", reinforce))


def confirm(call: Call) -> Answer:
    """Confirm that a memory is still true by adding a version with the same text."""
    arguments = {name: value for name, value in call.arguments.items() if name != "id"}
    confirm = partial(call.memories.truth.confirm, call.id, **arguments)
    return _restate(call, "confirm", confirm)


def _restate(call: Call, action: str, change: Callable[[], Memory]) -> Answer:
    """Make a change as `_change_once` does; the answer includes a hint about changed links."""
    before = _read_before(call)
    memory = _change_once(call, action, change)
    # A rejected memory that is restored awaits review again, without a new version.
    has_changed = before is None or before.version != memory.version or memory.pending
    return memory_answer(memory, before if has_changed else None)


def pin(call: Call) -> Answer:
    """Pin a memory to its namespace's scratchpad."""
    return memory_answer(call.memories.pin(call.id))


def unpin(call: Call) -> Answer:
    """Unpin a memory from the scratchpad."""
    return memory_answer(call.memories.unpin(call.id))


def forget(call: Call) -> Any:
    """Permanently erase a memory with all its versions."""
    try:
        forgotten = call.memories.forget(call.id)
    except RequestError:  # an erasure is logged before it happens, so the log alone proves nothing
        change = _find_logged(call, "forget")
        if change is None or change.id is None:
            raise
        forgotten = Forgotten(change.id, change.last - change.first + 1, ())
    return shapes.forget_result(call.memories, forgotten)


def get_history(call: Call) -> Any:
    """Return every version of a memory, oldest first."""
    history = call.memories.history(call.id, as_of=call.arguments.get("as_of"))
    shape = shapes.history(history)
    if call.arguments.get("diff"):
        diffs = compare_versions([version.content for version in history.versions])
        for version, parts in zip(shape["versions"], diffs, strict=True):
            version["diff"] = [part._asdict() for part in parts]
    return shape


_ID = "/api/memories/{id}"


def _version_route(
    method: str, end: str, handle: Callable[[Call], Any], schema: str, body: Fields | None
) -> Route:
    """Return a route that changes one memory and takes If-Match."""
    return write_route(method, f"{_ID}{end}", handle, schema, body)._replace(versioned=True)


ROUTES = (
    read_route("/api/memories", find, "Results", SEARCH | LISTING, kind="search"),
    read_route(
        "/api/keys/{key}",
        by_key,
        "Memory",
        {"project": Field("text", "The key's project; each project has its own keys."), **AS_OF},
    ),
    read_route(
        "/api/duplicates",
        duplicates,
        "Duplicates",
        {"where": FILTERED["where"], **LIMIT},
        kind="search",
    ),
    read_route(
        "/api/ids",
        ids,
        "Ids",
        {"prefix": Field("text", "The prefix, at least 8 characters.", required=True), **LIMIT},
    ),
    read_route(
        "/api/short-ids",
        short_ids,
        "ShortIds",
        {"id": Field("texts", "An id; may be repeated.", required=True)},
    ),
    read_route("/api/tags", tags, "Tags", _COUNTED),
    read_route("/api/tags/{key}", tag_values, "Tags", _COUNTED),
    write_route("POST", "/api/memories", create, "Created", DRAFT | WRITING)._replace(
        statuses=(201, 200, 409), submit=submit
    ),
    write_route(
        "POST",
        "/api/memories/batch",
        create_many,
        "CreatedMany",
        {"memories": Field("objects", "The memories to store.", required=True, of=DRAFT)} | WRITING,
    ),
    read_route(_ID, get, "Memory", AS_OF),
    _version_route("PATCH", "", update, "Changed", CHANGE),
    _version_route("DELETE", "", delete, "Deleted", None),
    _version_route(
        "POST",
        "/restore",
        restore,
        "Changed",
        {"version": Field("whole", "The version to restore.")},
    ),
    _version_route("POST", "/reinforce", reinforce, "Reinforced", {}),
    _version_route(
        "POST",
        "/confirm",
        confirm,
        "Changed",
        {name: CHANGE[name] for name in ("anchors", "valid_until")},
    ),
    write_route("POST", f"{_ID}/pin", pin, "Memory", {}),
    write_route("POST", f"{_ID}/unpin", unpin, "Memory", {}),
    write_route("POST", f"{_ID}/forget", forget, "Forgotten", {}, scope="admin"),
    read_route(
        f"{_ID}/history",
        get_history,
        "History",
        {"diff": Field("flag", "Include the changes in each version, word by word."), **AS_OF},
    ),
)
