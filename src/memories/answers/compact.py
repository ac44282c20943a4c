"""Answers for models, with few characters beside the texts: a line for each memory or turn, or
chosen fields of it.

    11-22 claude:
    01a1fdf1 Deploys happen on Tuesdays
    01a1f9c0 The user prefers tabs
    2025-06-12 Ann [suspicious]:
    standup#3 We ship on Friday

The first word of a line names the memory or turn. Above it stand its day, who wrote it, and what is
unusual; that holds until the next such head. A text of several lines goes on in lines that begin
with a blank, so none passes for ours.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.answers.fields import NAMES
from memories.errors import InvalidInput
from memories.guard.origin import CAPTURED, IMPORTED
from memories.guard.validate import shown
from memories.languages import unseen
from memories.models import Memory

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Version
    from memories.read.turns import Turn
    from memories.scratchpad.entries import Entry
    from memories.search.results import Hit
    from memories.write.create import Created

NOTHING = "nothing found"
MAX_SHOWN = 2_000  # characters of one of several; one that is asked for by itself is shown whole
_PLAIN = re.compile(r"[^\s:\[\]\"]+")  # a name that can't be taken for more than that
_USUAL = 18  # characters of an id that is not looked up
_NESTED = ("tags", "origin")


class Named(NamedTuple):
    """Names memories by their ids alone, where no store can be asked which beginnings are
    enough.
    """

    def short_ids(self, ids: Sequence[str]) -> dict[str, str]:
        """Return for each id a beginning that few others share."""
        return {name: name[:_USUAL] for name in ids}


def hits(memories: "Memories | Named", found: "Sequence[Hit]", note: str = "") -> str:
    """Return the hits of a search, best first."""
    return _page(
        memories, [each.found for each in found], [f"note: {_one_line(note)}"] if note else []
    )


def page(memories: "Memories", found: "Sequence[Memory | Turn]", cursor: str | None = None) -> str:
    """Return a page of a listing."""
    return _page(memories, found, [f"next: --cursor {_one_line(cursor)}"] if cursor else [])


def one(memories: "Memories", found: Memory) -> str:
    """Return a memory as a whole."""
    return "\n".join(_lines([found], memories.short_ids([found.id]), most=None))


def entry(found: "Entry", namespace: str) -> str:
    """Return an entry of a scratchpad."""
    marks = ["pinned"] if found.pinned else []
    marks += ["suspicious"] if found.suspicious else []
    marks += [found.namespace] if found.namespace != namespace else []
    told = f"[{', '.join(marks)}] " if marks else ""
    return f"{_name(found.id[:_USUAL])} {told}{_content(found.content, MAX_SHOWN)}"


def created(memories: "Memories", result: "Created") -> str:
    """Return what became of a create, with what it resembles."""
    alike = [*result.duplicates, *result.similar_to]
    names = memories.short_ids(
        [each.id for each in alike] + ([result.memory.id] if result.memory else [])
    )
    head = f"not stored: {result.note or 'duplicate'}"
    if result.memory is not None:
        head = f"{'stored' if result.stored else 'known'} {_name(names[result.memory.id])}"
    if result.corrects:
        head += f" corrects {_name(names.get(result.corrects, result.corrects))}"
    rows = [
        f"{_name(names[each.id])} {each.similarity:.2f}: {_content(each.content)}" for each in alike
    ]
    return "\n".join([head, *rows])


def versions(found: "Sequence[Version]") -> str:
    """Return the versions of a memory, oldest first, each with its number in the place of a
    name.
    """
    now = datetime.now(UTC)
    return "\n".join(
        f"{_day(each.created_at, now)} {_name(each.origin.by if each.origin else '?')}:\n"
        f"{each.version} {_content(each.content)}"
        for each in found
    )


def _page(
    memories: "Memories | Named", found: "Sequence[Memory | Turn]", last: Sequence[str]
) -> str:
    names = memories.short_ids([each.id for each in found if isinstance(each, Memory)])
    return "\n".join([*_lines(found, names), *last]) or NOTHING


def _lines(
    found: "Sequence[Memory | Turn]", names: Mapping[str, str], most: int | None = MAX_SHOWN
) -> Iterator[str]:
    """Yield a line for each, and a head where it is another one than that above."""
    now, above = datetime.now(UTC), ""
    for each in found:
        if isinstance(each, Memory):
            name, at, by = names[each.id], each.updated_at, each.origin.by if each.origin else "?"
            marks = list(_marks(each))
        else:
            name, at, by = (
                f"{each.conversation_id}#{each.index}",
                each.created_at,
                each.speaker or each.role,
            )
            marks = ["suspicious"] if each.suspicious else []
        told = f" [{', '.join(marks)}]" if marks else ""
        head = f"{_day(at, now)} {_name(by)}{told}:"
        if head != above:
            yield head
        above = head
        yield f"{_name(name)} {_content(each.content, most)}"


def _marks(found: Memory) -> Iterable[str]:
    """Yield what is unusual about a memory."""
    if found.origin is not None and found.origin.trust in (CAPTURED, IMPORTED):
        yield found.origin.trust
    if found.suspicious:
        yield "suspicious"
    if found.tags.get("global", "").lower() == "true":
        yield "global"
    if found.confidence < 0.995:
        yield f"{found.confidence:.0%}"
    for name in ("pending", "deleted"):
        if getattr(found, name):
            yield name
    if found.corrected_by:
        yield f"corrected by {_name(found.corrected_by[:_USUAL])}"


def _day(moment: datetime, now: datetime) -> str:
    """Return the day of a time in UTC, without the year if it is this one."""
    day = moment.astimezone(UTC).date().isoformat()
    return day[5:] if day[:4] == f"{now.year:04}" else day


def _name(text: str) -> str:
    """Return a name as one word that nothing else can be taken for."""
    return (
        text
        if _PLAIN.fullmatch(text) and text.isprintable()
        else _escaped(json.dumps(text, ensure_ascii=False))
    )


def _content(text: str, most: int | None = None) -> str:
    cut = (
        text
        if most is None or len(text) <= most
        else f"{text[:most]}… ({most} of {len(text)} characters)"
    )
    return "\n ".join(map(_escaped, cut.split("\n")))


def _one_line(text: str) -> str:
    return _escaped(" ".join(text.split("\n")))


def _escaped(text: str) -> str:
    return unseen.shown(text, lambda sign: f"\\u{{{ord(sign):x}}}", keep="\t")


# --- chosen fields
# ---------------------------------------------------------------------------------------------------


def fields_of(given: str) -> list[str]:
    """Return the names of fields that were given with commas between them.

    Raises:
        InvalidInput: There is no such field.
    """
    names = [name.strip() for name in given.split(",")]
    for name in names:
        whole, dot, _ = name.partition(".")
        if whole not in NAMES or (dot and whole not in _NESTED):
            raise InvalidInput(
                f'there is no field "{shown(name)}"; use {", ".join(sorted(NAMES))}, tags.KEY'
            )
    return names


def chosen(shape: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return these fields of an answer, null where it has none; `tags.KEY` is one tag,
    `origin.NAME` a part of that.
    """
    return {name: _field(shape, name) for name in names}


def _field(shape: Mapping[str, Any], name: str) -> Any:
    whole, dot, part = name.partition(".")
    value = shape.get(whole)
    return (value or {}).get(part) if dot else value


def row(shape: Mapping[str, Any]) -> str:
    """Return fields on one line with tabs between them; tabs, line ends and backslashes in them are
    written `\\t` ….
    """
    return "\t".join(map(_cell, shape.values()))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return _escaped(json.dumps(value, ensure_ascii=False))
    plain = (
        value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    )
    return _escaped(plain)
