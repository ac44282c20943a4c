"""Reads the parts of a context from a gateway. A context is built without the parts that can't be
read.
"""

import logging
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from memories.context import admission
from memories.context.admission import Admission, Admitted
from memories.context.protocol import (
    Document,
    HistoryTurn,
    MemoryItem,
    TurnAddress,
    address_of,
    describe_error,
    item_of,
    parse_time,
    turn_of,
)
from memories.core.logs import event
from memories.guard.validate import MAX_LIMIT
from memories.models import MAX_TURN_CHARACTERS
from memories.write.turns import SESSION_PAUSE

if TYPE_CHECKING:
    from memories.context.gateway import MemoryGateway

_log = logging.getLogger(__name__)
NEIGHBOURS = 1  # number of turns read before and after a hit
# The neighbours of a hit rank below the 20 hits that follow it, because these contain the answer
# more often (measured with LoCoMo).
NEIGHBOURS_AFTER = 20
HITS_WITH_NEIGHBOURS = 6  # number of best hits whose neighbours are read
Part = TypeVar("Part")


@dataclass
class ReadingLimits:
    """How many turns and memories to read, and which of them may be shown."""

    tail: int
    hits: int
    memories: int
    min_confidence: float
    rules: Admission


@dataclass
class ContextParts:
    """The gathered parts of a context.

    Attributes:
        history: The last turns, oldest first.
        recalled: Turns that answer the question, and their neighbours, most useful first.
        memories: Memories with their similarity, most relevant first.
        errors: The parts that could not be read, each with the reason.
        left_out: A reason and an id for each document that may not be shown.
    """

    history: list[HistoryTurn] = field(default_factory=list)
    recalled: list[HistoryTurn] = field(default_factory=list)
    memories: list[tuple[MemoryItem, float]] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def gather(
    gateway: "MemoryGateway",
    limits: ReadingLimits,
    conversation: str | None,
    query: str,
    message: str,
) -> ContextParts:
    """Read a conversation's last turns, earlier turns that answer a question, and memories.

    Args:
        gateway: The gateway. If it has no `recall_history`, which the specification does not
            require, no earlier turns are recalled.
        limits: How much to read, and what may be shown.
        conversation: The conversation. If None, no last turns are read, and turns are recalled from
            all conversations.
        query: The question.
        message: The message to answer, which may already be stored.
    """
    reader = _Reader(gateway, limits)
    if conversation is not None:
        reader.attempt("history", reader.read_history, conversation, message)
    query = query.replace("\0", " ")  # a search refuses a text with a NUL
    if query.strip():
        reader.attempt("memories", reader.read_memories, query)
        if limits.hits and hasattr(gateway, "recall_history"):
            reader.attempt("recalled", reader.read_recalled, query, conversation)
        if hasattr(gateway, "recall_offline") and reader.has_failed("memories"):
            reader.read_memories_offline(query)
    return reader.gathered


