"""A scratchpad that a person wrote in YAML of their own: read as texts, without all that a text
does not need.

No anchors, aliases and tags, which can make a small file large or more than data, and no deep
nesting.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml

MAX_DEPTH = 6
_OF_PROGRAMS = ("left_out:", "gone:", "held:", "check:")
_ADDED = re.compile(r"( *)(?!#)(- |\S)")
_BEGINS = re.compile(r"memories:(?: *\[\])? *")
Parts = tuple[dict[str, Any], list[Any], list[tuple[int, int]]]


def read(text: str) -> Parts:
    """Read the text of a scratchpad: its head, its items, and the lines of each.

    Raises:
        ValueError: It is no YAML, or more than a scratchpad needs; the message says where, a part
            of a sentence.
    """
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    text, lines = _listed(text)
    try:
        _refuse_tricks(yaml.parse(text, Loader=loader), lines)
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        place = "" if mark is None else f" at line {lines[mark.line] + 1}"
        reason = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "it is not YAML"
        raise ValueError(f"{reason}{place}") from None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("it is no mapping")  # noqa: TRY004 - of a text
    head = _mapping(root, lambda node: node, lines)
    listed = head.pop("memories", None)
    nodes = listed.value if isinstance(listed, yaml.SequenceNode) else []
    if not nodes and listed is not None and listed.value not in ("", "null", "~", []):
        raise ValueError("memories is no list")
    items = [
        _mapping(node, _plain, lines) if isinstance(node, yaml.MappingNode) else _plain(node)
        for node in nodes
    ]
    spans = [(lines[node.start_mark.line], lines[_last(node) - 1] + 1) for node in nodes]
    return {name: _plain(node) for name, node in head.items()}, items, spans


def _listed(text: str) -> tuple[str, list[int]]:
    """Put what stands behind the lines of programs, where one adds to a file, among the memories.

    Returns:
        The text, and for each of its lines which one it was before; one more for its end.
    """
    rows = text.split("\n")
    order = list(range(len(rows)))
    own = [number for number, row in enumerate(rows) if row.startswith(_OF_PROGRAMS)]
    begun = [number for number, row in enumerate(rows) if _BEGINS.fullmatch(row)]
    if own and begun and begun[0] < own[0]:
        rows[begun[0]] = "memories:"  # an empty list takes nothing in
        added = range(own[-1] + 1, len(rows))
        first = next((found for number in added if (found := _ADDED.match(rows[number]))), None)
        if first is not None and first[2] == "- ":
            indent = len(first[1])
            order = [*range(own[0]), *added, *range(own[0], own[-1] + 1)]
            for number in added:
                rows[number] = rows[number].removeprefix(" " * indent)
    return "\n".join(rows[number] for number in order), [*order, len(rows)]


def _refuse_tricks(events: Any, lines: Sequence[int]) -> None:
    """Refuse what can make a small file large, or anything but text: anchors, aliases, tags, deep
    nesting.
    """
    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            trick = "an anchor or an alias"
        elif isinstance(event, yaml.NodeEvent) and getattr(event, "tag", None) is not None:
            trick = "a tag"
        else:
            opens = isinstance(event, yaml.CollectionStartEvent)
            depth += opens - isinstance(event, yaml.CollectionEndEvent)
            if depth <= MAX_DEPTH:
                continue
            trick = "too many levels"
        raise ValueError(f"line {lines[event.start_mark.line] + 1} has {trick}")


def _mapping(node: Any, read: Callable[[Any], Any], lines: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.value:
        name = key.value
        if not isinstance(name, str) or name in found:
            raise ValueError(
                f"line {lines[key.start_mark.line] + 1} has a key twice, or one that is no text"
            )
        found[name] = read(value)
    return found


def _plain(node: Any) -> Any:
    """Return what a node says: text, also where YAML would read a number or a date; None for
    nothing.
    """
    if isinstance(node.value, str):
        if node.style in ("|", ">"):
            return node.value.rstrip("\n")
        return None if not node.style and node.value in ("", "~", "null") else node.value
    if node.value and isinstance(node.value[0], tuple):
        return {str(key.value): _plain(value) for key, value in node.value}
    return {} if not node.value else [_plain(each) for each in node.value]


def _last(node: Any) -> int:
    """Return the line behind the last one of a node."""
    mark = node.end_mark
    return (
        int(mark.line)
        if mark.column == 0 and mark.line > node.start_mark.line
        else int(mark.line) + 1
    )
