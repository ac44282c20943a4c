"""Edits JSON, with or without comments, in place; all other bytes stay the same.

Hosts keep settings in files that people edit themselves. Parsing such a file and printing it again
would lose comments and layout, so entries are inserted into the text or deleted from it.
"""

import json
import re
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # json.loads uses it too
from typing import Any, NamedTuple

_BLANK = re.compile(r"[ \t\r\n]*")
_BLANK_OR_COMMENT = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*(?s:.)*?\*/)*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_REST_OF_LINE = re.compile(r"(?:[ \t]+|/\*[^\r\n]*?\*/)*(?://[^\r\n]*)?")
_MAX_DEPTH = 100

Step = str | int
Path = Sequence[Step]


class MalformedJSON(ValueError):
    """The text is not JSON.

    Attributes:
        line: The line of the error, counted from 1.
        why: The error, as part of a sentence.
    """

    def __init__(self, text: str, at: int, why: str) -> None:
        self.line, self.why = text.count("\n", 0, at) + 1, why
        super().__init__(f"line {self.line}: {why}")


class _Node(NamedTuple):
    """A value and its position.

    Attributes:
        start: Where the value starts.
        end: Where the value ends.
        kind: "{" for an object, "[" for an array, or "" for other values.
        members: The members of an object or array.
        comma: Where the comma after the last member is, if there is one.
    """

    start: int
    end: int
    kind: str
    members: "tuple[_Member, ...]" = ()
    comma: int | None = None


class _Member(NamedTuple):
    """A member of an object or array; the key of an array's member is its number."""

    key: Step
    start: int
    node: _Node


