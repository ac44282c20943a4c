"""Answers for people: aligned, dated, coloured on a terminal; nothing in them can control the
terminal.

Each line of a content has a mark before it that no other line has, so that no content passes for an
answer of ours.
"""

import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from memories.answers.fields import MEMORY
from memories.answers.shapes import (
    HINT_CORRECTS,
    HINT_LEFT,
    HINT_SUSPICIOUS,
    hint_of,
    search_note,
    summarize,
)
from memories.answers.store_shapes import large_log
from memories.cli.output import colored, safe
from memories.core.ids import ID_LENGTH
from memories.core.times import describe_age, to_iso
from memories.core.urls import without_password
from memories.guard.origin import AGENT, Origin
from memories.models import PENDING, SHARED, History, Memory, Page, Status
from memories.settings import SETTINGS, Config

if TYPE_CHECKING:
    from memories.read.conversations import Conversation, ConversationPage
    from memories.read.turns import Turn
    from memories.search.results import Considered, Explanation, Hit
    from memories.transfer.doctor import Salvaged
    from memories.transfer.importing import Imported
    from memories.write.create import Created
    from memories.write.many import Affected
    from memories.write.review import Reviewed
    from memories.write.writer import Similar

MAX_SHOWN = 2_000
WAITS = "waits for review"
MAX_LOST = 100
SHORT_ID = 18  # the time and 12 random bits
MARK = "│ "  # before each line of a content
_LIKE_OURS = re.compile(r'[·│"=]|  ')
_WORDS = re.compile(r"\S+\s*|\s+")
_DIM, _BOLD, _GREEN, _YELLOW, _PLAIN = "\033[2m", "\033[1m", "\033[32m", "\033[33m", "\033[0m"


def memory(found: Memory) -> str:
    """Return a memory in full: the fields of `answers.fields` that have a label."""
    cells = {field.name: _cell(getattr(found, field.name)) for field in MEMORY if field.label}
    cells |= {
        "tags": _tags(found.tags) or "-",
        "decay_policy": f"{found.decay_policy}, confidence {found.confidence:.0%}",
        "updated_at": f"{_dated(found.updated_at)}, version {found.version}"
        if found.version > 1
        else "",
        "pending": _paint(_YELLOW, WAITS) if found.pending else "",
        "redacted": counted(found.redacted),
    }
    if found.accepted_at:
        cells["accepted_at"] += f" by {safe(found.accepted_by or '-')}"
    rows = [
        (field.label, cells[field.name]) for field in MEMORY if field.label and cells[field.name]
    ]
    return f"{_paint(_BOLD, marked(found.content))}\n{_table(rows)}"


def _cell(value: object) -> str:
    """Return the value of a field as a person reads it; empty if there is nothing to say."""
    if isinstance(value, datetime):
        return _dated(value)
    if isinstance(value, Origin):
        return _writer_in_full(value)
    return safe(", ".join(value) if isinstance(value, tuple) else str(value or ""))


def counted(kinds: Sequence[str]) -> str:
    """Return kinds of secrets, each with how often it is there."""
    return ", ".join(
        f"{kind} × {kinds.count(kind)}" if kinds.count(kind) > 1 else kind
        for kind in dict.fromkeys(kinds)
    )


def created(result: "Created") -> str:
    """Return what became of a create."""
    if result.memory is None:
        lines = [
            _paint(_YELLOW, "Not stored: very similar to" if result.duplicates else "Not stored:")
        ]
        lines += [
            _one(item.id, item.content, _alike(item, f"{item.similarity:.2f} similar"))
            for item in result.duplicates
        ]
        return "\n".join([*lines, safe(hint_of(result))])
    told = safe(hint_of(result))
    head = (
        _paint(_GREEN, "Stored")
        if result.stored
        else _paint(_YELLOW, f"{told[:1].upper()}{told[1:]}")
    )
    lines = [head, memory(result.memory)]
    if result.similar_to:
        told = "Similar memories; if it corrects one, delete that one:"
        linked = HINT_CORRECTS.format(
            id=safe(result.memory.id), corrects=safe(result.corrects or "")
        )
        lines.append(_paint(_YELLOW, f"S{linked[1:]}" if result.corrects else told))
        lines += [
            _one(item.id, item.content, _alike(item, item.difference)) for item in result.similar_to
        ]
    if result.note:
        lines.append(_paint(_YELLOW, safe(result.note)))
    return "\n".join(lines)


