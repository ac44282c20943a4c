"""Routes about memories: list and search, create, get, change."""

from typing import Any

from memories.errors import InvalidInput
from memories.models import Draft
from memories.skins import shapes
from memories.skins.server.params import Field, Fields
from memories.skins.server.routes import Answer, Call, Route

LIMIT: Fields = {"limit": Field("whole", "How many at most, up to 1,000.")}
CURSOR: Fields = {"cursor": Field("text", "Continue after a page: its next_cursor.")}
FILTERS: Fields = {
    "tag": Field("tags", "KEY=VALUE; may be given several times, and all must match."),
    "written_by": Field("text", "Only what this client or user wrote."),
    "trust": Field("text", "Only what has this trust.", choices=("user", "agent", "captured", "imported")),
    "since": Field("text", "Only what was last written at this time or later, such as 2026-05-01 or 7d."),
    "until": Field("text", "Only what was last written at this time or earlier."),
    "as_of": Field("text", "What was current at this time."),
    "pending": Field("flag", "What waits for review instead."),
    "where": Field("text", "An expression of the filter language, such as: type = fact and not by = ann."),
    "project": Field("text", "Only this project, and what is valid in every one."),
}
SEARCH: Fields = {
    "q": Field("text", "The question: search, best match first. Without it, list, newest first."),
    "in": Field("text", "What is searched.", choices=("memories", "history", "all")),
    "conversation": Field("text", "Search only turns of this conversation."),
    "role": Field("text", "Search only turns of this role.", choices=("user", "assistant", "system", "tool")),
    "speaker": Field("text", "Search only turns of this speaker."),
    "now": Field("text", 'Reference time for words like "yesterday".'),
    "min_confidence": Field("number", "Hide hits with lower confidence, 0 to 1."),
    "min_similarity": Field("number", "Hide hits that are less similar, 0 to 1."),
    "include_corrected": Field("flag", "Show what another hit corrects; true by default."),
    "explain": Field("flag", "Also every candidate, its numbers, and why it was left out."),
}
LISTING: Fields = {
    "deleted": Field("flag", "List deleted memories instead."),
    "sort": Field(
        "text", "The order of a list.",
        choices=("created", "updated", "reinforced", "confidence", "accesses", "version", "key"),
    ),
    "reverse": Field("flag", "The other way round."),
}  # fmt: skip
DRAFT: Fields = {
    "content": Field("text", "The statement.", required=True),
    "tags": Field("tags", "Free pairs; agent, personality, project, type and global are known ones."),
    "decay": Field("text", "How its confidence ages.", choices=("stable", "contextual", "reinforceable")),
    "key": Field("text", "Stable key, such as user/editor; creating with one that exists adds a version."),
    "supersedes": Field("text", "Id of a memory that this one replaces."),
    "confidence": Field("number", "How sure the writer is, 0 to 1."),
    "source": Field("text", "Conversation, or turn of one, that it was made from."),
    "pending": Field("flag", "It waits for review."),
}
WRITING: Fields = {
    "force": Field("flag", "Store without comparing with what is there."),
    "redact": Field("flag", "Take out secrets; true by default."),
}


def find(call: Call) -> Any:
    """Search if there is a question, else list."""
    given = dict(call.given)
    given["tags"] = given.pop("tag", None)
    if "q" not in given:
        _only(given, LISTING | FILTERS | LIMIT | CURSOR, "a list; add q to search")
        return shapes.page(call.memories.list(**given))
    _only(given, SEARCH | FILTERS | LIMIT, "a search; leave out q to list")
    query, explain = given.pop("q"), given.pop("explain", False)
    given["scope"] = given.pop("in", "memories")
    return shapes.found(call.memories.explain(query, **given), explain=explain)


def _only(given: dict[str, Any], known: Fields, what: str) -> None:
    for name in given:
        if name not in known and name != "tags":
            raise InvalidInput(f"{name} does not go with {what}")


def create(call: Call) -> Answer:
    """Store a memory."""
    given = dict(call.given)
    force, redact = given.pop("force", False), given.pop("redact", True)
    [done] = call.server.create(call.memories, [Draft(**given)], force, redact)
    status = 201 if done.stored else 200 if done.memory is not None else 409
    return Answer(shapes.created(done), status)


def get(call: Call) -> Answer:
    """Return a memory, with its version as the ETag."""
    found = call.memories.get(call.given["id"])
    return Answer(shapes.memory(found), headers={"etag": f'"{found.version}"'})


ROUTES = (
    Route("GET", "/api/memories", find, "read", "Search memories and turns with q, or list memories.",
          {200: "Results"}, SEARCH | FILTERS | LISTING | LIMIT | CURSOR, kind="search"),
    Route("POST", "/api/memories", create, "write", "Store a memory, unless it is already there.",
          {201: "Created", 200: "Created", 409: "Created"}, body=DRAFT | WRITING, kind="write"),
    Route("GET", "/api/memories/{id}", get, "read", "Return one memory.", {200: "Memory"}),
)  # fmt: skip
