"""The text format of a scratchpad's file: readable YAML in which every value is JSON.

A file that only programs have written is read line by line with `json`, which is fast. A file that
the user has changed may use any YAML style, so PyYAML reads it.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from memories.errors import InvalidInput
from memories.languages import make_visible
from memories.models import DecayPolicy
from memories.scratchpad.entries import Entry
from memories.scratchpad.text import is_edited, seal

FORMAT = 1
_LINE = re.compile(r"(- |  )?([a-z_]+):(?: (.*))?")
_LONG_ESCAPE = re.compile(r'\\(?:U([0-9a-fA-F]{8})|["\\/bfnrtu])')
_FIRST_ENTRY = re.compile(r"^ *- ", re.MULTILINE)
_TOP_LEVEL = re.compile(r"[^\s#-]")
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
    "anchors",
    "valid_until",
    "anchored",
)
_OPTIONAL_TEXTS = ("key", "decay")
_ALWAYS = ("id", "content", "pinned", "written", "version")
_WRITTEN = tuple(  # in this order
    """id content pinned by written created version uses trust key tags decay aging_from reinforced
    suspicious cut accepted anchors valid_until recheck anchored confidence""".split()
)
_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    "none": False,
    "": False,
}
_HEAD = """\
# The scratchpad of {namespace}: sessions begin with it.
# To edit it, run: memory scratchpad edit -n {namespace}
# - To give a memory a new version, change its content.
# - To keep an entry here, set pinned to true. An entry with false may be removed later.
# - To leave an entry out here, remove it. The memory stays; memory forget deletes it.
# - To store a new memory, add a line such as   - "One statement"   at the end.
# The next memory command applies your edits.
# To write this file again: memory scratchpad rebuild -n {namespace}
# For programs; leave the next lines as they are.
"""


class Pad(NamedTuple):
    """The content of a scratchpad's file.

    Attributes:
        namespace: The namespace that owns the scratchpad.
        store: The URL of the store, without a password.
        stamp: See `PadFile`.
        size: The maximum number of entries, as it was when the entries were chosen.
        waiting: The number of memories that were awaiting review.
        written: The time of the last update from the store, in ISO 8601; empty if there was none.
        until: The time in ISO 8601 when the next correction expires, so that the corrected memory
            is shown again; usually empty.
        entries: The entries.
        left_out: Ids that the user has removed.
        gone: Recently deleted or replaced versions, such as `id@3`. A change that arrives late must
            not add them again.
        held: The ids of the entries that a program last wrote.
        edited: Whether the file has been changed since a program wrote it.
    """

    namespace: str
    store: str
    stamp: str = ""
    size: int = 0
    waiting: int = 0
    written: str = ""
    until: str = ""
    entries: tuple[Entry, ...] = ()
    left_out: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    edited: bool = False


# --- writing


def render(pad: Pad) -> str:
    """Return the text of a scratchpad's file."""
    head = {
        "scratchpad": FORMAT,
        "namespace": pad.namespace,
        "store": pad.store,
        "stamp": pad.stamp,
        "size": pad.size,
        "waiting": pad.waiting,
        "written": pad.written,
        "until": pad.until,
        "left_out": " ".join(pad.left_out),
        "gone": " ".join(pad.gone),
        "held": " ".join(entry.id for entry in pad.entries),
    }
    rows = [f"{name}: {_render_value(value)}\n" for name, value in head.items()]
    entries = map(_render_entry, pad.entries)
    intro = _HEAD.format(namespace=pad.namespace)
    return seal("".join([intro, *rows, "memories:\n", *entries]))


def _render_entry(entry: Entry) -> str:
    """Return an entry's lines. Fields with their default value are left out."""
    if entry.created == entry.written:
        entry = entry._replace(created="")
    rows = []
    for name in _WRITTEN:
        value = getattr(entry, name)
        if name in _ALWAYS or value != Entry._field_defaults[name]:
            rows.append(f"{name}: {_render_value(value)}\n")
    return "- " + "  ".join(rows)


def _render_value(value: Any) -> str:
    is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
    if is_plain and '"' not in value and "\\" not in value:
        return f'"{value}"'  # the same as `json.dumps`, but faster; most values are plain
    return make_visible(json.dumps(value, ensure_ascii=False), _escape)


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --- reading


