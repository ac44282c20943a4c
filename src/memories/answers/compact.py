"""Compact output for models: one line per memory or turn, or only chosen fields.

    11-22 claude:
    01a1fdf1 Deploys happen on Tuesdays
    01a1f9c0 The user prefers tabs
    2025-06-12 Ann [suspicious]:
    standup#3 We ship on Friday

The first word of a line is the id of the memory or turn. A heading shows the day, the writer and
anything unusual, and applies to all lines until the next heading. Continuation lines of a text
begin with a space, so that no text can pass for a heading or an id.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.answers.advice import complete_commands
from memories.answers.fields import NAMES, SIMILAR_CHARACTERS, cut
from memories.errors import InvalidInput
from memories.guard.origin import CAPTURED, IMPORTED
from memories.guard.validate import shown
from memories.languages import escape_code, make_visible
from memories.models import SHORT_ID, Memory, corrected_ids, is_global

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Version
    from memories.read.turns import Turn
    from memories.scratchpad.entries import Entry
    from memories.search.results import Hit
    from memories.write.create import Created
    from memories.write.similar import Similar

NOTHING = "nothing found"
MAX_SHOWN = 2_000  # maximum number of characters per text, if there are several texts
_PLAIN = re.compile(r"[^\s:\[\]\"]+")  # a name that needs no quotes
_NESTED = ("tags", "origin")


class UnknownIds(NamedTuple):
    """Shortens ids to a fixed length, for responses that don't come from a store."""

    def short_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """Return a prefix of each id, long enough that few other ids share it."""
        return {memory_id: memory_id[:SHORT_ID] for memory_id in ids}


def hits(shortener: "Memories | UnknownIds", results: "Sequence[Hit]", note: str = "") -> str:
    """Return a search's hits, best first."""
    return page(shortener, [hit.found for hit in results], note=note)


def page(
    shortener: "Memories | UnknownIds",
    records: "Sequence[Memory | Turn]",
    cursor: str | None = None,
    note: str = "",
) -> str:
    """Return a page of a listing, with a note below it, if there is one."""
    names = shortener.short_ids([record.id for record in records if isinstance(record, Memory)])
    lines = [*_lines(records, names)]
    if note:
        lines.append(f"note: {_one_line(note)}")
    if cursor:
        lines.append(f"next: --cursor {_one_line(cursor)}")
    return "\n".join(lines) or NOTHING


def memory(shortener: "Memories", record: Memory) -> str:
    """Return one memory in full."""
    return "\n".join(_lines([record], shortener.short_ids([record.id]), limit=None))


def scratchpad(entries: "Iterable[Entry]", namespace: str) -> str:
    """Return a namespace's scratchpad."""
    return "\n".join(_scratchpad_entry(entry, namespace) for entry in entries) or NOTHING


def _scratchpad_entry(entry: "Entry", namespace: str) -> str:
    marks = []
    if entry.pinned:
        marks.append("pinned")
    if entry.suspicious:
        marks.append("suspicious")
    if entry.namespace != namespace:
        marks.append(entry.namespace)
    prefix = f"[{', '.join(marks)}] " if marks else ""
    return f"{_name(entry.id[:SHORT_ID])} {prefix}{_content(entry.content, MAX_SHOWN)}"


def create_result(shortener: "Memories", created: "Created") -> str:
    """Return the result of creating a memory, with the memories that resemble it."""
    similar = [*created.duplicates, *created.similar_to]
    ids = [record.id for record in similar]
    if created.memory is not None:
        ids.append(created.memory.id)
    names = shortener.short_ids(ids)
    if created.memory is None:
        head = f"not stored: {created.note or 'duplicate'}"
    else:
        outcome = "stored" if created.stored else "known"
        head = f"{outcome} {_name(names[created.memory.id])}"
        if created.stored and created.memory.anchors:
            head += f" [anchors: {_one_line(', '.join(created.memory.anchors))}]"
    rows = [
        f"{_name(names[record.id])} {record.similarity:.2f}: {_content(record.content)}"
        for record in created.duplicates
    ]
    others = created.replaceable
    if created.corrects and created.memory is not None:
        all_corrected = corrected_ids(created.memory)
        name, corrected = names[created.memory.id], names.get(created.corrects, created.corrects)
        head += f" corrects {' and '.join(_name(names.get(each, each)) for each in all_corrected)}"
        update = complete_commands("memory update")
        rows.append(f"if both are true: {update} {_name(name)} --not-corrects {_name(corrected)}")
        rows += _similar(
            [record for record in created.similar_to if record.id in all_corrected], names
        )
    if others:
        rows.append("if the new memory replaces or repeats one of these, add --supersedes ID:")
        rows += _similar(others, names)
    if created.memory is not None and created.note:
        rows.append(f"note: {_one_line(created.note)}")
    return "\n".join([head, *rows])


