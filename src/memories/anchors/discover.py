"""Finds the anchors of a new text: the existing files that it names, and the symbols, literals and
named values that occur both in the text and in these files.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memories.anchors import contents
from memories.anchors.grammar import (
    LITERAL,
    MAX_TEXT,
    PATH,
    SYMBOL,
    Anchor,
    find_paths,
    parse,
    quoted_texts,
)
from memories.anchors.tree import Budget, WorkingTree
from memories.errors import InvalidInput

MAX_ANCHORS = 5
MAX_SECONDS = 0.02
_MAX_FILES = 5
_MAX_NAMES = 30
_DATE = re.compile(r"\b\d{4}-\d\d(?:-\d\d)?\b|\b\d{1,2}\.\d{1,2}\.\d{4}\b|\b\d{1,2}:\d\d\b")
_VALUE = re.compile(r"(?<![\w.])(?:[<>=!~^]=?)?v?\d[\w.]*(?<!\.)|(?<!\w)(?:[tT]rue|[fF]alse)(?!\w)")
_YEAR = re.compile(r"(?:19|20)\d\d")
_NAME = re.compile(r"[^\W\d][\w$]*(?:[-.][^\W\d][\w$]*)*(?:\(\))?")
# A value after one of these signs needs no digit: `charset is utf-8`, `testpaths = tests`.
_ASSIGNED = re.compile(r"[\w\])`\"'](?:\s*=\s*|\s*:\s+|\s+is\s+)[`\"']?([\w./+-]*\w)")
_NO_NAMES = frozenset("value values default defaults the and see set with from for".split())
# Signs that a word is a name in code: an underscore, a capital after a lower-case letter, a dot, a
# call, a number after capitals, or only capitals.
_CODE_NAME = re.compile(r"_|[a-z0-9][A-Z]|\w\.\w|\(\)|[A-Z]{2}\d|^[A-Z]{4,}$")


class _Names(NamedTuple):
    """The names in a text, except the names of files.

    Attributes:
        code: Names from code, and quoted texts.
        words: Other words, which can only be the names of values.
        values: Numbers, versions and booleans, and quoted texts.
    """

    code: list[str]
    words: list[str]
    values: list[str]


def find_anchors(text: str, tree: WorkingTree) -> list[Anchor]:
    """Return a text's anchors in a working tree, the most specific first.

    At most five are returned, and the search takes at most 20 milliseconds.
    """
    budget = Budget(MAX_SECONDS)
    text = text[:MAX_TEXT]
    anchors: list[Anchor] = []
    paths: list[Anchor] = []
    for candidate in find_paths(text):
        if budget.is_spent or len(paths) >= _MAX_FILES:
            break
        kind = tree.look(candidate.parts).kind
        is_folder = candidate.target.endswith("/")
        if kind == "folder" or (kind == "file" and not is_folder):
            paths.append(candidate)
    if not paths:
        return []
    names = _find_names(text, paths)
    for path in paths:
        specific: list[Anchor] = []
        if not budget.is_spent and not path.target.endswith("/"):
            look, content = tree.read(path.parts)
            if look.kind == "file" and content:
                specific = list(_anchors_in(path.target, content, names, budget))
        anchors += specific or [path]
    return sorted(dict.fromkeys(anchors), key=_rank)[:MAX_ANCHORS]


def _rank(anchor: Anchor) -> int:
    """Return the sort key of an anchor: named values first, then symbols, other literals, and
    paths.
    """
    if anchor.kind == LITERAL and " " in anchor.name:
        return 0
    return (SYMBOL, LITERAL, PATH).index(anchor.kind) + 1


def _find_names(text: str, paths: Iterable[Anchor]) -> _Names:
    """Return the names and values in a text, except dates and existing paths."""
    for path in paths:
        text = text.replace(f"{path.target}::", " ").replace(path.target.rstrip("/"), " ")
    text = _DATE.sub(" ", text)
    quoted = quoted_texts(text)
    code = [name.strip() for name in quoted if re.search(r"\w{2}", name)]
    words: list[str] = []
    for match in _NAME.finditer(text):
        name = match[0]
        if _CODE_NAME.search(name):
            code.append(name)
        elif len(name) > 2 and name.lower() not in _NO_NAMES:
            words.append(name)
    values = [match[0] for match in _VALUE.finditer(text)]
    values += [name for name in quoted if len(contents.split_words(name)) == 1]
    values += [match[1] for match in _ASSIGNED.finditer(text)]
    code = [name.removesuffix("()") for name in code]
    return _Names(*(list(dict.fromkeys(names))[:_MAX_NAMES] for names in (code, words, values)))


def _anchors_in(path: str, content: str, names: _Names, budget: Budget) -> Iterator[Anchor]:
    """Yield anchors in a file: first the named values, then other symbols and literals."""
    used: set[str] = set()
    before = [name for name in (*names.code, *names.words) if name in content]
    before = [name for name in before if not _VALUE.fullmatch(name)]
    for value in names.values:
        candidates = [name for name in before if name != value]
        if budget.is_spent or not candidates or value not in content:
            continue
        for name in contents.names_before(content, candidates, value):
            used |= {name, value}
            yield Anchor(LITERAL, path, f"{name} {value}")
    others = [*names.code, *filter(_is_specific, names.values)]
    for name in dict.fromkeys(others):
        if budget.is_spent or name in used or name not in content:
            continue
        with contextlib.suppress(TimeoutError):
            anchor = _anchor_of(path, content, name, budget)
            if anchor is not None:
                yield anchor


def _anchor_of(path: str, content: str, name: str, budget: Budget) -> Anchor | None:
    """Return the anchor for a name in a file: a symbol that it defines, or else a literal."""
    try:
        anchor = parse(f"{path}::{name}")
    except InvalidInput:
        return None
    if anchor.kind == SYMBOL and contents.defines_symbol(path, content, name, budget):
        return anchor
    if contents.contains_literal(content, name, budget):
        return Anchor(LITERAL, path, name)
    return None


def _is_specific(value: str) -> bool:
    """Return whether a value without a name is specific enough for an anchor: a port, but not a
    year or a small number.
    """
    return len(value) >= 3 and any(map(str.isdigit, value)) and not _YEAR.fullmatch(value)