def parse(text: str, source: str) -> Pad:
    """Parse the text of a scratchpad's file.

    Args:
        text: The text, with `\\n` at the end of each line.
        source: The file's path, for messages.

    Raises:
        InvalidInput: The text can't be read; the message says why.
    """
    edited = is_edited(text)
    try:
        head, items = _read_yaml(text) if edited else _read_lines(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(f"{source} can't be read: {exc}") from None
    fields = _Fields(head, source)
    if fields.number("scratchpad") != FORMAT:
        raise InvalidInput(
            f'{source} is not a scratchpad of this program: it has no line "scratchpad: {FORMAT}"'
        )
    entries = tuple(_read_entry(item, source) for item in items)
    ids: set[str] = set()
    for entry in entries:
        if entry.id in ids:
            shown = make_visible(entry.id, _escape)[:64]
            raise InvalidInput(f"{source} has two entries with the id {shown}")
        ids.update([entry.id] if entry.id else [])
    return Pad(
        namespace=fields.text("namespace"),
        store=fields.text("store"),
        stamp=fields.text("stamp"),
        size=fields.number("size"),
        waiting=fields.number("waiting"),
        written=fields.text("written"),
        until=fields.text("until"),
        entries=entries,
        left_out=fields.words("left_out"),
        gone=fields.words("gone"),
        held=fields.words("held"),
        edited=edited,
    )


def without_entries(text: str, ids: Collection[str]) -> str:
    """Remove the entries with these ids from a text, even if the text can't be parsed."""
    first = _FIRST_ENTRY.search(text)
    if first is None:
        return text
    parts: list[list[str]] = [[]]
    for row in text.split("\n"):
        if row.startswith(first[0]) or _TOP_LEVEL.match(row):
            parts.append([])
        parts[-1].append(row)
    rows: list[str] = []
    for part in parts:
        is_entry = bool(part) and part[0].startswith(first[0])
        part_text = "\n".join(part)
        if not is_entry or not any(memory_id in part_text for memory_id in ids):
            rows += part
    return "\n".join(rows)


Parts = tuple[dict[str, Any], Sequence[Any]]  # the values of the head, and the entries


def _read_lines(text: str) -> Parts:
    """Parse a text that a program wrote."""
    head: dict[str, Any] = {}
    items: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not in the form NAME: VALUE")
        lead, name, value = match.groups()
        if lead == "- ":
            items.append({})
        target = items[-1] if lead and items else head
        target[name] = _read_value(value)
    return head, items


def _read_value(written: str | None) -> Any:
    if not written:
        return None
    if "\\U" in written:  # an escape in YAML, but not in JSON
        written = _LONG_ESCAPE.sub(
            lambda match: chr(int(match[1], 16)) if match[1] else match[0], written
        )
    return json.loads(written)


def _read_yaml(text: str) -> Parts:
    """Parse a text that the user has changed. All scalars are returned as strings."""
    import yaml  # takes longer to load than everything else here

    class Loader(yaml.BaseLoader):  # type: ignore[misc]  # yaml has no types
        """Refuses a repeated key, because PyYAML would silently drop its first value."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key occurs twice", node.start_mark
                )
            return mapping

    try:
        root = yaml.load(text, Loader)  # noqa: S506 - builds only strings, lists and mappings
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}"
        reason = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "it is not YAML"
        raise ValueError(f"{reason}{place}") from None
    if not isinstance(root, dict):
        raise ValueError("it isn't a mapping")  # noqa: TRY004 - the text is wrong
    if "memories" not in root:  # perhaps misspelled; the list may contain edits
        raise ValueError('it has no "memories:" line')
    items = root.pop("memories") or []
    if not isinstance(items, list):
        raise ValueError("memories isn't a list")  # noqa: TRY004 - the text is wrong
    return root, items


def _read_entry(item: Any, source: str) -> Entry:
    if isinstance(item, str):
        return Entry("", item)
    if not isinstance(item, Mapping) or not isinstance(item.get("content"), str):
        raise InvalidInput(f"{source} has an entry without content")
    where = f"{source}, the entry {make_visible(item['content'], _escape)[:40]!r},"
    fields = _Fields(item, where)
    texts: dict[str, Any] = {name: fields.text(name) for name in _TEXTS}
    texts |= {name: fields.text(name) or None for name in _OPTIONAL_TEXTS}
    tags = item.get("tags") or {}
    if not isinstance(tags, Mapping) or not all(isinstance(value, str) for value in tags.values()):
        raise InvalidInput(f"{where} has tags that aren't pairs of strings")
    if texts["decay"] not in (None, *DecayPolicy):
        raise InvalidInput(f"{where} has a decay that is not one of {', '.join(DecayPolicy)}")
    texts["created"] = texts["created"] or texts["written"]
    return Entry(
        **texts,
        pinned=fields.boolean("pinned"),
        accepted=fields.boolean("accepted"),
        version=fields.number("version"),
        uses=fields.number("uses"),
        recheck=fields.number("recheck"),
        tags=dict(tags),
        confidence=fields.confidence(),
        cut=fields.number("cut") or None,
    )


class _Fields(NamedTuple):
    """The fields of the head or of an entry, and where they are, for error messages."""

    values: Mapping[str, Any]
    where: str

    def text(self, name: str) -> str:
        """Return a text field, or an empty string if the field is missing."""
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise InvalidInput(f"{self.where} has a {name} that isn't a string")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words of a text field."""
        return tuple(self.text(name).split())

    def boolean(self, name: str) -> bool:
        """Return a boolean field, or False if the field is missing."""
        value = self.values.get(name, "")
        word = str(value).lower() if isinstance(value, str | bool) else "other"
        if word not in _BOOLEANS:
            raise InvalidInput(f"{self.where} has a {name} that is neither true nor false")
        return _BOOLEANS[word]

    def number(self, name: str) -> int:
        """Return a field that is a whole number, or 0 if the field is missing."""
        value = self.values.get(name) or 0
        text = str(value) if isinstance(value, str | int) else "other"
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidInput(f"{self.where} has a {name} that isn't a whole number")
        return int(text)

    def confidence(self) -> float:
        """Return the confidence, or 1 if the field is missing."""
        value = self.values.get("confidence")
        try:
            confidence = 1.0 if value is None else float(value)
        except (TypeError, ValueError):
            confidence = -1.0
        if not 0.0 <= confidence <= 1.0:
            raise InvalidInput(f"{self.where} has a confidence that isn't a number from 0 to 1")
        return confidence