def deleted(found: Memory) -> str:
    """Return the answer to a delete."""
    return f"Deleted: {_short(found.content, 9)}\nTo bring it back: memory restore {safe(found.id)}"


def forget_question(history: History) -> str:
    """Return what a person is asked before a memory is forgotten."""
    count = len(history.versions)
    versions = f"{count} versions" if count > 1 else "1 version"
    return f"Forget for good ({versions}): {_short(history.versions[-1].content, 40)}"


def forget_many_question(planned: "Affected") -> str:
    """Return what a person is asked before many are forgotten."""
    first = "".join(f"\n  {_short(step.content, 2)}" for step in planned.steps[:3])
    return f"Forget {planned.counts['forget']} for good, such as:{first}\nAll of them?"


def affected(result: "Affected", undo: str | None, shown: int) -> str:
    """Return what was done to many, or would be."""
    would = "Would be done: " if result.dry_run else "Done: "
    lines = [
        f"{would}{summarize(result)}."
        if any(result.counts.values())
        else "Nothing meets it; nothing was changed."
    ]
    for step in result.steps[:shown]:
        reason = f" ({safe(step.reason)})" if step.reason else ""
        lines.append(
            f"  {step.action:<8}{_dim_id(step.id)}  {_short(step.content, 12 + SHORT_ID)}{reason}"
        )
    more = sum(result.counts.values()) - min(shown, len(result.steps))
    lines += [f"  and {more} more"] if more > 0 and any(result.counts.values()) else []
    lines += [f"To undo it: {undo}"] if undo else []
    return "\n".join(lines)


def _dim_id(name: str) -> str:
    return _paint(_DIM, safe(name[:SHORT_ID] if len(name) == ID_LENGTH else name))


def found(result: "Explanation", *, explain: bool) -> str:
    """Return the hits of a search."""
    head = (
        "\n\n".join(_hit(place, hit) for place, hit in enumerate(result.hits, 1))
        or "Nothing found."
    )
    if note := search_note(result):
        head += f"\n\n{_paint(_YELLOW, safe(note))}"
    if not explain:
        return head
    terms = ", ".join(map(safe, result.terms)) or "-"
    return "\n".join([head, "", f"words searched for: {terms}", *_considered(result.considered)])


def page(result: Page) -> str:
    """Return a page of memories."""
    if not result.memories:
        return "Nothing here."
    items = [_item(None, item, f"version {item.version}") for item in result.memories]
    more = [f"Next page: --cursor {result.next_cursor}"] if result.next_cursor else []
    return "\n\n".join([*items, *more])


def history(result: History) -> str:
    """Return every version of a memory."""
    blocks = [_paint(_DIM, safe(result.id))]
    for version in result.versions:
        until = (
            f", until {_dated(version.ended_at)} ({version.ended_by})"
            if version.ended_at
            else ", current"
        )
        if version.ended_by == PENDING:
            until = f", {WAITS}"
        if version.accepted_at:
            until += (
                f", accepted {_dated(version.accepted_at)} by {safe(version.accepted_by or '-')}"
            )
        by = f" by {_writer(version.origin)}" if version.origin else ""
        head = f"version {version.version}, {version.operation}{by}, {_dated(version.created_at)}{until}"
        head = _suspected(head, version.suspicious, ", ")
        tags = [f"  {_paint(_DIM, _tags(version.tags))}"] if version.tags else []
        blocks.append(
            "\n".join([_paint(_DIM, head), f"  {marked(version.content, indent='  ')}", *tags])
        )
    links = (
        (name, getattr(result, name))
        for name in ("supersedes", "superseded_by", "corrects", "corrected_by")
    )
    blocks += [
        f"{name.replace('superseded_', 'replaced ').replace('_', ' ')} {safe(at)}"
        for name, at in links
        if at
    ]
    return "\n\n".join(blocks)


def waiting(result: Page) -> str:
    """Return a page of what waits for review."""
    if not result.memories:
        return "Nothing waits for review."
    return f"{page(result)}\n\nTo decide: memory review accept ID…, edit ID, or reject ID…"


