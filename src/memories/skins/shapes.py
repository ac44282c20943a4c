"""The JSON shapes of answers, as the command's specification gives them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memories.config import SETTINGS, Config, without_password
from memories.models import Forgotten, History, Memory, Page, Status
from memories.times import to_iso

if TYPE_CHECKING:
    from memories.search.results import Explanation, Hit
    from memories.turns import Conversation, Turn
    from memories.write.create import Created, Similar

HINT_DUPLICATE = (
    "nothing was stored; to store it anyway add --force, to say it anew run: memory update {id} CONTENT, "
    "or leave it as it is"
)
HINT_SIMILAR = "stored; if it corrects one of similar_to, run: memory delete ID on that one"
HINT_SAME = "nothing was stored: this memory says the same already"


def memory(found: Memory) -> dict[str, Any]:
    """Return a memory: the five known tags by themselves, all tags under `tags`, the rest if it is set."""
    tags = found.tags
    shape: dict[str, Any] = {
        "id": found.id,
        "content": found.content,
        "agent": tags.get("agent", ""),
        "personality": tags.get("personality", ""),
        "project": tags.get("project", ""),
        "type": tags.get("type", ""),
        "global": tags.get("global", "").lower() == "true",
        "tags": dict(sorted(tags.items())),
        "namespace": found.namespace,
        "decay_policy": str(found.decay_policy),
        "confidence": found.confidence,
        "created_at": to_iso(found.created_at),
        "updated_at": to_iso(found.updated_at),
        "version": found.version,
        "version_count": found.version,
    }
    optional = {
        "key": found.key,
        "base_confidence": None if found.base_confidence == 1.0 else found.base_confidence,
        "last_reinforced_at": found.last_reinforced_at and to_iso(found.last_reinforced_at),
        "supersedes": found.supersedes,
        "superseded_by": found.superseded_by,
        "deleted": found.deleted or None,
        "access_count": found.access_count or None,
    }
    return shape | {name: value for name, value in optional.items() if value is not None}


def created(result: "Created") -> dict[str, Any]:
    """Return what became of a create."""
    if result.memory is None:
        hint = HINT_DUPLICATE.format(id=result.duplicates[0].id)
        return {"stored": False, "duplicates": [_similar(found) for found in result.duplicates], "hint": hint}
    shape = memory(result.memory) | {"stored": result.stored} | ({"note": result.note} if result.note else {})
    if result.similar_to:
        shape |= {"similar_to": [_similar(found) for found in result.similar_to], "hint": HINT_SIMILAR}
    return shape if result.stored else shape | {"hint": HINT_SAME}


def _similar(found: "Similar") -> dict[str, Any]:
    shape = {"id": found.id, "content": found.content, "similarity": found.similarity}
    shape |= {"created_at": to_iso(found.created_at)} | ({"agent": found.agent} if found.agent else {})
    return shape | ({"difference": found.difference} if found.difference else {})


def reinforced(found: Memory) -> dict[str, Any]:
    """Return what a reinforcement changed."""
    at = found.last_reinforced_at
    return {"id": found.id, "confidence": found.confidence, "last_reinforced_at": to_iso(at) if at else ""}


def forgotten(result: Forgotten) -> dict[str, Any]:
    """Return what was removed for good."""
    return {"id": result.id, "forgotten": True, "versions": result.versions, "also_in": list(result.also_in)}


def turn(said: "Turn") -> dict[str, Any]:
    """Return a turn of a conversation."""
    shape: dict[str, Any] = {
        "id": said.id,
        "content": said.content,
        "conversation_id": said.conversation_id,
        "turn_index": said.index,
        "role": said.role,
        "speaker": said.speaker,
        "tags": dict(sorted(said.tags.items())),
        "namespace": said.namespace,
        "created_at": to_iso(said.created_at),
    }
    return shape | ({} if said.message_id is None else {"message_id": said.message_id})


def turns(said: "Sequence[Turn]") -> dict[str, Any]:
    """Return several turns."""
    return {"results": [turn(each) for each in said], "count": len(said)}


def conversations(found: "Sequence[Conversation]") -> dict[str, Any]:
    """Return a listing of conversations."""
    rows = [
        {
            "conversation_id": each.id,
            "namespace": each.namespace,
            "turn_count": each.turn_count,
            "first_at": to_iso(each.first_at),
            "last_at": to_iso(each.last_at),
        }
        for each in found
    ]
    return {"results": rows, "count": len(rows)}


def hit(each: "Hit") -> dict[str, Any]:
    """Return a hit: a memory with all that is known of it, or a turn in the same shape."""
    if isinstance(each.found, Memory):
        shape = memory(each.found) | {"kind": "memory"}
    else:
        known = dict.fromkeys(("agent", "personality", "project", "type"), "") | dict(each.found.tags)
        shape = turn(each.found) | {name: known[name] for name in ("agent", "personality", "project", "type")}
        shape |= {"global": known.get("global", "").lower() == "true", "confidence": 1.0, "kind": "turn"}
    return shape | {
        "speaker": each.speaker,
        "date": to_iso(each.date),
        "conversation_id": each.conversation_id,
        "similarity": each.similarity,
        "calibrated": each.calibrated,
        "score": each.score,
    }


def found(result: "Explanation", *, explain: bool) -> dict[str, Any]:
    """Return the hits of a search; with `explain`, also everything that was considered."""
    results = [hit(each) for each in result.hits]
    shape: dict[str, Any] = {"results": results, "count": len(results)} | ({"note": result.note} if result.note else {})
    if explain:
        considered = [
            {"id": item.id, "content": item.content, "score": item.score, **item.features, "dropped": item.dropped}
            for item in result.considered
        ]
        shape["explain"] = {"terms": list(result.terms), "considered": considered}
    return shape


def page(result: Page) -> dict[str, Any]:
    """Return a page of memories."""
    return {
        "results": [memory(item) for item in result.memories],
        "count": len(result.memories),
        "next_cursor": result.next_cursor,
    }


def history(result: History) -> dict[str, Any]:
    """Return every version of a memory."""
    versions = [
        {
            "version": version.version,
            "content": version.content,
            "tags": dict(version.tags),
            "operation": version.operation,
            "created_at": to_iso(version.created_at),
            "ended_at": version.ended_at and to_iso(version.ended_at),
            "ended_by": version.ended_by,
        }
        for version in result.versions
    ]
    chain = {"supersedes": result.supersedes, "superseded_by": result.superseded_by}
    return {
        "id": result.id,
        "versions": versions,
        "count": len(versions),
        **{name: value for name, value in chain.items() if value is not None},
    }


def tags(key: str | None, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return tag keys, or the values of one, with their counts."""
    if key is None:
        return {"keys": [{"key": name, "count": count} for name, count in counts.items()]}
    return {"key": key, "values": [{"value": value, "count": count} for value, count in counts.items()]}


