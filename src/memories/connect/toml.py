"""One table of a TOML file, put at its end or taken out of it; the other lines keep their bytes.

Every change is read again by `tomllib` and compared with what it should be, so that a file of an
unusual layout is refused, never spoiled.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")

Table = tuple[str, ...]


class Malformed(ValueError):
    """A text is no TOML, or has a layout that can't be changed; the message says where and why."""


def read(text: str) -> dict[str, Any]:
    """Return what a text of TOML says.

    Raises:
        Malformed: It is none.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        found = _PLACE.search(str(exc))
        line = found[1] if found and found[1] else text.count("\n") + 1
        why = _PLACE.sub("", str(exc))
        raise Malformed(f"line {line}: {why[:1].lower()}{why[1:]}") from exc
    except RecursionError as exc:
        raise Malformed("line 1: it is nested too deeply") from exc


def get(text: str, table: Table) -> Any:
    """Return the value of a table; None if it is not there."""
    here: Any = read(text)
    for name in table:
        here = here.get(name) if isinstance(here, dict) else None
    return here


def put(text: str, table: Table, rows: Mapping[str, Any]) -> str:
    """Return a text with a table of these rows at its end; one of that name is replaced.

    Args:
        text: The text.
        table: The name of the table, by its parts.
        rows: Texts, numbers, lists of texts, and mappings of texts.

    Raises:
        Malformed: It is no TOML, or the table can't be added.
    """
    rest = take_out(text, table)
    expected = read(rest)
    here = expected
    for name in table[:-1]:
        here = here.setdefault(name, {})
        if not isinstance(here, dict):
            raise Malformed(f"{name} is no table")
    here[table[-1]] = dict(rows)
    newline = _newline(text)
    lines = [
        f"[{'.'.join(table)}]",
        *(f"{name} = {_value(value)}" for name, value in rows.items()),
        "",
    ]
    gap = "" if not rest else newline if rest.endswith("\n") else newline * 2
    return _checked(rest + gap + newline.join(lines), expected, table)


def take_out(text: str, table: Table) -> str:
    """Return a text without a table and those in it.

    Raises:
        Malformed: It is no TOML, or the table can't be taken out.
    """
    expected = deepcopy(read(text))
    above: Any = expected
    for name in table[:-1]:
        above = above.get(name) if isinstance(above, dict) else None
    if not isinstance(above, dict) or table[-1] not in above:
        return text
    del above[table[-1]]
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    at = 0
    while at < len(lines):
        if _starts(lines, at, table, inside=True):
            if kept and not kept[-1].strip():
                kept.pop()  # the blank line before it
            at = _end_of(lines, at, table)
        else:
            kept.append(lines[at])
            at += 1
    return _checked("".join(kept), expected, table)


def _starts(lines: Sequence[str], at: int, table: Table, *, inside: bool) -> bool:
    """Return whether a line begins a table: one that is, or is in, the named one; or else any
    other.
    """
    names = _names(lines[at])
    if names is None or (names[: len(table)] == table) is not inside:
        return False
    try:
        tomllib.loads("".join(lines[:at]))
    except tomllib.TOMLDecodeError:
        return False  # it stands in a text or list of several lines
    return True


def _names(line: str) -> Table | None:
    """Return the name in a line that begins a table, by its parts; None if it does not."""
    if not line.lstrip(" \t").startswith("["):
        return None
    try:
        here: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    names = []
    while here:
        here = here[0] if isinstance(here, list) else here
        [(name, here)] = here.items() if here else [("", None)]
        names.append(name)
    return tuple(name for name in names if name)


def _end_of(lines: Sequence[str], start: int, table: Table) -> int:
    """Return the line behind the last one of a table; comments and blank lines after that belong to
    what follows.
    """
    end = next(
        (at for at in range(start + 1, len(lines)) if _starts(lines, at, table, inside=False)),
        len(lines),
    )
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    return end


def _checked(text: str, expected: dict[str, Any], table: Table) -> str:
    """Return a text that says what it should, whether or not empty tables lead to the named one."""
    try:
        found = read(text)
    except Malformed as exc:
        raise Malformed(
            f"[{'.'.join(table)}] does not fit into its layout; write its tables with [headers]"
        ) from exc
    if _pruned(found, table) != _pruned(expected, table):
        raise Malformed(
            f"[{'.'.join(table)}] is written in a way that can't be changed; take it out by hand"
        )
    return text


def _pruned(data: dict[str, Any], table: Table) -> dict[str, Any]:
    for length in range(len(table) - 1, 0, -1):
        above: Any = data
        for name in table[: length - 1]:
            above = above.get(name, {})
        if isinstance(above, dict) and above.get(table[length - 1]) == {}:
            del above[table[length - 1]]
    return data


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _value(value: Any) -> str:
    """Return a value as TOML; its texts are a subset of JSON's."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
