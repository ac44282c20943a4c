"""JSON, with comments or without, changed in place: what is not changed keeps its bytes.

Hosts keep settings in files that people write. A file that is parsed and printed anew would lose
their comments, their order and their layout, so entries are put into the text and taken out of it.
"""

import json
import re
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]  # what json.loads reads strings with
from typing import Any, NamedTuple

_BLANK = re.compile(r"[ \t\r\n]*")
_BLANK_OR_COMMENT = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*(?s:.)*?\*/)*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_REST_OF_LINE = re.compile(r"(?:[ \t]+|/\*[^\r\n]*?\*/)*(?://[^\r\n]*)?")
_MAX_DEPTH = 100

Step = str | int
Path = Sequence[Step]


class Malformed(ValueError):
    """A text is no JSON.

    Attributes:
        line: The line on which that shows, counted from 1.
        why: What is wrong there, a part of a sentence.
    """

    def __init__(self, text: str, at: int, why: str) -> None:
        self.line, self.why = text.count("\n", 0, at) + 1, why
        super().__init__(f"line {self.line}: {why}")


class _Node(NamedTuple):
    """A value and where it stands; `members` are those of an object or array, `comma` follows the
    last of them.
    """

    start: int
    end: int
    kind: str  # "{", "[", or "" for what holds nothing
    members: "tuple[_Member, ...]" = ()
    comma: int | None = None


class _Member(NamedTuple):
    """A member of an object, or of an array (its key is its number), from the key to the end of its
    value.
    """

    key: Step
    start: int
    node: _Node