class _Reader:
    def __init__(self, gateway: "MemoryGateway", limits: ReadingLimits) -> None:
        self._gateway, self._limits = gateway, limits
        self.gathered = ContextParts()
        self._message_id: str | None = None  # the id of the message to answer, if it is stored
        self._unreachable: ConnectionError | None = None

    def attempt(self, part: str, read: Callable[..., None], *arguments: str | None) -> None:
        """Read a part, or record why it could not be read. Once the gateway has failed to respond,
        it is not asked again.
        """
        try:
            if self._unreachable is not None:
                raise self._unreachable
            read(*arguments)
        except Exception as exc:  # noqa: BLE001 - a failing memory must not stop an answer
            if isinstance(exc, ConnectionError):
                self._unreachable = exc
            self._record_error(part, exc)

    def has_failed(self, part: str) -> bool:
        """Return whether a part could not be read."""
        return any(error["part"] == part for error in self.gathered.errors)

    def _record_error(self, part: str, exc: Exception) -> None:
        kind = type(exc).__name__
        event(_log, logging.ERROR, "context degraded", part=part, error=str(exc), kind=kind)
        self.gathered.errors.append({"part": part, "error": describe_error(exc)})

    def read_history(self, conversation_id: str, message: str) -> None:
        """Read the last turns, without the message to answer."""

        def read(n: int) -> tuple[int, Admitted]:
            documents = list(self._gateway.tail_history(conversation_id, n))
            earlier = documents
            if documents and _is_message(documents[-1], message):
                self._message_id, earlier = str(documents[-1].get("id")), documents[:-1]
            return len(documents), admission.admit_turns(earlier, self._limits.rules, named=True)

        limit = self._limits.tail
        self.gathered.history = self._parse(turn_of, self._read_enough(read, limit, limit))[-limit:]

    def read_memories(self, query: str) -> None:
        """Read the memories, best first."""
        limit = self._limits.memories

        def read(n: int) -> tuple[int, Admitted]:
            documents = self._gateway.recall_memory(query, n, self._limits.min_confidence)
            return len(documents), admission.admit_memories(documents, self._limits.rules, limit)

        # Read twice as many as wanted, so that space can be divided among several writers.
        documents = self._read_enough(read, limit, min(2 * limit, MAX_LIMIT))
        self.gathered.memories = self._parse(_memory_with_similarity, documents)

    def read_memories_offline(self, query: str) -> None:
        """Read the memories that the gateway can provide without its store."""
        limit, rules = self._limits.memories, self._limits.rules
        try:
            documents = self._gateway.recall_offline(  # type: ignore[attr-defined]
                query, 2 * limit, self._limits.min_confidence
            )
            admitted = self._take(admission.admit_memories(documents, rules, limit))
        except Exception as exc:  # noqa: BLE001 - as in `attempt`
            self._record_error("scratchpad", exc)
            return
        self.gathered.memories = self._parse(_memory_with_similarity, admitted)

    def read_recalled(self, query: str, conversation_id: str | None) -> None:
        """Read the turns that answer the question, and the neighbours of the best ones."""
        limit, rules, named = self._limits.hits, self._limits.rules, conversation_id is not None

        def read(n: int) -> tuple[int, Admitted]:
            documents = self._gateway.recall_history(query, n, conversation_id)
            return len(documents), admission.admit_turns(self._without_message(documents), rules)

        def read_own(n: int) -> tuple[int, Admitted]:
            documents = self._gateway.recall_history(query, n, own=True)
            return len(documents), admission.admit_turns(list(filter(_is_own, documents)), rules)

        documents = self._read_enough(read, limit, limit)
        if not named and len(documents) >= limit and not all(map(_is_own, documents)):
            # Search the reader's own turns too, since other writers may have crowded them out.
            ids = {document["id"] for document in documents}
            own = self._read_enough(read_own, limit, limit)
            documents += [document for document in own if document["id"] not in ids]
        selected = admission.select_recalled(documents, rules, limit, named=named)
        hits = self._parse(turn_of, self._take(selected))
        neighbours = self._read_neighbours(hits[:HITS_WITH_NEIGHBOURS], named=named)
        self.gathered.recalled = interleave_neighbours(hits, neighbours)

    def _read_neighbours(self, hits: Sequence[HistoryTurn], *, named: bool) -> list[HistoryTurn]:
        """Return the turns before and after each hit in the hit's session. Unless the conversation
        was named, only the reader's own turns are returned.
        """
        turns: list[HistoryTurn] = []
        for hit in hits:
            start = max(0, hit.turn_index - NEIGHBOURS)
            count = hit.turn_index + NEIGHBOURS - start + 1
            documents = self._without_message(
                self._gateway.read_history(hit.conversation_id, start, count)
            )
            if not named:
                documents = list(filter(_is_own, documents))
            admitted = self._take(admission.admit_turns(documents, self._limits.rules))
            parsed = self._parse(turn_of, admitted)
            turns += [turn for turn in parsed if _are_in_same_session(turn, hit)]
        return turns

    def _without_message(self, documents: Sequence[Document]) -> list[Document]:
        return [document for document in documents if document.get("id") != self._message_id]

    def _take(self, admitted: Admitted) -> list[Document]:
        """Return the admitted documents, and record those left out."""
        self.gathered.left_out += admitted.left_out
        return admitted.documents

    def _read_enough(
        self, read: Callable[[int], tuple[int, Admitted]], wanted: int, n: int
    ) -> list[Document]:
        """Return admitted documents, reading more documents until enough are admitted.

        Args:
            read: Reads up to a given number of documents; returns how many it has read, and the
                admitted ones.
            wanted: How many admitted documents are enough.
            n: The number of documents to read first.
        """
        while True:
            count, admitted = read(n)
            if len(admitted.documents) >= wanted or count < n or n == MAX_LIMIT:
                return self._take(admitted)
            n = min(MAX_LIMIT, 2 * n)

    def _parse(
        self, parse: Callable[[Document], Part], documents: Sequence[Document]
    ) -> list[Part]:
        """Return the parsed documents. Malformed documents are logged and left out."""
        parsed: list[Part] = []
        for document in documents:
            try:
                parsed.append(parse(document))
            except (KeyError, TypeError, ValueError) as exc:
                error = f"{type(exc).__name__}: {exc}"
                event(_log, logging.WARNING, "document left out", error=error)
        return parsed


def interleave_neighbours(
    hits: Sequence[HistoryTurn], neighbours: Sequence[HistoryTurn]
) -> list[HistoryTurn]:
    """Return hits, best first, interleaved with their neighbours. Each turn appears only once.

    Args:
        hits: The turns that answer the question, best first.
        neighbours: Turns that may be neighbours of hits.
    """
    turns = {address_of(turn): turn for turn in (*neighbours, *hits)}
    ranks: dict[TurnAddress, tuple[int, int]] = {}
    for rank, turn in enumerate(hits):
        ranks.setdefault(address_of(turn), (rank, 0))
    for rank, turn in enumerate(hits):
        for offset in range(-NEIGHBOURS, NEIGHBOURS + 1):
            address = turn.conversation_id, turn.turn_index + offset
            ranks.setdefault(address, (rank + NEIGHBOURS_AFTER, offset))
    ordered = sorted(ranks, key=ranks.__getitem__)
    return [turns[address] for address in ordered if address in turns]


def _are_in_same_session(turn: HistoryTurn, other: HistoryTurn) -> bool:
    """Return whether two neighbouring turns of a conversation belong to the same session."""
    return abs(parse_time(turn.ts) - parse_time(other.ts)) <= SESSION_PAUSE


def _is_own(document: Document) -> bool:
    return bool(document.get("own", True))


def _memory_with_similarity(document: Document) -> tuple[MemoryItem, float]:
    return item_of(document), float(document["similarity"])


def _is_message(document: Document, message: str) -> bool:
    """Return whether a conversation's last turn is the message to answer."""
    text = document.get("text")
    if not isinstance(text, str) or document["metadata"].get("role") != "user":
        return False
    return _words(text) == _words(message)


def _words(text: str) -> list[str]:
    return unicodedata.normalize("NFC", text)[:MAX_TURN_CHARACTERS].split()