def status(found: Status) -> dict[str, Any]:
    """Return the state of a memory that answered."""
    problem = trouble(found)
    shape = {
        "status": "unhealthy" if problem else "healthy",
        "store": found.store,
        "collection": found.collection,
        "memory_count": found.memory_count,
        "turn_count": found.turn_count,
        "deleted_count": found.deleted_count,
        "without_vector_count": found.without_vector_count,
        "namespace": found.namespace,
        "namespaces_read": list(found.namespaces_read),
        "embedder": found.embedder,
        "store_model": found.store_model,
        "schema_version": found.schema_version,
        "size_bytes": found.size_bytes,
    }
    optional = {"unfinished_erasure": found.erasing or None, "chromadb_host": chroma_host(found.store)}
    return shape | {name: value for name, value in {**optional, "error": problem}.items() if value}


def trouble(found: Status) -> str:
    """Return what is wrong with a memory that answered, or nothing."""
    if found.store_model is None or found.embedder in ("none", found.store_model):
        return ""
    return (
        f"the store's vectors were made by {found.store_model} and the embedder is {found.embedder}; set EMBEDDER to "
        "the one it was made with, or run: memory reembed"
    )


def chroma_host(store: str) -> str:
    """Return host and port of a Chroma server, as its specification wants them; nothing for other stores."""
    kind, _, rest = store.partition("://")
    return rest.partition("/")[0].partition("?")[0].rpartition("@")[2] if kind == "chroma" else ""


def config(found: Config) -> dict[str, Any]:
    """Return every setting with its source."""
    rows = [
        {
            "name": setting.name,
            "value": _plain(getattr(found, setting.name)),
            "source": found.sources[setting.name],
            "variable": setting.variable,
            "purpose": setting.purpose,
        }
        for setting in SETTINGS
    ]
    return {"settings": rows}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | bool) else without_password(str(value))
