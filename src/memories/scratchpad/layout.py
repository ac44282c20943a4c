"""How a scratchpad is written: YAML that a person can read and edit, of which programs write and
read a small part.

A file that only programs wrote is read line by line here: each value is a JSON value on one line,
which YAML reads as well. What a person has written otherwise is read by a YAML parser, without
anchors, aliases, tags and deep nesting.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memories.errors import InvalidInput
from memories.languages import unseen
from memories.models import DecayPolicy
from memories.scratchpad.entries import Entry
from memories.scratchpad.file import check, is_edited

FORMAT = 1
_LINE = re.compile(r"(- |  )?([a-z_]+):(?: (.*))?")
_LONG = re.compile(r'\\(?:U([0-9a-fA-F]{8})|["\\/bfnrtu])')
_BARE = re.compile(r'- ("(?:[^"\\]|\\.)*")')
_TEXTS = (
    "id",
    "content",
    "written",
    "created",
    "by",
    "trust",
    "suspicious",
    "aging_from",
    "reinforced",
)
_OPTIONAL = ("key", "decay")
_IF_ANY = ("key", "tags", "decay", "aging_from", "reinforced", "suspicious", "cut")
_HEAD = """\
# The scratchpad of {namespace}: what its sessions begin with. You may edit this file.
# - Change a content, and the memory gets a new version. Set pinned to true to keep an entry here, or to false.
# - Take an entry out, and it is left out here; the memory stays. memory delete or memory forget removes it.
# - Add a line such as   - "One statement"   under memories, and it becomes a memory.
# The next memory command takes it over. memory scratchpad rebuild writes this file anew from the store.
"""


class Pad(NamedTuple):
    """What a scratchpad's file says.

    Attributes:
        namespace: Whose it is.
        store: The store that it mirrors, without a password.
        stamp: See `Place`.
        size: How many entries were chosen at most.
        waiting: How many memories waited for review.
        written: When it was brought up to date with the store, ISO 8601; empty if it never was.
        entries: What it holds.
        left_out: Ids that a person has taken out.
        gone: Ids and versions, `id@3`, that were deleted or replaced lately: what says so late is
            not added again.
        held: The ids that it held when a program wrote it.
        edited: Whether it was changed since.
        spans: For each entry, its first line and the line behind its last.
    """

    namespace: str
    store: str
    stamp: str = ""
    size: int = 0
    waiting: int = 0
    written: str = ""
    entries: tuple[Entry, ...] = ()
    left_out: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    edited: bool = False
    spans: tuple[tuple[int, int], ...] = ()


def render(pad: Pad) -> str:
    """Return the text of a scratchpad's file."""
    rows = [_HEAD.format(namespace=pad.namespace)]
    rows += [
        f"{name}: {_value(value)}\n"
        for name, value in (
            ("scratchpad", FORMAT),
            ("namespace", pad.namespace),
            ("store", pad.store),
            ("stamp", pad.stamp),
            ("size", pad.size),
            ("waiting", pad.waiting),
            ("written", pad.written),
        )
    ]
    rows.append("memories:\n" if pad.entries else "memories: []\n")
    rows += map(_item, pad.entries)
    rows.append("# For programs; leave these lines as they are.\n")
    held = " ".join(entry.id for entry in pad.entries)
    rows += [
        f"{name}: {_value(value)}\n"
        for name, value in (
            ("left_out", " ".join(pad.left_out)),
            ("gone", " ".join(pad.gone)),
            ("held", held),
        )
    ]
    text = "".join(rows)
    return f'{text}check: "{check(text)}"\n'


