"""JSON schemas of answers, as OpenAPI shows them; the answers themselves are made in `shapes` and `transfers`."""

from typing import Any

from memories.answers.fields import ALWAYS, HIT, KIND, MEMORY, TURN, VERSION, Field

Schema = dict[str, Any]
_TYPES: dict[str, Schema] = {
    "text": {"type": "string"},
    "text?": {"type": ["string", "null"]},
    "whole": {"type": "integer"},
    "whole?": {"type": ["integer", "null"]},
    "number": {"type": "number"},
    "number?": {"type": ["number", "null"]},
    "flag": {"type": "boolean"},
    "flag?": {"type": ["boolean", "null"]},
    "object": {"type": "object"},
    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    "texts": {"type": "array", "items": {"type": "string"}},
    "wholes": {"type": "array", "items": {"type": "integer"}},
    "time": {"type": "string", "format": "date-time"},
    "time?": {"type": ["string", "null"], "format": "date-time"},
}


def _type(name: str) -> Schema:
    """Return a schema by its name: of a type above, of an object below, or of a list of those, such as `[Memory]`."""
    if name.startswith("["):
        return {"type": "array", "items": _type(name[1:-1])}
    return _TYPES.get(name) or {"$ref": f"#/components/schemas/{name}"}


def _object(always: str, sometimes: str = "", base: str = "") -> Schema:
    """Return the schema of an object.

    Args:
        always: Its members with their types, such as `id:text count:whole`.
        sometimes: Those that may be missing.
        base: An object whose members it has as well.
    """
    required = [pair.partition(":")[0] for pair in always.split()]
    members = {name: _type(kind) for name, _, kind in (pair.partition(":") for pair in f"{always} {sometimes}".split())}
    shape: Schema = {"type": "object", "required": required, "properties": members}
    return {"allOf": [_type(base), shape]} if base else shape


def _shape(*fields: Field, sometimes: str = "") -> Schema:
    """Return the schema of an object with these fields; `sometimes` are others, as in `_object`."""
    always = " ".join(f"{field.name}:{field.kind}" for field in fields if field.default is ALWAYS)
    rest = " ".join(f"{field.name}:{field.kind}" for field in fields if field.default is not ALWAYS)
    made = _object(always, f"{rest} {sometimes}")
    for field in fields:
        made["properties"][field.name] = _type(field.kind) | {"description": field.about}
    return made


_CREATED = (
    "id:text? stored:flag duplicates:[Similar] merged:texts not_merged:object reinforced:flag similar_to:[Similar] "
    "corrects:text? pending:flag suspicious:texts redacted:texts note:text hint:text"
)
SCHEMAS: dict[str, Schema] = {
    "Memory": _shape(*MEMORY),
    "Hit": {"allOf": [{"anyOf": [_type("Memory"), _type("Turn")]}, _shape(KIND, *HIT)]},
    "Similar": _object(
        "id:text content:text similarity:number? created_at:time",
        "agent:text difference:text origin:object suspicious:texts corrected_by:text",
    ),
    "Created": _object(_CREATED),
    "CreatedMany": _object("results:[object] count:whole"),
    "Listed": {"anyOf": [_type("Hit"), _type("Memory")]},
    "Results": _object(
        "results:[Listed] count:whole", "next_cursor:text? note:text tier:text explain:object damaged:[object]"
    ),
    "Page": _object("results:[Memory] count:whole", "next_cursor:text?"),
    "Deleted": _object("id:text deleted:flag"),
    "Reinforced": _object("id:text confidence:number last_reinforced_at:text"),
    "Forgotten": _object("id:text forgotten:flag versions:whole also_in:texts"),
    "ForgottenTurns": _object(
        "conversation_id:text forgotten:flag turns:whole also_in:texts", "memories:whole dry_run:flag"
    ),
    "Version": _shape(*VERSION, sometimes="origin:object diff:[object]"),
    "History": _object(
        "id:text versions:[object] count:whole",
        "supersedes:text superseded_by:text corrects:text corrected_by:text pending:flag",
    ),
    "Duplicates": _object("results:[object] count:whole"),
    "Ids": _object("results:texts count:whole"),
    "ShortIds": _object("short_ids:tags"),
    "Tags": _object("", "keys:[object] key:text values:[object]"),
    "Step": _object("id:text action:text content:text", "reason:text"),
    "Affected": _object(
        "count:whole dry_run:flag counts:counts steps:[object]", "left:whole undo:object also_in:texts"
    ),
    "Accepted": _object("accepted:whole left:whole results:[object] dry_run:flag"),
    "Rejected": _object("rejected:whole results:[object] dry_run:flag"),
    "Turn": _shape(*TURN),
    "Turns": _object("results:[Turn] count:whole"),
    "Added": _object(
        "conversation_id:text count:whole last_index:whole? stored:whole known:whole refused:whole results:[object]",
        "redacted:texts",
    ),
    "Conversation": _object(
        "conversation_id:text namespace:text turn_count:whole first_at:text last_at:text",
        "waiting_count:whole title:text user:text tags:tags",
    ),
    "Conversations": _object("results:[Conversation] count:whole next_cursor:text?"),
    "Context": _object(
        "conversation_id:text? history:[object] memories:[object] latest_message:text recalled:[object] "
        "metadata:object prompt:text"
    ),
    "Entry": _object(
        "id:text content:text pinned:flag namespace:text tags:tags updated_at:text created_at:text version:whole "
        "access_count:whole",
        "key:text written_by:text trust:text suspicious:texts cut:whole",
    ),
    "Scratchpad": _object("results:[Entry] count:whole namespace:text pending_count:whole", "file:text? notes:texts"),
    "Prompt": _object(
        "prompt:text memories:texts sessions:texts pending_count:whole left_out:counts tokens:whole degraded:flag",
        "error:text notes:texts",
    ),
    "Me": _object("id:text name:text namespaces:tags"),
    "Namespaces": _object("namespaces:[object] count:whole"),
    "Status": _object(
        "status:text memory_count:whole turn_count:whole deleted_count:whole without_vector_count:whole namespace:text "
        "namespaces_read:texts embedder:text store_model:text? schema_version:whole? size_bytes:whole?",
        "store:text collection:text unfinished_erasure:flag log_bytes:whole missing_commits:whole read_only:flag "
        "compact:flag chromadb_host:text pending_count:whole error:text",
    ),
    "Stats": _object(
        "since:time? noted_since:time? namespaces:texts operations:[Operation] agents:counts projects:counts "
        "by_namespace:counts per_day:counts memory_count:whole never_used_count:whole most_used:[Used] "
        "never_used:[Used] tokens:whole"
    ),
    "Operation": _object(
        "name:text total:whole failed:whole p50_ms:number? p95_ms:number? results:whole written:whole tokens:whole"
    ),
    "Used": _object("id:text content:text access_count:whole"),
    "Log": _object("results:[object] count:whole"),
    "LogChecks": _object("verified:flag logs:[object]"),
    "BackedUp": _object(
        "backup:text verified:flag kind:text records:whole size_bytes:whole sha256:text store:text removed:texts "
        "queued:whole"
    ),
    "Imported": _object(
        "imported:whole known:whole conflict_count:whole conflicts:[object] without_vector:whole dry_run:flag "
        "trusted:flag pending:whole",
        "redacted:counts note:text import:text hint:text",
    ),
    "Ok": _object("ok:flag"),
    "Problem": _object(
        "type:text title:text status:whole detail:text error:text", "kind:text exit_code:whole matches:texts"
    ),
}
