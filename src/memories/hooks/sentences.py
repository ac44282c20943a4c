"""The sentences of what was said: no code, no quotations, no tables. Pure."""

import re

_CODE = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)", re.S)
# Quoted lines, tables, rules, commands and their output, traces, code by its indent.
_NOT_PROSE = re.compile(
    r"\s*(?:>|\||[-=_*]{3,}\s*$|\$ |>>> |\+\+\+|@@|at \w[\w.]*\()|(?: {4,}|\t)(?!\s*(?:[-*•]|\d+[.)])\s)"
)
_BULLET = re.compile(r"\s*(?:(?:[-*•+]|\d{1,3}[.)]|#{1,6})\s+)?(?:\[[ xX]\]\s+)?")
_SHORT = r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\betc)(?<!\bno)(?<!\bca)(?<!\bz\.B)(?<!\bMr)(?<!\bMs)(?<!\bDr)"
_END = re.compile(rf"(?<![.!?…]){_SHORT}[.!?…]+[\"'”’)\]*_]*(?=\s)|[。！？]+[」』”’）]*")
_EMPHASIS = re.compile(r"(?<![\w*])(\*\*|__|\*|_)(?=\S)(.{1,200}?)(?<=\S)\1(?![\w*])")
MAX_TEXT = 200_000
_WRAPPED = 60  # characters of a line that may have been broken for its length


def of(text: str) -> list[str]:
    """Return the sentences of a text, in order, without marks of emphasis and lists."""
    found: list[str] = []
    for paragraph in _paragraphs(_CODE.sub("\n\n", text[:MAX_TEXT])):
        start = 0
        for end in _END.finditer(paragraph):
            found.append(paragraph[start : end.end()].strip())
            start = end.end()
        found.append(paragraph[start:].strip())
    return [each for each in found if each]


def _paragraphs(text: str) -> list[str]:
    """Return lines, those of a wrapped sentence as one."""
    found: list[str] = []
    length = 0  # of the line before, if its sentence may go on
    for line in text.split("\n"):
        if not line.strip() or _NOT_PROSE.match(line):
            length = 0
            continue
        mark = _BULLET.match(line)
        said = _EMPHASIS.sub(r"\2", line[mark.end() if mark else 0 :]).strip()
        goes_on = length >= _WRAPPED and (not mark or not mark[0].strip()) and said[:1].islower()
        if goes_on:
            found[-1] = f"{found[-1]} {said}"
        elif said:
            found.append(said)
        length = len(line) if said and said[-1] not in ".!?:;。！？…" else 0
    return found