def accepted(done: "Sequence[Reviewed]", *, dry_run: bool) -> str:
    """Return what became of memories that were to be accepted."""
    lines = []
    for each in done:
        if each.done:
            other = (
                ""
                if each.memory.id == each.id
                else f"as {each.memory.id[:SHORT_ID]}, which has its key or says the same"
            )
            lines.append(_one(each.id, each.memory.content, other))
            lines += [
                _one(item.id, item.content, f"similar: {item.difference}")
                for item in each.similar_to
            ]
            continue
        lines.append(_one(each.id, each.memory.content, "left waiting"))
        lines += [
            _one(item.id, item.content, f"{item.similarity:.2f} similar")
            for item in each.duplicates
        ]
        hint = (HINT_LEFT if each.duplicates else HINT_SUSPICIOUS).format(id=each.id[:SHORT_ID])
        lines.append(f"  {_paint(_YELLOW, hint)}")
    count = sum(each.done for each in done)
    left = f", {len(done) - count} left waiting" if count < len(done) else ""
    return "\n".join([f"{'Would accept' if dry_run else 'Accepted'} {count}{left}.", *lines])


def rejected(done: "Sequence[Reviewed]", *, dry_run: bool) -> str:
    """Return which memories were rejected."""
    head = f"{'Would reject' if dry_run else 'Rejected'} {len(done)}; memory restore ID has one wait again."
    return "\n".join([head, *(_one(each.id, each.memory.content, "") for each in done)])


def tags(key: str | None, counts: Mapping[str, int]) -> str:
    """Return tag keys or values with counts."""
    if not counts:
        return "No tags." if key is None else f"No memory has the tag {safe(key)}."
    return _table((safe(name), f"{count:>6}") for name, count in counts.items())


def imported(done: "Imported", answer: Mapping[str, Any]) -> str:
    """Return what became of an import, given as its JSON too."""
    verb = "Would import" if answer["dry_run"] else "Imported"
    lines = [f"{verb} {done.imported} records; {done.known} were already there."]
    if answer["pending"]:
        wait = "would wait" if answer["dry_run"] else "wait"
        lines.append(
            f"{answer['pending']} memories {wait} for review, since nothing proves that this file is yours."
        )
    if "hint" in answer:
        lines.append(f"To decide: {answer['hint'].partition(': ')[2]}")
    if done.without_vector:
        lines.append(f"{done.without_vector} have no vector; memory reembed adds them.")
    if done.conflict_count:
        lines.append(f"{done.conflict_count} conflict with what is there and were left out:")
    lines += [
        f"  line {line}: {ref.collection} {ref.group} ({ref.position}) of {ref.namespace}: {reason}"
        for line, ref, reason in done.conflicts
    ]
    return "\n".join(map(safe, lines))


def backed_up(answer: Mapping[str, Any]) -> str:
    """Return where a backup is."""
    lines = [f"Backed up and verified: {answer['records']} records in {answer['backup']}."]
    lines += [f"Removed {file}" for file in answer["removed"]]
    return "\n".join(map(safe, lines))


def restored(answer: Mapping[str, Any]) -> str:
    """Return what a restore did, and where the store from before is."""
    made = f", made at {answer['made_at']}" if answer["made_at"] else ""
    lines = [f"Restored and verified: {answer['records']} records from {answer['restored']}{made}."]
    if answer["without_vector"]:
        lines.append(f"{answer['without_vector']} have no vector; memory reembed adds them.")
    if answer["kept"]:
        lines.append(
            f"The store from before is kept as {answer['kept']}; remove it when you no longer need it."
        )
    return "\n".join(map(safe, lines))


def examined(answer: Mapping[str, Any]) -> str:
    """Return what an examination found, first what is wrong."""
    findings = answer["findings"]
    lines = [
        _paint(_YELLOW, f"{len(findings)} things are wrong:")
        if findings
        else _paint(_GREEN, "Nothing is wrong.")
    ]
    for number, finding in enumerate(findings, 1):
        lines.append(f"{number:>2}  {safe(finding['what'])}")
        lines += [f"    {_paint(_DIM, safe(finding['remedy']))}"] if finding["remedy"] else []
    lines += [f"Repaired: {safe(what)}" for what in answer.get("repaired", ())]
    lines += (
        [f"The store from before is in {safe(answer['backup'])}"] if answer.get("backup") else []
    )
    facts = [
        (name.replace("_", " "), value)
        for name, value in answer.items()
        if name not in _OF_FINDINGS
    ]
    return "\n".join(
        [
            *lines,
            _table((name, safe(_plainly(value))) for name, value in facts if value is not None),
        ]
    )


