"""JSON responses about whole stores: status, damage, transfers, the audit log, statistics."""

from typing import TYPE_CHECKING, Any

from memories.answers.shapes import fields
from memories.core.times import to_iso
from memories.core.urls import without_password
from memories.guard.validate import amount
from memories.languages import escape_code, make_visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memories.models import Change, LogCheck, LogEntry, Status
    from memories.settings import Config
    from memories.stores.records import Finding, Ref
    from memories.transfer.backup import BackedUp, Restored
    from memories.transfer.doctor import Examined, Fixed, Salvaged
    from memories.transfer.foreign import Counts
    from memories.transfer.importing import Imported
    from memories.transfer.migrate import Migrated, Reembedded
    from memories.transfer.stats import Stats

HINT_UNCHECKED = (
    "the export may be incomplete, since version 1 of the format has no line that marks the end"
)
MAX_LOST = 1_000  # maximum number of lost records listed in a response; the count includes all
_MAX_NAMED = 5  # maximum number of damaged records listed in a sentence
_MAX_EXCERPT = 120  # statistics show at most this many characters of a memory
# SQLite moves the log into the database file at 4 MB, unless a reader is active.
_LARGE_LOG_BYTES = 16 * 2**20


# --- state ---


def status(state: "Status", problem: str | None = None) -> dict[str, Any]:
    """Return the state of a store that responded.

    Args:
        state: The state.
        problem: Why the store is unhealthy; empty if it is healthy. By default `describe_problem`
            decides.
    """
    if problem is None:
        problem = describe_problem(state)
    answer = {
        "status": "unhealthy" if problem else "healthy",
        **fields(state, "store", "collection"),
        **fields(state, "memory_count", "turn_count", "deleted_count", "without_vector_count"),
        **fields(state, "namespace", "namespaces_read"),
        **fields(state, "embedder", "store_model", "schema_version", "size_bytes"),
    }
    optional = {
        "unfinished_erasure": state.erasing,
        "log_bytes": large_log(state),
        "missing_commits": state.missing_commits,
        "read_only": state.read_only,
        "compact": state.compact,
        "chromadb_host": chroma_host(state.store),
        "pending_count": state.pending_count,
        "error": problem,
    }
    return answer | {name: value for name, value in optional.items() if value}


def unreachable(store: str, error: str) -> dict[str, Any]:
    """Return the state of a store that did not respond: its URL, and the error."""
    store = without_password(store)
    answer = {"status": "unhealthy", "store": store, "error": error}
    if host := chroma_host(store):
        answer["chromadb_host"] = host
    return answer


def large_log(state: "Status") -> int | None:
    """Return the size of a write-ahead log that SQLite should have emptied by now; else None."""
    if state.log_bytes is None or state.log_bytes <= _LARGE_LOG_BYTES:
        return None
    return state.log_bytes


def describe_problem(state: "Status") -> str:
    """Return the reason a store that responded is unhealthy; empty if it is healthy."""
    if state.missing_commits:
        commits = amount(
            state.missing_commits, "acknowledged commit is", "acknowledged commits are"
        )
        return (
            f"{commits} missing: the store's log was "
            "truncated or removed, or an older copy replaced the store; it is read-only for now; "
            "restore a backup (memory restore FILE --replace), or accept the loss: memory doctor "
            "--fix"
        )
    if state.damage:
        parts = [state.damage[0], "run: memory doctor"]
        if len(state.damage) > 1:
            parts.insert(1, f"and {len(state.damage) - 1} more")
        return "; ".join(parts)
    if state.store_model is None or state.embedder in ("none", state.store_model):
        return ""
    from memories.stores.protocol import other_embedder

    return str(other_embedder(state.store_model, state.embedder))


def chroma_host(store: str) -> str:
    """Return the host and port of a Chroma server; empty for other stores."""
    kind, _, address = store.partition("://")
    if kind != "chroma":
        return ""
    return address.partition("/")[0].partition("?")[0].rpartition("@")[2]


def damage_details(findings: "Sequence[Finding]") -> list[dict[str, Any]]:
    """Return the damaged records that were left out of a response."""
    return [
        {**_address(finding.ref), "problem": finding.what, "remedy": finding.remedy}
        for finding in findings
    ]


