"""What a session left, in its own sentences: what was asked, decided, solved and left open. No model writes it. Pure."""

import re
from collections.abc import Callable, Iterable

from memories.skins.capture import sentences
from memories.skins.capture.extract import ASSISTANT, USER

MOST = 1_200  # characters
_OF_EACH = 4  # sentences of a part
_SHORTEST, _LONGEST, _ASKED = 12, 240, 160
_PARTS = ("Asked", "Decided", "Solved", "Open")
_DECIDED = re.compile(
    r"(?i)\b(?:decided (?:to|that|on|against|not to)|we(?:'ll| will) (?:use|go with|keep|switch)|let's (?:use|go with|keep)|"
    r"we(?:'re| are) going with|agreed (?:to|on|that)|beschlossen|entschieden|décidé|decidido|deciso)\b|^decision:"
)
_SOLVED = re.compile(
    r"(?i)\b(?:(?:solved|fixed|resolved) (?:it |this |that |the |by )|root cause (?:was|is)|(?:the|that) (?:bug|issue|problem) was|"
    r"(?:is|are|was|were|now) (?:fixed|solved|resolved)|tests? (?:now )?pass|discovered|learned that|gelöst|résolu|resuelto)\b"
)
_OPEN = re.compile(
    r"(?i)^(?:TODO|FIXME)\b|\b(?:still (?:need|needs|have|has|open|missing|fails?|to do)|next steps?|remaining|left to do|not yet|"
    r"follow[- ]up|remains (?:open|to)|open question|noch offen|reste à|queda por|pendiente)\b"
)
_QUOTED_ONLY = re.compile(r"^[\"'“`]")
_MAY_BE = re.compile(r"(?i)\b(?:if|would|could|might|maybe|perhaps|suppose|imagine)\b")


def of(said: Iterable[tuple[str, str]], is_fit: Callable[[str], bool]) -> str:
    """Return what a session left; empty if nothing was decided, solved or left open.

    Args:
        said: Who said what, in order: a role and a text.
        is_fit: Whether a sentence may stand in it.
    """
    parts: dict[str, dict[str, str]] = {name: {} for name in _PARTS}
    for role, text in said:
        if role not in (USER, ASSISTANT):
            continue
        for sentence in sentences.of(text):
            if not parts["Asked"] and role == USER and is_fit(sentence):
                parts["Asked"][""] = sentence
            part = _part(sentence)
            if part and is_fit(sentence):
                parts[part].pop(sentence.casefold(), None)  # said again, it is the newer one
                parts[part][sentence.casefold()] = sentence
    if not any(parts[name] for name in _PARTS[1:]):
        return ""
    rows = []
    for name in _PARTS:
        most = _ASKED if name == "Asked" else _LONGEST
        shown = [_cut(each, most) for each in list(parts[name].values())[-_OF_EACH:]]
        rows += [f"{name}: {each}" for each in shown]
    while len("\n".join(rows)) > MOST:
        rows.pop(1 if len(rows) > 1 else 0)
    return "\n".join(rows)


def _part(sentence: str) -> str | None:
    """Return the part of a summary that a sentence belongs to, if any."""
    if len(sentence) < _SHORTEST or _QUOTED_ONLY.match(sentence) or sentence.rstrip("\"'”)").endswith(("?", "？")):
        return None
    if _OPEN.search(sentence):
        return "Open"
    if _MAY_BE.search(sentence):
        return None
    if _SOLVED.search(sentence):
        return "Solved"
    return "Decided" if _DECIDED.search(sentence) else None


def _cut(sentence: str, most: int) -> str:
    return sentence if len(sentence) <= most else f"{sentence[: most - 1].rsplit(' ', 1)[0]}…"