def _similar(records: "Sequence[Similar]", names: Mapping[str, str]) -> list[str]:
    rows: list[str] = []
    for record in records:
        content = cut(record.content, SIMILAR_CHARACTERS // len(records))
        rows.append(f"{_name(names[record.id])} {_escaped(content)}")
    return rows


def add_turns_result(turns: "Sequence[Turn]") -> str:
    """Return the result of adding turns."""
    return "\n".join(f"{turn.status} {_name(turn.id)}" for turn in turns)


def versions(records: "Sequence[Version]") -> str:
    """Return a memory's versions, oldest first, each under its number."""
    now = datetime.now(UTC)
    lines = []
    for record in records:
        lines.append(f"{_day(record.created_at, now)} {_name(_writer(record))}:")
        lines.append(f"{record.version} {_content(record.content)}")
    return "\n".join(lines)


def _lines(
    records: "Sequence[Memory | Turn]", names: Mapping[str, str], limit: int | None = MAX_SHOWN
) -> Iterator[str]:
    """Yield a line for each record, and a heading before it wherever the heading changes."""
    now = datetime.now(UTC)
    head_above = ""
    for record in records:
        if isinstance(record, Memory):
            name = names[record.id]
            head = _head(record.stated_at, now, _writer(record), _marks(record))
        else:
            name = f"{record.conversation_id}#{record.index}"
            marks = ["suspicious"] if record.suspicious else []
            head = _head(record.created_at, now, record.speaker or record.role, marks)
        if head != head_above:
            yield head
        head_above = head
        yield f"{_name(name)} {_content(record.content, limit)}"


def _head(moment: datetime, now: datetime, writer: str, marks: Sequence[str]) -> str:
    remark = f" [{', '.join(marks)}]" if marks else ""
    return f"{_day(moment, now)} {_name(writer)}{remark}:"


def _writer(record: "Memory | Version") -> str:
    return record.origin.by if record.origin else "?"


def _marks(record: Memory) -> list[str]:
    """Return marks for a memory's unusual properties, such as `pending`."""
    marks = []
    if record.origin is not None and record.origin.trust in (CAPTURED, IMPORTED):
        marks.append(record.origin.trust)
    if record.suspicious:
        marks.append("suspicious")
    if is_global(record.tags):
        marks.append("global")
    if record.confidence < 0.995:
        marks.append(f"{record.confidence:.0%}")
    if record.pending:
        marks.append("pending")
    if record.deleted:
        marks.append("deleted")
    if record.verdict:
        marks.append(_escaped(record.verdict.describe()))
    if record.corrected_by:
        marks.append(f"corrected by {_name(record.corrected_by[:SHORT_ID])}")
    return marks


def _day(moment: datetime, now: datetime) -> str:
    """Return the day in UTC, without the year if it is the current year."""
    day = moment.astimezone(UTC).date().isoformat()
    return day[5:] if day[:4] == f"{now.year:04}" else day


def _name(text: str) -> str:
    """Return a name as one word, quoted if it could be mistaken for something else."""
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    return _escaped(json.dumps(text, ensure_ascii=False))


def _content(text: str, limit: int | None = None) -> str:
    if limit is not None and len(text) > limit:
        text = f"{text[:limit]}… ({limit} of {len(text)} characters)"
    return "\n ".join(map(_escaped, text.split("\n")))


def _one_line(text: str) -> str:
    return _escaped(" ".join(text.split("\n")))


def _escaped(text: str) -> str:
    return make_visible(text, escape_code, keep="\t")


# --- chosen fields ---


def parse_fields(text: str) -> list[str]:
    """Return field names from a comma-separated list.

    Raises:
        InvalidInput: A name in the list does not match any field.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        field, dot, _ = name.partition(".")
        if field not in NAMES or (dot and field not in _NESTED):
            known = ", ".join(sorted(NAMES))
            raise InvalidInput(f'there is no field "{shown(name)}"; use {known}, tags.KEY')
    return names


def select_fields(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return only the named fields of a response, with None for missing ones.

    `tags.KEY` selects a tag, and `origin.NAME` a part of the origin.
    """
    selected = {}
    for name in names:
        field, dot, part = name.partition(".")
        value = answer.get(field)
        selected[name] = (value or {}).get(part) if dot else value
    return selected


def row(answer: Mapping[str, Any]) -> str:
    """Return fields on one line, separated by tabs; tabs and line breaks in values are escaped."""
    return "\t".join(map(_cell, answer.values()))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return _escaped(json.dumps(value, ensure_ascii=False))
    for sign, escape in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        value = value.replace(sign, escape)
    return _escaped(value)
