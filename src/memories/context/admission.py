"""What may enter a prompt by itself: which turns and memories are left out of a context, and why.
Pure.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memories.context.payloads import Document
from memories.guard.origin import CAPTURED
from memories.write.suspicion import find_marks

if TYPE_CHECKING:
    from memories.guard.origin import Origin

# Reasons.
SUSPICIOUS, TOOL_TURN, ONE_WRITER, NO_ROOM = "suspicious", "tool_turn", "one_writer", "no_room"
PER_WRITER = 3
MEMORY_CHARACTERS = 8_000
MAX_NAMED = 20  # documents that are named for a reason; all are counted
_TOOL_ROLES = ("tool", "system")


class Admission(NamedTuple):
    """What a context takes in.

    Attributes:
        suspicious: Also texts that seem to give orders to a model; they are marked.
        tool_turns: Also turns of the roles `tool` and `system`, which nobody said.
        per_writer: How many memories, and how many recalled turns, of one other writer at most;
            None for no limit.
        memory_characters: How many characters all memories together have at most.
    """

    suspicious: bool = False
    tool_turns: bool = False
    per_writer: int | None = PER_WRITER
    memory_characters: int = MEMORY_CHARACTERS


class Admitted(NamedTuple):
    """Documents that a context takes in, in their order, and what it leaves out: the reason, and
    the id.
    """

    documents: list[Document]
    left_out: list[tuple[str, str]]


def turns(documents: Sequence[Document], rules: Admission, *, named: bool = False) -> Admitted:
    """Return the turns of a conversation that may be shown; those that are suspicious have their
    `suspicious` marks.

    Args:
        documents: The turns.
        rules: What is taken in.
        named: Whoever asks named their conversation; else what a hook captured is left out.
    """
    kept: list[Document] = []
    left_out: list[tuple[str, str]] = []
    for found in map(_marked, documents):
        if found["suspicious"] and not rules.suspicious:
            left_out.append((SUSPICIOUS, _id(found)))
        elif _role(found) in _TOOL_ROLES and not rules.tool_turns:
            left_out.append((TOOL_TURN, _id(found)))
        elif not named and _is_captured(found):
            left_out.append((CAPTURED, _id(found)))
        else:
            kept.append(found)
    return Admitted(kept, left_out)


def recalled(turns: Sequence[Document], rules: Admission, most: int, *, named: bool) -> Admitted:
    """Return the turns that answer and that there is room for, those first that no single writer
    can push out.

    Room is divided among writers as it is for memories. A writer is who the origin names: a role, a
    speaker and a conversation are what the writer says.

    Args:
        turns: Turns that may be shown, best first.
        rules: What is taken in.
        most: How many at most.
        named: Whoever asks named the conversation, so all who write there have a part in the room
            that is left.
    """
    rows = _divided(
        [{**each, "own": True} for each in turns] if named else turns, rules.per_writer, most
    )
    return Admitted([turns[row] for row in rows], _crowded_out(turns, rows, most))


def memories(documents: Sequence[Document], rules: Admission, most: int) -> Admitted:
    """Return the memories that may be shown, best first.

    Room is divided: no writer gets more than `per_writer` before all others have had as many. What
        room is left then
    goes to the reader's own agents in the same way, and never to another writer.

    Args:
        documents: What was found, best first; more than `most` if there is more.
        rules: What is taken in.
        most: How many at most.
    """
    left_out: list[tuple[str, str]] = []
    safe: list[Document] = []
    for found in map(_marked, documents):
        if found["suspicious"] and not rules.suspicious:
            left_out.append((SUSPICIOUS, _id(found)))
        elif _is_captured(found):
            left_out.append((CAPTURED, _id(found)))
        else:
            safe.append(found)
    rows = _divided(safe, rules.per_writer, most)
    left_out += _crowded_out(safe, rows, most)
    kept: list[Document] = []
    room = rules.memory_characters
    for row in sorted(rows):
        size = len(safe[row]["text"])
        if size <= room or not kept:
            kept.append(safe[row])
            room -= size
        else:
            left_out.append((NO_ROOM, _id(safe[row])))
    return Admitted(kept, left_out)


def _is_captured(found: Document) -> bool:
    """Return whether a hook wrote this, and nobody has accepted it since."""
    origin: Origin | None = found.get("origin")
    return origin is not None and origin.trust == CAPTURED and not found.get("accepted")


def told(left_out: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return how many documents were left out for each reason, and the first ids; empty if none
    was.
    """
    return {
        reason: {
            "count": count,
            "ids": [name for why, name in left_out if why == reason][:MAX_NAMED],
        }
        for reason, count in Counter(reason for reason, _ in left_out).items()
    }


def _divided(found: Sequence[Document], per_writer: int | None, most: int) -> list[int]:
    """Return the places of those that are taken in, in rounds: in each, every writer has
    `per_writer` of its best.

    After the first round only the reader's own agents are left.
    """
    if per_writer is None:
        return list(range(min(most, len(found))))
    taken: Counter[tuple[Any, ...]] = Counter()
    rounds: list[tuple[int, int]] = []
    for row, document in enumerate(found):
        who = _writer(document)
        if taken[who] < per_writer or document.get("own", True):
            rounds.append((taken[who] // max(1, per_writer), row))
        taken[who] += 1
    return [row for _, row in sorted(rounds)[:most]]


def _crowded_out(
    found: Sequence[Document], rows: Sequence[int], most: int
) -> list[tuple[str, str]]:
    """Return what is left out because its writer has had its share: what is better than something
    that is taken in.
    """
    last = max(rows, default=-1) if len(rows) == most else len(found)
    return [
        (ONE_WRITER, _id(each)) for row, each in enumerate(found[:last]) if row not in set(rows)
    ]


def _writer(document: Document) -> tuple[Any, ...]:
    origin: Origin | None = document.get("origin")
    if origin is None:
        return (document["metadata"].get("namespace"),)
    return (origin.by, origin.user, origin.namespace, origin.trust)


def _marked(document: Document) -> Document:
    """Return a document with the marks of its text: also of one that was written before there were
    any.
    """
    if not isinstance(document.get("text"), str):
        return {**document, "suspicious": ()}  # it can't be shown either
    return {**document, "suspicious": document.get("suspicious") or find_marks(document["text"])}


def _role(document: Document) -> Any:
    return document.get("metadata", {}).get("role")


def _id(document: Document) -> str:
    return str(document.get("id", ""))