class Document:
    """A JSON text that can be read and changed.

    Attributes:
        text: The current text.
    """

    def __init__(self, text: str, *, comments: bool) -> None:
        """Parse a text; an empty one counts as an empty object.

        Args:
            text: The text.
            comments: Whether comments, and a comma after the last member, are allowed.

        Raises:
            MalformedJSON: The text is not a JSON object.
        """
        self._blank = _BLANK_OR_COMMENT if comments else _BLANK
        self._comments = comments
        self.text = text
        if self._skip(0) == len(text):
            text += "{}\n"
        self._parse(text)
        if self._root.kind != "{":
            raise MalformedJSON(text, self._root.start, "it is not a JSON object")

    def _parse(self, text: str) -> None:
        """Parse a text and make it the current one."""
        self.text = text
        self._root = self._value(self._skip(0), 0)
        end = self._skip(self._root.end)
        if end < len(text):
            raise MalformedJSON(text, end, "text follows the end of the object")

    def get(self, path: Path) -> Any:
        """Return the value at a path; None if there is none."""
        node = self._find(path)
        return None if node is None else self._read(node)

    def _find(self, path: Path) -> _Node | None:
        node: _Node | None = self._root
        for step in path:
            if node is None:
                return None
            nodes = [member.node for member in node.members if member.key == step]
            node = nodes[-1] if nodes else None  # programs use the last of duplicate keys
        return node

    def _read(self, node: _Node) -> Any:
        if node.kind == "{":
            return {member.key: self._read(member.node) for member in node.members}
        if node.kind == "[":
            return [self._read(member.node) for member in node.members]
        return json.loads(self.text[node.start : node.end], strict=False)

    def _skip(self, at: int) -> int:
        match = self._blank.match(self.text, at)
        return at if match is None else match.end()

    def _value(self, at: int, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise MalformedJSON(self.text, at, f"it is nested deeper than {_MAX_DEPTH} levels")
        sign = self.text[at : at + 1]
        if sign in ("{", "["):
            return self._container(at, sign, depth)
        if sign == '"':
            return _Node(at, self._string(at)[1], "")
        match = _SCALAR.match(self.text, at)
        if match is None:
            why = f"a value is missing before {json.dumps(sign)}" if sign else "it ends early"
            raise MalformedJSON(self.text, at, why)
        return _Node(at, match.end(), "")

    def _string(self, at: int) -> tuple[str, int]:
        try:
            return scanstring(self.text, at + 1, False)  # type: ignore[no-any-return]
        except json.JSONDecodeError as exc:
            raise MalformedJSON(
                self.text, at, "a string is not closed or contains an invalid escape"
            ) from exc

    def _container(self, start: int, kind: str, depth: int) -> _Node:
        closing = "}" if kind == "{" else "]"
        members: list[_Member] = []
        comma = None
        at = self._skip(start + 1)
        while self.text[at : at + 1] != closing:
            if members and comma is None:
                raise MalformedJSON(self.text, at, f'a "," or "{closing}" is missing')
            member = self._member(at, len(members), kind, depth)
            members.append(member)
            at = self._skip(member.node.end)
            comma = None
            if self.text[at : at + 1] == ",":
                comma, at = at, self._skip(at + 1)
                if self.text[at : at + 1] == closing and not self._comments:
                    raise MalformedJSON(self.text, comma, f'there is a "," before "{closing}"')
        return _Node(start, at + 1, kind, tuple(members), comma)

    def _member(self, at: int, number: int, kind: str, depth: int) -> _Member:
        if kind == "[":
            return _Member(number, at, self._value(at, depth + 1))
        if self.text[at : at + 1] != '"':
            raise MalformedJSON(self.text, at, "a name in quotes is missing")
        key, end = self._string(at)
        colon = self._skip(end)
        if self.text[colon : colon + 1] != ":":
            raise MalformedJSON(self.text, colon, f'a ":" is missing after {json.dumps(key)}')
        return _Member(key, at, self._value(self._skip(colon + 1), depth + 1))

    def set(self, path: Path, value: Any) -> None:
        """Set the value at a path, creating missing objects along the path.

        Raises:
            TypeError: A value along the path is not an object; the message names it.
        """
        node = self._find(path)
        if node is not None:
            if self._read(node) != value:
                indent = self._indent_at(node.start)
                flat = "\n" not in self.text[node.start : node.end] and node.kind != ""
                rendered = self._render(value, indent, flat=flat)
                self._parse(self.text[: node.start] + rendered + self.text[node.end :])
            return
        for length in range(1, len(path)):
            parent = self._find(path[:length])
            if parent is None:
                for step in reversed(path[length:]):
                    value = {step: value}
                self._add(path[: length - 1], path[length - 1], value)
                return
            self._check(parent, "{", path[:length])
        self._add(path[:-1], path[-1], value)

    def append(self, path: Path, value: Any) -> None:
        """Append a value to the array at a path, creating the array if it does not exist.

        Raises:
            TypeError: The value at the path is not an array; the message names it.
        """
        node = self._find(path)
        if node is None:
            self.set(path, [value])
            return
        self._check(node, "[", path)
        self._add(path, None, value)

    def _check(self, node: _Node, kind: str, path: Path) -> None:
        if node.kind != kind:
            line = self.text.count("\n", 0, node.start) + 1
            expected = "an object" if kind == "{" else "a list"
            raise TypeError(f"line {line}: {'.'.join(map(str, path))} is not {expected}")

    def _add(self, path: Path, key: Step | None, value: Any) -> None:
        """Add a member to the end of the object or array at a path."""
        node = self._find(path)
        assert node is not None
        name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
        text = self.text
        if not node.members:
            outer = self._indent_at(node.start)
            inner = outer + self._unit
            comments = text[node.start + 1 : node.end - 1].rstrip()
            member = f"{inner}{name}{self._render(value, inner)}"
            body = f"{comments}{self._newline}{member}{self._newline}{outer}"
            self._parse(text[: node.start + 1] + body + text[node.end - 1 :])
            return
        last = node.members[-1]
        indent = self._indent_at(last.start)
        # Keep a comment after the last member where it is.
        end = last.node.end if node.comma is None else node.comma + 1
        at = self._rest_of_line(end, node.end - 1)
        flat = "\n" not in text[node.start : last.start] and not text[end:at].strip()
        between = " " if flat else self._newline + indent
        added = between + name + self._render(value, indent, flat=flat)
        if node.comma is None:
            text = text[: last.node.end] + "," + text[last.node.end : at] + added + text[at:]
        else:
            text = text[:at] + added + "," + text[at:]
        self._parse(text)

    def remove(self, path: Path) -> None:
        """Remove the member at a path, if it exists, with its comma and the comment after it."""
        parent, node = self._find(path[:-1]), self._find(path)
        if parent is None or node is None:
            return
        members = parent.members
        number = next(at for at, member in enumerate(members) if member.node is node)
        is_last = number == len(members) - 1
        if not is_last:
            comma = self.text.index(",", self._skip(node.end))
            end = self._rest_of_line(comma + 1, members[number + 1].start)
        elif parent.comma is None:
            end = self._rest_of_line(node.end, parent.end - 1)
        else:
            end = self._rest_of_line(parent.comma + 1, parent.end - 1)
        # If text follows on the same line, keep the line break before the member. Otherwise, that
        # text could become part of a comment on the previous line.
        ends_line = self.text[end : end + 1] in ("\r", "\n")
        start = self._start_of(members[number].start, parent.start + 1, with_line=ends_line)
        text = self.text[:start] + self.text[end:]
        if is_last and number and parent.comma is None:  # also remove the comma before the member
            comma = self.text.index(",", self._skip(members[number - 1].node.end))
            text = text[:comma] + text[comma + 1 :]
        if len(members) == 1 and not text[parent.start + 1 : start].strip():
            closing = start + parent.end - 1 - end
            if not text[start:closing].strip():
                text = text[: parent.start + 1] + text[closing:]
        self._parse(text)

    def _start_of(self, at: int, minimum: int, *, with_line: bool) -> int:
        """Return where to start removing a member.

        If the member is the first thing on its line, start at the end of the previous line.
        """
        start = at
        while start > minimum and self.text[start - 1] in " \t":
            start -= 1
        if with_line and start > minimum and self.text[start - 1] == "\n":
            start -= 1
            if start > minimum and self.text[start - 1] == "\r":
                start -= 1
            return start
        return start if self.text[start - 1 : start] == "," else at

    def _rest_of_line(self, at: int, maximum: int) -> int:
        """Return the end of the comments that follow a position on the same line.

        If anything else follows on the line, return the position itself.
        """
        match = _REST_OF_LINE.match(self.text, at) if self._comments else None
        end = at if match is None else match.end()
        return end if end <= maximum and self.text[end : end + 1] in ("\r", "\n") else at

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    @property
    def _unit(self) -> str:
        """The indent of the outermost object's members; two spaces if they are not indented."""
        for member in self._root.members[:1]:
            indent = self._indent_at(member.start)
            if "\n" in self.text[self._root.start : member.start] and indent:
                return indent
        return "  "

    def _indent_at(self, at: int) -> str:
        """Return the indent of the line that contains a position."""
        line = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _render(self, value: Any, indent: str, *, flat: bool = False) -> str:
        if flat:
            return json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False, indent=self._unit).replace(
            "\n", self._newline + indent
        )
