"""Routes that find memories: search and list, keys, duplicates, ids and tags."""

from typing import Any

from memories.answers import shapes
from memories.errors import InvalidInput
from memories.identity.place import find_project
from memories.models import Memory
from memories.search.filters import FILTERS
from memories.server.api.routes import Answer, Call, Field, Fields, read_route

_KINDS = {"time": "text", "share": "number"}  # other kinds of filters have the same name here


FILTERED: Fields = {
    row.public_name: Field(_KINDS.get(row.kind, row.kind), row.meaning, choices=row.choices)
    for row in FILTERS.values()
}
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
        choices=("created", "updated", "reinforced", "confidence", "accesses", "version", "key"),
    ),
    "reverse": Field("flag", "Reverse the order of the list."),
    **{row.public_name: FILTERED[row.public_name] for row in FILTERS.values() if row.lists},
    **CURSOR,
}


def find(call: Call) -> Any:
    """Search memories and turns with q, or list memories."""
    arguments = dict(call.arguments)
    if "q" not in arguments:
        _only(arguments, LISTING, "a list; add q to search")
        return shapes.page(call.memories.list(**_named(arguments)))
    _only(arguments, SEARCH, "a search; leave out q to list")
    query, explain = arguments.pop("q"), arguments.pop("explain", False)
    return shapes.search_result(call.memories.explain(query, **_named(arguments)), explain=explain)


def _only(arguments: dict[str, Any], known: Fields, what: str) -> None:
    for name in arguments:
        if name not in known:
            raise InvalidInput(f"{name} can't be used with {what}")


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a query's values under the names that the methods of `Memories` use."""
    aliases = {row.alias: name for name, row in FILTERS.items() if row.alias}
    if "project" in arguments:
        arguments["project"] = find_project(arguments["project"])
    return {aliases.get(name, name): value for name, value in arguments.items()}


def memory_answer(memory: Memory) -> Answer:
    """Return a memory, with its version as the ETag."""
    return Answer(shapes.memory(memory), headers={"etag": f'"{memory.version}"'})


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
)