def describe_damage(findings: "Sequence[Finding]") -> str:
    """Return a sentence about the damaged records left out of a response."""
    problems = [finding.what for finding in findings[:_MAX_NAMED]]
    if len(findings) > _MAX_NAMED:
        problems.append(f"and {len(findings) - _MAX_NAMED} more")
    remedies: dict[str, None] = {}
    for finding in findings:
        is_one_of_many = finding.ref is not None and len(findings) > 1
        remedies["memory forget ID removes one" if is_one_of_many else finding.remedy] = None
    sentence = "; ".join([*problems, *remedies])
    return f"left out: {sentence}; for details run: memory doctor"


def _address(ref: "Ref | None") -> dict[str, Any]:
    if ref is None:
        return {}
    if ref.collection == "history":
        return {"kind": "turn", "id": f"{ref.group}#{ref.position}", "namespace": ref.namespace}
    return {"kind": "memory", "id": ref.group, "version": ref.position, "namespace": ref.namespace}


def config(settings: "Config") -> dict[str, Any]:
    """Return every setting with its source."""
    from memories.settings import SETTINGS

    rows = []
    for setting in SETTINGS:
        value = getattr(settings, setting.name)
        if not (value is None or isinstance(value, int | float | bool)):
            value = without_password(str(value))
        source = settings.sources[setting.name]
        row = {"name": setting.name, "value": value, "source": source}
        rows.append({**row, "variable": setting.variable, "purpose": setting.purpose})
    return {"settings": rows}


# --- transfers ---