class Document:
    """A text of JSON that can be read and changed.

    Attributes:
        text: What it is now.
    """

    def __init__(self, text: str, *, comments: bool) -> None:
        """Read a text; an empty one is an object without members.

        Args:
            text: The text.
            comments: Comments and commas after a last member are allowed.

        Raises:
            Malformed: It is no JSON object.
        """
        self._blank = _BLANK_OR_COMMENT if comments else _BLANK
        self._comments = comments
        self.text = text
        if self._skip(0) == len(text):
            text += "{}\n"
        self._take(text)
        if self._root.kind != "{":
            raise Malformed(text, self._root.start, "it holds no JSON object")

    def _take(self, text: str) -> None:
        self.text = text
        self._root = self._value(self._skip(0), 0)
        end = self._skip(self._root.end)
        if end < len(text):
            raise Malformed(text, end, "something follows the end of the object")

    # --- reading ---

    def get(self, path: Path) -> Any:
        """Return the value at a path; None if there is none."""
        node = self._find(path)
        return None if node is None else self._read(node)

    def _find(self, path: Path) -> _Node | None:
        node: _Node | None = self._root
        for step in path:
            # Of members with the same key, programs take the last one.
            found = [each.node for each in node.members if each.key == step] if node else []
            node = found[-1] if found else None
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
            raise Malformed(self.text, at, f"it is nested deeper than {_MAX_DEPTH} levels")
        sign = self.text[at : at + 1]
        if sign in ("{", "["):
            return self._container(at, sign, depth)
        if sign == '"':
            return _Node(at, self._string(at)[1], "")
        match = _SCALAR.match(self.text, at)
        if match is None:
            raise Malformed(
                self.text,
                at,
                f"{json.dumps(sign)} stands where a value should" if sign else "it ends early",
            )
        return _Node(at, match.end(), "")

    def _string(self, at: int) -> tuple[str, int]:
        try:
            return scanstring(self.text, at + 1, False)  # type: ignore[no-any-return]
        except json.JSONDecodeError as exc:
            raise Malformed(self.text, at, "a string is not closed or has a wrong escape") from exc

    def _container(self, start: int, kind: str, depth: int) -> _Node:
        closing = "}" if kind == "{" else "]"
        members: list[_Member] = []
        comma = None
        at = self._skip(start + 1)
        while self.text[at : at + 1] != closing:
            if members and comma is None:
                raise Malformed(self.text, at, f'a "," or "{closing}" is missing')
            member = self._member(at, len(members), kind, depth)
            members.append(member)
            at = self._skip(member.node.end)
            comma = None
            if self.text[at : at + 1] == ",":
                comma, at = at, self._skip(at + 1)
                if self.text[at : at + 1] == closing and not self._comments:
                    raise Malformed(self.text, comma, f'a "," stands before "{closing}"')
        return _Node(start, at + 1, kind, tuple(members), comma)

    def _member(self, at: int, number: int, kind: str, depth: int) -> _Member:
        if kind == "[":
            return _Member(number, at, self._value(at, depth + 1))
        if self.text[at : at + 1] != '"':
            raise Malformed(self.text, at, "a name in quotes is missing")
        key, end = self._string(at)
        colon = self._skip(end)
        if self.text[colon : colon + 1] != ":":
            raise Malformed(self.text, colon, f'a ":" is missing after {json.dumps(key)}')
        return _Member(key, at, self._value(self._skip(colon + 1), depth + 1))

    # --- changing ---

    def set(self, path: Path, value: Any) -> None:
        """Put a value where a path leads, in place of the one that is there; objects on the way are
        made.

        Raises:
            TypeError: What stands on the way is no object; the message names it.
        """
        for length in range(1, len(path)):
            above = self._find(path[:length])
            if above is None:
                self._add(path[: length - 1], path[length - 1], _nested(path[length:], value))
                return
            self._check(above, "{", path[:length])
        here = self._find(path)
        if here is None:
            self._add(path[:-1], path[-1], value)
        elif self._read(here) != value:
            indent = self._indent_at(here.start)
            flat = "\n" not in self.text[here.start : here.end] and here.kind != ""
            self._take(
                self.text[: here.start]
                + self._render(value, indent, flat=flat)
                + self.text[here.end :]
            )

    def append(self, path: Path, value: Any) -> None:
        """Add a value to the end of the array where a path leads; it is made if it is not there.

        Raises:
            TypeError: What stands there is no array; the message names it.
        """
        here = self._find(path)
        if here is None:
            self.set(path, [value])
            return
        self._check(here, "[", path)
        self._add(path, None, value)

    def _check(self, node: _Node, kind: str, path: Path) -> None:
        if node.kind != kind:
            line = self.text.count("\n", 0, node.start) + 1
            what = "object" if kind == "{" else "list"
            raise TypeError(f"line {line}: {'.'.join(map(str, path))} is no {what}")

    def _add(self, path: Path, key: Step | None, value: Any) -> None:
        """Add a member to the end of what a path leads to."""
        node = self._find(path)
        assert node is not None
        name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
        text = self.text
        if not node.members:
            outer = self._indent_at(node.start)
            inner = outer + self._unit
            kept = text[node.start + 1 : node.end - 1].rstrip()
            body = f"{kept}{self._newline}{inner}{name}{self._render(value, inner)}{self._newline}{outer}"
            self._take(text[: node.start + 1] + body + text[node.end - 1 :])
            return
        last = node.members[-1]
        indent = self._indent_at(last.start)
        # A comment behind the last member stays behind it.
        end = last.node.end if node.comma is None else node.comma + 1
        at = self._rest_of_line(end, node.end - 1)
        flat = "\n" not in text[node.start : last.start] and not text[end:at].strip()
        between = " " if flat else self._newline + indent
        added = between + name + self._render(value, indent, flat=flat)
        if node.comma is None:
            text = text[: last.node.end] + "," + text[last.node.end : at] + added + text[at:]
        else:
            text = text[:at] + added + "," + text[at:]
        self._take(text)

    def remove(self, path: Path) -> None:
        """Take out what a path leads to, if it is there, with its comma and the comment behind
        it.
        """
        above, here = self._find(path[:-1]), self._find(path)
        if above is None or here is None:
            return
        number = next(at for at, member in enumerate(above.members) if member.node is here)
        last = number == len(above.members) - 1
        if last:
            end = self._rest_of_line(
                here.end if above.comma is None else above.comma + 1, above.end - 1
            )
        else:
            comma = self.text.index(",", self._skip(here.end))
            end = self._rest_of_line(comma + 1, above.members[number + 1].start)
        # Else what follows would come to stand in a comment of the line before.
        ends_line = self.text[end : end + 1] in ("\r", "\n")
        start = self._start_of(above.members[number].start, above.start + 1, with_line=ends_line)
        text = self.text[:start] + self.text[end:]
        if last and number and above.comma is None:  # the comma before it separates nothing now
            comma = self.text.index(",", self._skip(above.members[number - 1].node.end))
            text = text[:comma] + text[comma + 1 :]
        if len(above.members) == 1 and not text[above.start + 1 : start].strip():
            closing = start + above.end - 1 - end
            if not text[start:closing].strip():
                text = text[: above.start + 1] + text[closing:]
        self._take(text)

    def _start_of(self, at: int, least: int, *, with_line: bool) -> int:
        """Return where the text of a member begins: with its line, if nothing else is on it and the
        line may go.
        """
        before = at
        while before > least and self.text[before - 1] in " \t":
            before -= 1
        if with_line and before > least and self.text[before - 1] == "\n":
            return (
                before - 2
                if self.text[before - 2 : before] == "\r\n" and before - 2 >= least
                else before - 1
            )
        return before if self.text[before - 1 : before] == "," else at

    def _rest_of_line(self, at: int, most: int) -> int:
        """Return the end of the comments that stand behind something on its line; `at` if more than
        that follows.
        """
        match = _REST_OF_LINE.match(self.text, at) if self._comments else None
        end = at if match is None else match.end()
        return end if end <= most and self.text[end : end + 1] in ("\r", "\n") else at

    # --- layout ---

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    @property
    def _unit(self) -> str:
        """What the members of the outermost object are indented by; two spaces if that shows
        nowhere.
        """
        for member in self._root.members[:1]:
            indent = self._indent_at(member.start)
            if "\n" in self.text[self._root.start : member.start] and indent:
                return indent
        return "  "

    def _indent_at(self, at: int) -> str:
        """Return the blanks that the line begins with on which something stands."""
        line = self.text[self.text.rfind("\n", 0, at) + 1 : at]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _render(self, value: Any, indent: str, *, flat: bool = False) -> str:
        if flat:
            return json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False, indent=self._unit).replace(
            "\n", self._newline + indent
        )


def _nested(path: Path, value: Any) -> Any:
    for step in reversed(path):
        value = {step: value}
    return value