_OF_FINDINGS = ("status", "findings", "repaired", "backup")


def _plainly(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {part}" for name, part in value.items()) or "-"
    return (", ".join(map(str, value)) or "-") if isinstance(value, list) else str(value)


def salvaged(done: "Salvaged", file: str) -> str:
    """Return what could be saved, and what not."""
    lines = [f"Saved {done.saved} records to {file}; memory restore reads it."]
    if done.lost:
        lines.append(f"{len(done.lost)} could not be saved:")
    for what, ref in done.lost[:MAX_LOST]:
        lines.append(
            f"  {what}"
            + (
                f" ({ref.collection} {ref.group} ({ref.position}) of {ref.namespace})"
                if ref
                else ""
            )
        )
    lines += ["  …"] if len(done.lost) > MAX_LOST else []
    return "\n".join(map(safe, lines))


def migrated(answer: Mapping[str, Any]) -> str:
    """Return what a migration did, and how to go on."""
    counts = ", ".join(
        f"{count} of {collection}" for collection, count in answer["records"].items()
    )
    lines = [f"Copied and verified: {counts}; {answer['copied']} new, {answer['changed']} changed."]
    if answer["without_vector"]:
        lines.append(f"{answer['without_vector']} have no vector; memory reembed adds them.")
    return "\n".join(
        [*lines, f"To use the copy: {answer['switch']}", f"To go back: {answer['go_back']}"]
    )


def status(found: Status, problem: str) -> str:
    """Return the state of a memory that answered, and what is wrong with it, if anything."""
    log = large_log(found)
    created = "" if found.schema_version else " (not created yet; the first memory creates it)"
    rows = [
        ("status", f"unhealthy: {safe(problem)}" if problem else _paint(_GREEN, "healthy")),
        ("store", safe(found.store) + ("" if problem else created)),
        ("memories", f"{found.memory_count} in {', '.join(found.namespaces_read)}"),
        ("turns", str(found.turn_count) if found.turn_count else ""),
        ("deleted", str(found.deleted_count)),
        (
            "pending",
            f"{found.pending_count}; to decide: memory review" if found.pending_count else "",
        ),
        (
            "no vector",
            f"{found.without_vector_count} (found by words only)"
            if found.without_vector_count
            else "",
        ),
        ("embedder", found.embedder),
        (
            "size",
            ""
            if found.size_bytes is None
            else f"{found.size_bytes / 1e6:.1f} MB{', compact' * found.compact}",
        ),
        (
            "log",
            f"{log / 1e6:.1f} MB; it grows while some process reads without end: end that one"
            if log
            else "",
        ),
        ("access", "read only" if found.read_only else ""),
        (
            "erasing",
            "a forgotten memory still has bytes on disk; forget it again" if found.erasing else "",
        ),
    ]
    return _table((name, value) for name, value in rows if value)


def config(found: Config) -> str:
    """Return every setting."""
    rows = [
        (
            name,
            f"{'-' if value is None else safe(without_password(str(value)))}  {_paint(_DIM, f'({source})')}",
        )
        for name, value, source in (
            (setting.name, getattr(found, setting.name), found.sources[setting.name])
            for setting in SETTINGS
        )
    ]
    return _table(rows)


def turns(said: "Sequence[Turn]") -> str:
    """Return turns in order."""
    return "\n\n".join(_said(None, turn, "") for turn in said) or "Nothing here."


def added_one(said: "Turn") -> str:
    """Return what became of a turn that was added."""
    if said.status == "stored":
        return turns([said])
    told = (
        "Nothing was stored: its message id is that of this turn."
        if said.reason
        else "Known already: not stored again."
    )
    return f"{turns([said])}\n{told}"


def added(said: "Sequence[Turn]") -> str:
    """Return what became of many turns that were added to a conversation."""
    if not said:
        return "No turns."
    counts = Counter(turn.status for turn in said)
    redacted = counted([kind for turn in said for kind in turn.redacted])
    stored = max((turn.index for turn in said if turn.status == "stored"), default=None)
    last = "." if stored is None else f"; the last one has index {stored}."
    lines = [
        f"Added {counts['stored']} turns{last}"
        + (f" Taken out before: {redacted}." if redacted else "")
    ]
    lines += [f"Known already: {counts['known']}."] if counts["known"] else []
    lines += [f"Refused: {safe(turn.reason)}." for turn in said if turn.reason]
    return "\n".join(lines)


def conversations(found: "ConversationPage") -> str:
    """Return a page of conversations."""
    if not found.conversations:
        return "Nothing here."
    rows = _table((_name(each.id), _described(each)) for each in found.conversations)
    return rows + (
        f"\n\nNext page: --cursor {safe(found.next_cursor)}" if found.next_cursor else ""
    )


def conversation(each: "Conversation") -> str:
    """Return a conversation as a listing shows it."""
    return _table([(_name(each.id), _described(each))])


def _described(each: "Conversation") -> str:
    """Return what is told of a conversation beside its name."""
    waiting = f"{each.waiting_count} wait to be stored" if each.waiting_count else ""
    when = f"{each.turn_count:>6} turns, {to_iso(each.first_at)[:10]} to {_dated(each.last_at)}"
    named = [(name, value) for name, value in (("title", each.title), ("user", each.user)) if value]
    about = " ".join(f"{name}={_name(value)}" for name, value in named)
    return " · ".join(part for part in (when, waiting, about, _tags(each.tags)) if part)


# --- parts
# -----------------------------------------------------------------------------------------------------------


def _hit(place: int, hit: "Hit") -> str:
    similar = "" if hit.similarity is None else f" · similarity {hit.similarity:.2f}"
    what = f"score {hit.score:.2f}{similar}"
    return (
        _item(place, hit.found, what)
        if isinstance(hit.found, Memory)
        else _said(place, hit.found, what)
    )


def _said(place: int | None, turn: "Turn", what: str) -> str:
    """Return a turn: what was said, and by whom, when and where."""
    said = f"{_name(turn.speaker or turn.role)} in {_name(turn.conversation_id)}"
    by = f"stored by {_writer(turn.origin)}" if turn.origin else ""
    part = (
        f"part {turn.part} of {turn.parts}"
        if turn.part
        else "waits to be stored"
        if turn.waiting
        else ""
    )
    details = [
        what,
        part,
        _suspected("", turn.suspicious),
        said,
        _dated(turn.created_at),
        _tags(turn.tags),
        by,
    ]
    return _block(place, turn.content, " · ".join(part for part in details if part), turn.id)


def _block(place: int | None, content: str, details: str, name: str) -> str:
    mark = "" if place is None else f"{place:>2}  "
    indent = " " * len(mark)
    cut = content if len(content) <= MAX_SHOWN else f"{content[:MAX_SHOWN]}…"
    said = _paint(_BOLD, marked(cut, indent))
    known = f"\n{indent}    ".join(_folded(safe(details), len(indent) + 4))
    return f"{mark}{said}\n{indent}{_paint(_DIM, known)}\n{indent}{_paint(_DIM, safe(name))}"


def _item(place: int | None, found: Memory, what: str) -> str:
    """Return a memory in two lines: what it says, and what is known of it."""
    faded = "" if found.confidence >= 0.995 else f"confidence {found.confidence:.0%}"
    where = "" if found.namespace == SHARED else f"in {found.namespace}"
    by = f"by {_writer(found.origin)}" if found.origin else ""
    known = [
        f"corrected by {safe(found.corrected_by)[:SHORT_ID]}" if found.corrected_by else "",
        what,
        _suspected("", found.suspicious),
        faded,
        describe_age(found.updated_at, datetime.now(UTC)),
        by,
        _tags(found.tags),
        where,
    ]
    if found.pending:  # what it would do if it were accepted
        key = f"key {safe(found.key)}" if found.key else ""
        known += [WAITS, key, f"supersedes {found.supersedes}" if found.supersedes else ""]
    return _block(
        place, found.content, " · ".join(part for part in known if part), found.id[:SHORT_ID]
    )


def _writer(origin: Origin) -> str:
    """Return who wrote something, and how far that is trusted if it is not an agent."""
    return _name(origin.by) + ("" if origin.trust == AGENT else f" ({origin.trust})")


def _writer_in_full(origin: Origin | None) -> str:
    if origin is None:
        return ""
    where = f"{origin.user}@{origin.host}, namespace {origin.namespace}, memories {origin.program}"
    return safe(
        f"{origin.by} ({origin.trust}) by {origin.channel}: {f'{origin.client}, ' if origin.client else ''}{where}"
    )


def _alike(found: "Similar", what: str) -> str:
    by = f"{what}, by {_writer(found.origin)}" if found.origin else what
    return _suspected(by, found.suspicious)


def _suspected(what: str, suspicious: Sequence[str], between: str = " · ") -> str:
    """Return a remark with the names of the rules that a text met, which says that it may give
    orders to a model.
    """
    return between.join(
        filter(None, [what, f"suspicious: {', '.join(suspicious)}" if suspicious else ""])
    )


def _one(memory_id: str, content: str, what: str) -> str:
    why = _paint(_DIM, f"({safe(what)})") if what else ""
    return f"  {safe(memory_id[:SHORT_ID])}  {_short(content, SHORT_ID + 4)}  {why}".rstrip()


def _considered(items: "Iterable[Considered]") -> list[str]:
    """Return the table of candidates and their numbers; columns that say nothing of any are left
    out.
    """
    rows = list(items)
    names = [
        name
        for name in (rows[0].features if rows else ())
        if any(row.features[name] for row in rows)
    ]
    heads = [name.replace("similarity", "sim.").replace("_", " ") for name in names]
    widths = [max(7, len(head) + 2) for head in heads]
    lines = [
        "score".rjust(7)
        + "".join(head.rjust(width) for head, width in zip(heads, widths, strict=True))
    ]
    for row in rows:
        values = [row.features[name] for name in names]
        numbers = ["-" if value is None else f"{value:.3g}" for value in values]
        numbers = [number.rjust(width) for number, width in zip(numbers, widths, strict=True)]
        lines.append(f"{row.score:>7.4f}{''.join(numbers)}  {_short(row.content, 9 + sum(widths))}")
        if row.dropped:
            lines.append(f"{'':>7}  {_paint(_YELLOW, f'dropped: {row.dropped}')}")
    return lines if rows else []


def _table(rows: Iterable[tuple[str, str]]) -> str:
    kept = list(rows)
    width = max((_width(name) for name, _ in kept), default=0)
    return "\n".join(
        f"{_paint(_DIM, name)}{' ' * (width - _width(name))}  {value}" for name, value in kept
    )


def _width(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _tags(tags: Mapping[str, str]) -> str:
    return " ".join(f"{_name(key)}={_name(value)}" for key, value in tags.items())


def _name(text: str) -> str:
    """Return a name or the value of a tag; in quotes if it could be taken for more than that."""
    shown = safe(text)
    return f'"{shown}"' if _LIKE_OURS.search(shown) else shown


def _dated(moment: datetime) -> str:
    offset = moment.strftime("%z")
    zone = f"{offset[:3]}:{offset[3:5]}" if moment.utcoffset() else "UTC"
    return f"{moment.isoformat()[:16].replace('T', ' ')} {zone} ({describe_age(moment, datetime.now(UTC))})"


def _short(text: str, taken: int) -> str:
    """Return the beginning of a text for a line of which something else takes some columns."""
    first = next(iter(_folded(safe(" ".join(text[:400].split())), taken + 1, most=80)))
    return first if len(first) == len(safe(" ".join(text.split()))) else f"{first}…"


def marked(text: str, indent: str = "") -> str:
    """Return a content in lines of which each has a mark before it, and all but the first one the
    indent.

    They are cut before the terminal would do so, which would put what follows where a line of ours
    begins.
    """
    taken = len(indent) + len(MARK)
    lines = [
        f"{MARK}{part}".rstrip()
        for line in text.removesuffix("\n").split("\n")
        for part in _folded(safe(line), taken)
    ]
    return f"\n{indent}".join(lines)


def _folded(line: str, taken: int, most: int = 100) -> list[str]:
    """Return a line in parts that fit on the terminal beside the columns that are taken."""
    width = max(8, min(most, shutil.get_terminal_size().columns) - taken)
    words = (
        piece
        for word in _WORDS.findall(line)
        for piece in ([word] if _width(word) <= width else word)
    )
    parts, part, used = [], "", 0
    for word in words:
        if part and used + _width(word.rstrip()) > width:
            parts.append(part.rstrip())
            part, used = "", 0
        part += word if part or not parts else word.lstrip()
        used = _width(part)
    return [*parts, part.rstrip()]


def _paint(code: str, text: str) -> str:
    return f"{code}{text}{_PLAIN}" if colored(sys.stdout) and text else text