def import_result(imported: "Imported", import_id: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Return the result of an import, with the import's id unless the file is the user's own."""
    answer: dict[str, Any] = fields(imported, "imported", "known", "conflict_count")
    answer["conflicts"] = [
        {"line": line, **ref._asdict(), "reason": reason}
        for line, ref, reason in imported.conflicts
    ]
    answer |= {"without_vector": imported.without_vector, "dry_run": dry_run}
    if imported.unchecked:
        answer["note"] = HINT_UNCHECKED
    if imported.redacted:
        answer["redacted"] = dict(sorted(imported.redacted.items()))
    answer |= {"trusted": import_id is None, "pending": sum(imported.pending.values())}
    if imported.still_pending:
        answer["still_pending"] = imported.still_pending
    if imported.proposals:
        answer["proposals_left_out"] = imported.proposals
    if dry_run:
        return answer
    waiting, option = "some memories were pending before the export", ""
    if import_id is not None:
        answer["import"] = import_id
        waiting, option = "the imported memories are held for review", f" --import {import_id}"
    if imported.pending:
        namespaces = sorted(imported.pending)
        commands = "; ".join(f"memory review -n {name}{option}" for name in namespaces)
        answer["hint"] = f"{waiting}; to decide, run: {commands}"
    return answer


def source_import_result(counts: "Counts", source: str, *, dry_run: bool) -> dict[str, Any]:
    """Return the result of importing a source."""
    answer: dict[str, Any] = {"source": source, "imported": counts.turns + counts.memories}
    answer |= kind_counts(counts)
    answer |= fields(counts, "known", "pending", "without_vector")
    answer["skipped"] = dict(sorted(counts.skipped.items()))
    if counts.redacted:
        answer["redacted"] = dict(sorted(counts.redacted.items()))
    return {**answer, "dry_run": dry_run}


def kind_counts(counts: "Counts") -> dict[str, Any]:
    """Return the counts of an import, with the earliest and latest time in the source."""
    shape: dict[str, Any] = {
        "turns": counts.turns,
        "conversations": len(counts.conversations),
        "memories": counts.memories,
    }
    if counts.first is not None and counts.last is not None:
        shape |= {"first": to_iso(counts.first), "last": to_iso(counts.last)}
    return shape


def backup_result(backup: "BackedUp", store: str, queued: int) -> dict[str, Any]:
    """Return the result of backing up the store at a URL, and the number of turns still queued."""
    return {
        "backup": str(backup.file),
        "verified": True,
        **fields(backup, "kind", "records", "size_bytes", "sha256"),
        "store": without_password(store),
        "removed": [str(file) for file in backup.removed],
        "queued": queued,
    }


def restore_result(restored: "Restored", file: str, store: str) -> dict[str, Any]:
    """Return the result of restoring a file into the store at a URL."""
    answer = {
        "restored": file,
        "verified": True,
        "store": without_password(store),
        **fields(restored, "records", "made_at", "without_vector"),
        "kept": restored.kept and str(restored.kept),
    }
    if restored.unchecked:
        answer["note"] = HINT_UNCHECKED
    return answer


def doctor_result(examined: "Examined", fixed: "Fixed | None") -> dict[str, Any]:
    """Return a check's findings, and any repairs made before it."""
    findings = []
    for finding in examined.findings:
        row = {"what": finding.what, "remedy": finding.remedy, "derived": finding.derived}
        if finding.ref:
            row |= finding.ref._asdict()
        findings.append(row)
    answer: dict[str, Any] = {
        "status": "unhealthy" if findings else "healthy",
        "findings": findings,
        **examined.facts,
    }
    if fixed is not None:
        answer |= {"repaired": fixed.repaired, "backup": fixed.backup and str(fixed.backup)}
    return answer


def salvage_result(salvaged: "Salvaged", file: str) -> dict[str, Any]:
    """Return how many records were saved to a file, and which were lost."""
    lost = []
    for what, ref in salvaged.lost[:MAX_LOST]:
        row = {"what": what}
        if ref:
            row |= ref._asdict()
        lost.append(row)
    return {
        "salvaged": file,
        "saved": salvaged.saved,
        "lost_count": len(salvaged.lost),
        "lost": lost,
    }


def migrate_result(migrated: "Migrated", source: str, target: str) -> dict[str, Any]:
    """Return the result of a migration from one store's URL to another's."""
    from memories.stores.records import SEARCHED

    records: dict[str, int] = {}
    namespaces = set()
    for place, contents in migrated.contents.items():
        if place.collection in SEARCHED:
            name = str(place.collection)
            records[name] = records.get(name, 0) + contents.records
        if contents.records:
            namespaces.add(place.namespace)
    return {
        "verified": True,
        "records": records,
        "namespaces": sorted(namespaces),
        **fields(migrated, "copied", "changed", "removed", "without_vector"),
        "from": without_password(source),
        "to": without_password(target),
    }


def reembed_result(reembedded: "Reembedded", embedder: str) -> dict[str, Any]:
    """Return the result of changing the embedder."""
    return {
        "embedded": reembedded.embedded,
        "model": reembedded.model,
        "model_before": reembedded.before,
        "embedder": embedder,
    }


# --- audit log and statistics ---


def log_entries(entries: "Sequence[LogEntry]") -> dict[str, Any]:
    """Return entries of the audit log."""
    results = []
    for entry in entries:
        row = fields(entry, "number", "at", "namespace") | entry.actor._asdict()
        row["changes"] = list(map(_change, entry.changes))
        results.append(row | fields(entry, "previous", "hash"))
    return {"results": results, "count": len(results)}


def _change(change: "Change") -> dict[str, Any]:
    if change.action == "undone":
        return {"action": change.action, "number": change.first}
    if change.id is None:
        return {
            "action": change.action,
            "conversation_id": change.conversation,
            "first_index": change.first,
            "last_index": change.last,
        }
    return {
        "action": change.action,
        "id": change.id,
        "first_version": change.first,
        "last_version": change.last,
    }


def log_checks(checks: "Sequence[LogCheck]") -> dict[str, Any]:
    """Return the results of verifying the audit log."""
    logs = [fields(check, *check._fields) for check in checks]
    return {"verified": not any(check.problem for check in checks), "logs": logs}


def stats(figures: "Stats") -> dict[str, Any]:
    """Return the figures of `memory stats`."""
    answer = {
        **figures._asdict(),
        "since": figures.since and to_iso(figures.since),
        "operations": [operation._asdict() for operation in figures.operations],
        "tokens": figures.tokens,
    }
    for name in ("most_used", "never_used"):
        answer[name] = []
        for use in getattr(figures, name):
            excerpt = shorten(use.content, _MAX_EXCERPT)
            answer[name].append(use._asdict() | {"content": excerpt})
    return answer


def shorten(text: str, width: int) -> str:
    """Return a text on one line of at most `width` characters; invisible ones are escaped."""
    line = make_visible(" ".join(text.split()), escape_code)
    return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"
