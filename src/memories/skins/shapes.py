"""The JSON shapes of answers, as the command's specification gives them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memories.times import to_iso

if TYPE_CHECKING:
    from memories.config import Config
    from memories.models import Forgotten, History, Memory, Page, Status
    from memories.search.results import Explanation, Hit
    from memories.transfer.importing import Imported
    from memories.transfer.migrate import Migrated
    from memories.transfer.reembed import Reembedded
    from memories.turns import Conversation, Turn
    from memories.write.create import Created, Similar

HINT_DUPLICATE = (
    "nothing was stored: a very similar memory exists; to change that one run: memory update {id} CONTENT, "
    "to store this one too add --force"
)
HINT_SIMILAR = "stored; if it corrects a memory in similar_to, delete that one with: memory delete ID"
HINT_SAME = "nothing was stored: this memory says the same already"


def memory(found: "Memory") -> dict[str, Any]:
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


def deleted(found: "Memory") -> dict[str, Any]:
    """Return the answer to a delete."""
    return {"id": found.id, "deleted": True}


def reinforced(found: "Memory") -> dict[str, Any]:
    """Return what a reinforcement changed."""
    at = found.last_reinforced_at
    return {"id": found.id, "confidence": found.confidence, "last_reinforced_at": to_iso(at) if at else ""}


def forgotten(result: "Forgotten") -> dict[str, Any]:
    """Return what was removed for good."""
    return {"id": result.id, "forgotten": True, "versions": result.versions, "also_in": list(result.also_in)}


def forgotten_turns(result: "Forgotten") -> dict[str, Any]:
    """Return what was removed of a conversation for good."""
    shape = {"conversation_id": result.id, "forgotten": True, "turns": result.versions}
    return shape | {"also_in": list(result.also_in)}


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


def added(conversation: str, said: "Sequence[Turn]") -> dict[str, Any]:
    """Return what became of many turns that were added to a conversation."""
    last = said[-1].index if said else None
    return {"conversation_id": conversation.strip(), "count": len(said), "last_index": last}


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
    from memories.models import Memory

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


def page(result: "Page") -> dict[str, Any]:
    """Return a page of memories."""
    return {
        "results": [memory(item) for item in result.memories],
        "count": len(result.memories),
        "next_cursor": result.next_cursor,
    }


def history(result: "History") -> dict[str, Any]:
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


def context(built: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """Return a context with its parts, and as the prompt that a model is given."""
    memories = []
    for item, similarity in built["memories"]:
        known = _present(vars(item))
        memories.append({**known, "type": known.pop("memory_type"), "similarity": similarity})
    return {
        "conversation_id": built["metadata"]["conversation_id"],
        "history": [_present(vars(turn)) for turn in built["history"]],
        "memories": memories,
        "latest_message": built["latest_message"],
        "metadata": built["metadata"],
        "prompt": prompt,
    }


def imported(done: "Imported", *, dry_run: bool) -> dict[str, Any]:
    """Return what became of an import."""
    conflicts = [{"line": line, **ref._asdict(), "reason": reason} for line, ref, reason in done.conflicts]
    return {
        "imported": done.imported,
        "known": done.known,
        "conflict_count": done.conflict_count,
        "conflicts": conflicts,
        "without_vector": done.without_vector,
        "dry_run": dry_run,
    }


def migrated(done: "Migrated", source: str, target: str) -> dict[str, Any]:
    """Return what a migration from one store's URL to another's did."""
    from memories.config import without_password

    records: dict[str, int] = {}
    for place, contents in done.contents.items():
        records[str(place.collection)] = records.get(str(place.collection), 0) + contents.records
    return {
        "verified": True,
        "records": records,
        "namespaces": sorted({place.namespace for place, contents in done.contents.items() if contents.records}),
        "copied": done.copied,
        "changed": done.changed,
        "removed": done.removed,
        "without_vector": done.without_vector,
        "from": without_password(source),
        "to": without_password(target),
    }


def reembedded(done: "Reembedded", embedder: str) -> dict[str, Any]:
    """Return what a change to an embedder did."""
    return {"embedded": done.embedded, "model": done.model, "model_before": done.before, "embedder": embedder}


def status(found: "Status", problem: str | None = None) -> dict[str, Any]:
    """Return the state of a memory that answered.

    Args:
        found: What it answered.
        problem: What is wrong with it, if anything; by default what `trouble` says.
    """
    problem = trouble(found) if problem is None else problem
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


def unhealthy(store: str, error: str) -> dict[str, Any]:
    """Return the state of a memory that does not answer, as far as its store's URL tells."""
    from memories.config import without_password

    store = without_password(store)
    host = chroma_host(store)
    return {"status": "unhealthy", "store": store, "error": error} | ({"chromadb_host": host} if host else {})


def trouble(found: "Status") -> str:
    """Return what is wrong with a memory that answered, or nothing."""
    if found.store_model is None or found.embedder in ("none", found.store_model):
        return ""
    return (
        f"the store's vectors were made by {found.store_model}, but the embedder is {found.embedder}; set EMBEDDER "
        "back, or run: memory reembed"
    )


def chroma_host(store: str) -> str:
    """Return host and port of a Chroma server, as its specification wants them; nothing for other stores."""
    kind, _, rest = store.partition("://")
    return rest.partition("/")[0].partition("?")[0].rpartition("@")[2] if kind == "chroma" else ""


def config(found: "Config") -> dict[str, Any]:
    """Return every setting with its source."""
    from memories.config import SETTINGS, without_password

    rows = []
    for setting in SETTINGS:
        value = getattr(found, setting.name)
        plain = value is None or isinstance(value, int | float | bool)
        rows.append(
            {
                "name": setting.name,
                "value": value if plain else without_password(str(value)),
                "source": found.sources[setting.name],
                "variable": setting.variable,
                "purpose": setting.purpose,
            }
        )
    return {"settings": rows}


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