def parse(text: str, what: str) -> Pad:
    """Read the text of a scratchpad's file.

    Args:
        text: The text, with `\\n` as its line ends.
        what: What it is, for messages: the path of the file.

    Raises:
        InvalidInput: It can't be read; the message says where.
    """
    read = _lines(text)
    if read is None:
        from memories.scratchpad.byhand import (
            read as read_yaml,
        )  # which costs more than all the rest

        try:
            read = read_yaml(text)
        except ValueError as exc:
            raise InvalidInput(f"{what} can't be read: {exc}; {_CURE}") from None
    head_values, items, spans = read
    if str(head_values.get("scratchpad")) != str(FORMAT):
        raise InvalidInput(
            f"{what} is no scratchpad of this program: it has no line scratchpad: {FORMAT}; {_CURE}"
        )
    entries = tuple(
        _entry(item, f"{what}, line {span[0] + 1},")
        for item, span in zip(items, spans, strict=True)
    )
    names = [entry.id for entry in entries if entry.id]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(
            f"{what} has two entries with the id {unseen.shown(twice, _escape)[:64]}; {_CURE}"
        )
    texts = {
        name: str(head_values.get(name) or "")
        for name in ("namespace", "store", "stamp", "written")
    }
    lists = {
        name: tuple(str(head_values.get(name) or "").split())
        for name in ("left_out", "gone", "held")
    }
    numbers = {name: _number(head_values.get(name), name, what) for name in ("size", "waiting")}
    said: dict[str, Any] = {**texts, **lists, **numbers}
    return Pad(**said, entries=entries, edited=is_edited(text), spans=tuple(spans))


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return a text without these spans of lines."""
    rows = text.split("\n")
    for first, behind in sorted(spans, reverse=True):
        del rows[first:behind]
    return "\n".join(rows)


def without_ids(text: str, ids: Sequence[str]) -> str:
    """Return a text that can't be read without the parts that name these ids: each from its `- ` to
    the next.
    """
    kept: list[str] = []
    part: list[str] = []
    for row in [*text.split("\n"), None]:
        if row is None or row.startswith("- ") or (row[:1].strip() and not row.startswith("#")):
            kept += [] if any(name in line for line in part for name in ids) else part
            part = []
        if row is not None:
            part.append(row)
    return "\n".join(kept)


_CURE = "correct it, or remove the file: nothing is lost but what you wrote in it"


# --- writing
# ---------------------------------------------------------------------------------------------------------


def _item(entry: Entry) -> str:
    known: dict[str, Any] = {
        "id": entry.id,
        "content": entry.content,
        "pinned": entry.pinned,
        "by": entry.by or None,
    }
    known |= {
        "written": entry.written,
        "created": None if entry.created == entry.written else entry.created,
    }
    known |= {"version": entry.version, "uses": entry.uses or None, "trust": entry.trust or None}
    known |= {name: getattr(entry, name) or None for name in _IF_ANY}
    known |= {"accepted": entry.accepted or None}
    known |= {"confidence": None if entry.confidence == 1.0 else entry.confidence}
    rows = [f"{name}: {_value(value)}\n" for name, value in known.items() if value is not None]
    return "- " + "  ".join(rows)


def _value(value: Any) -> str:
    if (
        type(value) is str
        and value.isascii()
        and value.isprintable()
        and '"' not in value
        and "\\" not in value
    ):
        return f'"{value}"'  # as most are, and as JSON has it
    return unseen.shown(json.dumps(value, ensure_ascii=False), _escape)


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --- reading what programs wrote
# -------------------------------------------------------------------------------------

Read = tuple[dict[str, Any], list[Any], list[tuple[int, int]]]


def _lines(text: str) -> Read | None:
    """Read a text line by line; None if it is not written as programs write it."""
    head: dict[str, Any] = {}
    items: list[Any] = []
    spans: list[tuple[int, int]] = []
    item: dict[str, Any] | None = None
    for number, line in enumerate(text.split("\n")):
        if not line or line.startswith("#"):
            continue
        bare = _BARE.fullmatch(line)
        found = bare or _LINE.fullmatch(line)
        if found is None:
            return None
        try:
            value = _scalar(found[1] if bare else found[3])
        except (ValueError, RecursionError):
            return None
        if bare or found[1] == "- ":
            item = {} if not bare else None
            items.append(value if bare else item)
            spans.append((number, number + 1))
        lead = None if bare else found[1]
        target = head if lead is None else item
        if bare:
            continue
        if target is None or found[2] in target or (lead is not None and "memories" not in head):
            return None
        if lead is None:
            item = None
        else:
            spans[-1] = (spans[-1][0], number + 1)
        target[found[2]] = value
    return None if head.get("memories") else (head, items, spans)


def _scalar(written: str | None) -> Any:
    if written is None or not written.strip():
        return None
    if "\\U" in written:
        written = _LONG.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[0], written)
    value = json.loads(written)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if any(
        isinstance(each, list | dict) for each in inside
    ):  # no program writes it; how deep Python reads it varies
        raise ValueError("a list or a mapping within another one")
    return value


# --- entries
# ---------------------------------------------------------------------------------------------------------


def _entry(item: Any, where: str) -> Entry:
    if isinstance(item, str):
        return Entry("", item)
    if not isinstance(item, Mapping) or not isinstance(item.get("content"), str):
        raise InvalidInput(f"{where} has no content; {_CURE}")
    texts: dict[str, Any] = {name: _text(item.get(name), name, where) or "" for name in _TEXTS}
    texts |= {name: _text(item.get(name), name, where) for name in _OPTIONAL}
    tags = item.get("tags") or {}
    if not isinstance(tags, Mapping) or not all(isinstance(value, str) for value in tags.values()):
        raise InvalidInput(f"{where} has tags that are no pairs of texts; {_CURE}")
    if texts["decay"] not in (None, *DecayPolicy):
        raise InvalidInput(f"{where} has a decay that is not {', '.join(DecayPolicy)}; {_CURE}")
    cut = item.get("cut")
    return Entry(
        **texts,
        pinned=_yes(item.get("pinned"), "pinned", where),
        accepted=_yes(item.get("accepted"), "accepted", where),
        version=_number(item.get("version"), "version", where),
        uses=_number(item.get("uses"), "uses", where),
        tags=dict(tags),
        confidence=_share(item.get("confidence"), where),
        cut=None if cut is None else _number(cut, "cut", where),
    )._replace(created=texts["created"] or texts["written"])


def _text(value: Any, name: str, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{where} has a {name} that is no text; {_CURE}")
    return value


def _yes(value: Any, name: str, where: str) -> bool:
    known = {
        "true": True,
        "yes": True,
        "on": True,
        "false": False,
        "no": False,
        "off": False,
        "none": False,
        "": False,
    }
    word = str(value).lower()
    if word not in known:
        raise InvalidInput(f"{where} has a {name} that is neither true nor false; {_CURE}")
    return known[word]


def _number(value: Any, name: str, where: str) -> int:
    text = "0" if value is None else str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput(f"{where} has a {name} that is no whole number; {_CURE}")
    return int(text)


def _share(value: Any, where: str) -> float:
    try:
        share = 1.0 if value is None else float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise InvalidInput(f"{where} has a confidence that is no number from 0 to 1; {_CURE}")
    return share
