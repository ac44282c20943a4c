"""Pure functions that select the turns and memories for a context, and say why the others are left
out.

The session block has a stricter rule (`identity.session_block`): it also leaves out imported
memories until they are accepted.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.context.protocol import Document
from memories.guard.origin import CAPTURED
from memories.write.suspicion import find_marks

if TYPE_CHECKING:
    from memories.guard.origin import Origin

# Reasons for leaving a document out.
SUSPICIOUS, TOOL_TURN, ONE_WRITER, NO_ROOM = "suspicious", "tool_turn", "one_writer", "no_room"
PER_WRITER = 3
MEMORY_CHARACTERS = 8_000
MAX_IDS = 20  # maximum number of ids listed for each reason; all documents are counted
_TOOL_ROLES = ("tool", "system")


class Admission(NamedTuple):
    """Rules for what enters a context.

    Attributes:
        suspicious: Whether to admit texts that may be instructions to a model. They are marked.
        tool_turns: Whether to admit turns with the roles `tool` and `system`, which no person
            wrote.
        per_writer: The maximum number of memories, and of recalled turns, by any one writer other
            than the reader's own agents; None for no limit.
        memory_characters: The maximum total length of the memories, in characters.
    """

    suspicious: bool = False
    tool_turns: bool = False
    per_writer: int | None = PER_WRITER
    memory_characters: int = MEMORY_CHARACTERS


class Admitted(NamedTuple):
    """The admitted documents, in order, and a reason and an id for each document left out."""

    documents: list[Document]
    left_out: list[tuple[str, str]]


def admit_turns(
    documents: Sequence[Document], rules: Admission, *, named: bool = False
) -> Admitted:
    """Return a conversation's turns that may be shown, with their `suspicious` marks.

    Args:
        documents: The turns.
        rules: The rules.
        named: Whether the caller named the conversation; otherwise captured turns are left out.
    """
    admitted: list[Document] = []
    left_out: list[tuple[str, str]] = []
    for document in map(_mark, documents):
        reason = ""
        if document["suspicious"] and not rules.suspicious:
            reason = SUSPICIOUS
        elif document.get("metadata", {}).get("role") in _TOOL_ROLES and not rules.tool_turns:
            reason = TOOL_TURN
        elif not named and _is_captured(document):
            reason = CAPTURED
        if reason:
            left_out.append((reason, _id(document)))
        else:
            admitted.append(document)
    return Admitted(admitted, left_out)


def is_admitted(document: Document, rules: Admission) -> bool:
    """Return whether a memory may be shown, regardless of how many others are shown."""
    return not _find_reason(_mark(document), rules)


def select_recalled(
    turns: Sequence[Document], rules: Admission, limit: int, *, named: bool
) -> Admitted:
    """Return the best turns, up to the limit, chosen so that no writer crowds out the others.

    Space is divided among writers in the same way as for memories. The writer is taken from the
    origin, since role, speaker and conversation are only claims.

    Args:
        turns: Admitted turns, best first.
        rules: The rules.
        limit: The maximum number of turns.
        named: Whether the caller named the conversation; if so, every writer in it may use the
            remaining space.
    """
    candidates = [{**turn, "own": True} for turn in turns] if named else turns
    rows = _divide(candidates, rules.per_writer, limit)
    return Admitted([turns[row] for row in rows], _crowded_out(turns, rows, limit))


def admit_memories(documents: Sequence[Document], rules: Admission, limit: int) -> Admitted:
    """Return the memories that may be shown, best first.

    First, each writer gets up to `per_writer` memories. The remaining space is then divided in the
    same way, but only among the reader's own agents.

    Args:
        documents: The memories, best first. Pass more than `limit`, so that there are enough from
            several writers.
        rules: The rules.
        limit: The maximum number of memories.
    """
    left_out: list[tuple[str, str]] = []
    safe: list[Document] = []
    for document in map(_mark, documents):
        reason = _find_reason(document, rules)
        if reason:
            left_out.append((reason, _id(document)))
        else:
            safe.append(document)
    rows = _divide(safe, rules.per_writer, limit)
    left_out += _crowded_out(safe, rows, limit)
    admitted: list[Document] = []
    room = rules.memory_characters
    for row in sorted(rows):
        size = len(safe[row]["text"])
        if size <= room or not admitted:
            admitted.append(safe[row])
            room -= size
        else:
            left_out.append((NO_ROOM, _id(safe[row])))
    return Admitted(admitted, left_out)


def summarize(left_out: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return, for each reason, the number of documents left out and the ids of the first few."""
    summary: dict[str, Any] = {}
    for reason, count in Counter(reason for reason, _ in left_out).items():
        ids = [document_id for why, document_id in left_out if why == reason]
        summary[reason] = {"count": count, "ids": ids[:MAX_IDS]}
    return summary


def _divide(documents: Sequence[Document], per_writer: int | None, limit: int) -> list[int]:
    """Choose documents in rounds; return the positions of the chosen ones.

    In each round, the next best `per_writer` documents of every writer are chosen. After the first
    round, only the reader's own agents take part.
    """
    if per_writer is None:
        return list(range(min(limit, len(documents))))
    counts: Counter[tuple[Any, ...]] = Counter()
    rounds: list[tuple[int, int]] = []
    for row, document in enumerate(documents):
        origin: Origin | None = document.get("origin")
        writer: tuple[Any, ...] = (document["metadata"].get("namespace"),)
        if origin is not None:
            writer = (origin.by, origin.user, origin.namespace, origin.trust)
        if counts[writer] < per_writer or document.get("own", True):
            rounds.append((counts[writer] // max(1, per_writer), row))
        counts[writer] += 1
    return [row for _, row in sorted(rounds)[:limit]]


def _crowded_out(
    documents: Sequence[Document], rows: Sequence[int], limit: int
) -> list[tuple[str, str]]:
    """Return the documents left out only because their writers had used up their shares.

    If the limit was reached, these are the ones that rank above the last admitted document.
    """
    end = max(rows, default=-1) if len(rows) == limit else len(documents)
    admitted = set(rows)
    return [
        (ONE_WRITER, _id(document))
        for row, document in enumerate(documents[:end])
        if row not in admitted
    ]


def _find_reason(document: Document, rules: Admission) -> str:
    """Return the reason a memory may not be shown, or an empty string if it may be."""
    if document["suspicious"] and not rules.suspicious:
        return SUSPICIOUS
    return CAPTURED if _is_captured(document) else ""


def _is_captured(document: Document) -> bool:
    """Return whether a document was captured by a hook and has not been accepted in a review."""
    origin: Origin | None = document.get("origin")
    return origin is not None and origin.trust == CAPTURED and not document.get("accepted")


def _mark(document: Document) -> Document:
    """Return a document with its suspicion marks.

    The marks are computed if an earlier version of Memories stored the document without any.
    """
    if not isinstance(document.get("text"), str):
        return {**document, "suspicious": ()}  # a malformed document is left out later anyway
    return {**document, "suspicious": document.get("suspicious") or find_marks(document["text"])}


def _id(document: Document) -> str:
    return str(document.get("id", ""))
