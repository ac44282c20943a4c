"""The JSON of answers about whole stores: what an import, a backup, an examination or a move did,
and the log.
"""

from typing import TYPE_CHECKING, Any

from memories.answers.shapes import HINT_UNCHECKED, MAX_SHOWN, fields, present
from memories.core.times import to_iso
from memories.languages.unseen import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memories.models import Change, LogCheck, LogEntry
    from memories.transfer.backup import BackedUp, Restored
    from memories.transfer.doctor import Examined, Fixed, Salvaged
    from memories.transfer.importing import Imported
    from memories.transfer.migrate import Migrated, Reembedded
    from memories.transfer.stats import Stats

_SHOWN = 120  # characters of a memory in figures about its use


def imported(done: "Imported", import_id: str | None, *, dry_run: bool) -> dict[str, Any]:
    """Return what became of an import; it has an id if nothing proved that the file is the user's
    own.
    """
    conflicts = [
        {"line": line, **ref._asdict(), "reason": reason} for line, ref, reason in done.conflicts
    ]
    counts = fields(done, "imported", "known", "conflict_count")
    note = {"note": HINT_UNCHECKED} if done.unchecked else {}
    shape = {
        **counts,
        "conflicts": conflicts,
        "without_vector": done.without_vector,
        "dry_run": dry_run,
        **note,
    }
    shape |= present({"redacted": dict(sorted(done.redacted.items())) or None})
    shape |= {"trusted": import_id is None, "pending": sum(done.pending.values())}
    if import_id is None or dry_run:
        return shape
    runs = [f"memory review -n {name} --import {import_id}" for name in sorted(done.pending)]
    hint = (
        {"hint": f"what was imported waits for review; to decide run: {'; '.join(runs)}"}
        if runs
        else {}
    )
    return shape | {"import": import_id} | hint


def backed_up(done: "BackedUp", store: str, queued: int) -> dict[str, Any]:
    """Return what a backup of the store at a URL did, and how many turns wait to be stored."""
    from memories.core.urls import without_password

    return {
        "backup": str(done.file),
        "verified": True,
        **fields(done, "kind", "records", "size_bytes", "sha256"),
        "store": without_password(store),
        "removed": [str(file) for file in done.removed],
        "queued": queued,
    }


def restored(done: "Restored", file: str, store: str) -> dict[str, Any]:
    """Return what a restore from a file into the store at a URL did."""
    from memories.core.urls import without_password

    shape = {
        "restored": file,
        "verified": True,
        "store": without_password(store),
        **fields(done, "records", "made_at", "without_vector"),
        "kept": None if done.kept is None else str(done.kept),
    }
    return shape | ({"note": HINT_UNCHECKED} if done.unchecked else {})


def examined(found: "Examined", fixed: "Fixed | None") -> dict[str, Any]:
    """Return what an examination found, and what was repaired before it if that was asked for."""
    findings = [
        {"what": finding.what, "remedy": finding.remedy, "derived": finding.derived}
        | ({} if finding.ref is None else finding.ref._asdict())
        for finding in found.findings
    ]
    shape: dict[str, Any] = {
        "status": "unhealthy" if findings else "healthy",
        "findings": findings,
        **found.facts,
    }
    if fixed is not None:
        shape |= {
            "repaired": fixed.repaired,
            "backup": None if fixed.backup is None else str(fixed.backup),
        }
    return shape


def salvaged(done: "Salvaged", file: str) -> dict[str, Any]:
    """Return what could be saved into a file, and what not."""
    lost = [{"what": what} | ({} if ref is None else ref._asdict()) for what, ref in done.lost]
    return {
        "salvaged": file,
        "saved": done.saved,
        "lost_count": len(lost),
        "lost": lost[:MAX_SHOWN],
    }


def migrated(done: "Migrated", source: str, target: str) -> dict[str, Any]:
    """Return what a migration from one store's URL to another's did."""
    from memories.core.urls import without_password
    from memories.stores.records import SEARCHED

    records: dict[str, int] = {}
    for place, contents in done.contents.items():
        if place.collection not in SEARCHED:
            continue
        records[str(place.collection)] = records.get(str(place.collection), 0) + contents.records
    return {
        "verified": True,
        "records": records,
        "namespaces": sorted(
            {place.namespace for place, contents in done.contents.items() if contents.records}
        ),
        **fields(done, "copied", "changed", "removed", "without_vector"),
        "from": without_password(source),
        "to": without_password(target),
    }


def reembedded(done: "Reembedded", embedder: str) -> dict[str, Any]:
    """Return what a change to an embedder did."""
    return {
        "embedded": done.embedded,
        "model": done.model,
        "model_before": done.before,
        "embedder": embedder,
    }


def log_entries(found: "Sequence[LogEntry]") -> dict[str, Any]:
    """Return entries of the audit log."""
    results = [
        {
            "number": entry.number,
            "at": to_iso(entry.at),
            "namespace": entry.namespace,
            **entry.actor._asdict(),
            "changes": [_change(change) for change in entry.changes],
            "previous": entry.previous,
            "hash": entry.hash,
        }
        for entry in found
    ]
    return {"results": results, "count": len(results)}


def _change(change: "Change") -> dict[str, Any]:
    if change.action == "undone":
        return {"action": change.action, "number": change.first}
    named = {"id": change.id} if change.id is not None else {"conversation_id": change.conversation}
    span = (
        ("first_version", "last_version")
        if change.id is not None
        else ("first_index", "last_index")
    )
    return {"action": change.action, **named, span[0]: change.first, span[1]: change.last}


def log_checks(found: "Sequence[LogCheck]") -> dict[str, Any]:
    """Return what checks of the audit log found."""
    logs = [
        each._asdict()
        | {name: at and to_iso(at) for name, at in (("since", each.since), ("until", each.until))}
        | {"forks": list(each.forks)}
        for each in found
    ]
    return {"verified": not any(each.problem for each in found), "logs": logs}


def stats(found: "Stats") -> dict[str, Any]:
    """Return what was done and what is used."""
    used = {"most_used": found.most_used, "never_used": found.never_used}
    return {
        **found._asdict(),
        "since": None if found.since is None else to_iso(found.since),
        "operations": [operation._asdict() for operation in found.operations],
        "tokens": found.tokens,
        **{
            name: [each._asdict() | {"content": short(each.content, _SHOWN)} for each in some]
            for name, some in used.items()
        },
    }


def short(text: str, width: int) -> str:
    """Return a text on one line that is at most so wide, with nothing unseen in it."""
    line = shown(" ".join(text.split()), lambda sign: f"\\u{{{ord(sign):x}}}")
    return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"
