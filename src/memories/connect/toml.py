"""Adds one table to the end of a TOML file, or removes it; all other lines stay unchanged.

Every result is parsed with `tomllib` and must have the expected values. So a file with an unusual
layout is refused, never damaged.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")

Table = tuple[str, ...]


class MalformedTOML(ValueError):
    """The text is not TOML, or its layout can't be edited; the message says where and why."""


def read(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        MalformedTOML: The text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        place = _PLACE.search(str(exc))
        line = place[1] if place and place[1] else text.count("\n") + 1
        why = _PLACE.sub("", str(exc))
        raise MalformedTOML(f"line {line}: {why[:1].lower()}{why[1:]}") from exc
    except RecursionError as exc:
        raise MalformedTOML("line 1: it is nested too deeply") from exc


def get(text: str, table: Table) -> Any:
    """Return the value of a table; None if there is no such table."""
    return _find(read(text), table)


def _find(data: Any, table: Table) -> Any:
    for name in table:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def put(text: str, table: Table, rows: Mapping[str, Any]) -> str:
    """Return a text with a table at its end, replacing any table with that name.

    Args:
        text: The text.
        table: The parts of the table's name.
        rows: The table's content: texts, numbers, lists of texts, and mappings of texts.

    Raises:
        MalformedTOML: The text is not TOML, or the table can't be added.
    """
    without = remove(text, table)
    expected = read(without)
    parent = expected
    for name in table[:-1]:
        parent = parent.setdefault(name, {})
        if not isinstance(parent, dict):
            raise MalformedTOML(f"{name} is not a table")
    parent[table[-1]] = dict(rows)
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = newline if without else ""
    if without and not without.endswith("\n"):
        gap = newline * 2
    lines = [f"[{'.'.join(table)}]"]
    lines += [f"{name} = {_render(value)}" for name, value in rows.items()]
    lines.append("")
    return _check(without + gap + newline.join(lines), expected, table)


def remove(text: str, table: Table) -> str:
    """Return a text without a table and its subtables.

    Raises:
        MalformedTOML: The text is not TOML, or the table can't be removed.
    """
    expected = deepcopy(read(text))
    parent = _find(expected, table[:-1])
    if not isinstance(parent, dict) or table[-1] not in parent:
        return text
    del parent[table[-1]]
    lines = text.splitlines(keepends=True)
    remaining: list[str] = []
    number = 0
    while number < len(lines):
        if _starts(lines, number, table, inside=True):
            if remaining and not remaining[-1].strip():
                remaining.pop()  # the blank line before the table
            number = _end_of(lines, number, table)
        else:
            remaining.append(lines[number])
            number += 1
    return _check("".join(remaining), expected, table)


def _starts(lines: Sequence[str], at: int, table: Table, *, inside: bool) -> bool:
    """Return whether a line starts a table.

    Args:
        lines: The lines of the text.
        at: The number of the line.
        table: The name of a table.
        inside: True to look for that table or one of its subtables, False for any other table.
    """
    names = _names(lines[at])
    if names is None or (names[: len(table)] == table) is not inside:
        return False
    try:
        tomllib.loads("".join(lines[:at]))
    except tomllib.TOMLDecodeError:
        return False  # the line is part of a multi-line string or list
    return True


def _names(line: str) -> Table | None:
    """Return the parts of the table name in a header line; None for any other line."""
    if not line.lstrip(" \t").startswith("["):
        return None
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    names = []
    while value:
        if isinstance(value, list):  # [[name]]
            value = value[0]
        for name, inner in value.items():  # a table has at most one item here
            names.append(name)
            value = inner
    return tuple(names)


def _end_of(lines: Sequence[str], start: int, table: Table) -> int:
    """Return the line after a table, which does not include trailing comments and blank lines."""
    end = start + 1
    while end < len(lines) and not _starts(lines, end, table, inside=False):
        end += 1
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    return end


def _check(text: str, expected: dict[str, Any], table: Table) -> str:
    """Check the values in an edited text, and return the text.

    Empty tables that lead to `table` are ignored.

    Raises:
        MalformedTOML: The values are not as expected.
    """
    try:
        data = read(text)
    except MalformedTOML as exc:
        raise MalformedTOML(
            f"[{'.'.join(table)}] does not fit into the file's layout; give each table a [header]"
        ) from exc
    if _prune(data, table) != _prune(expected, table):
        raise MalformedTOML(
            f"[{'.'.join(table)}] is written in a way that can't be changed; remove it manually"
        )
    return text


def _prune(data: dict[str, Any], table: Table) -> dict[str, Any]:
    """Remove a table's parents that are empty."""
    for length in range(len(table) - 1, 0, -1):
        parent = _find(data, table[: length - 1])
        if isinstance(parent, dict) and parent.get(table[length - 1]) == {}:
            del parent[table[length - 1]]
    return data


def _render(value: Any) -> str:
    """Return a value as TOML, with strings written as in JSON."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_render(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_render, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
