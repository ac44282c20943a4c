"""What a gateway knows that may stand in a context; a part that can't be read is missing, and the
context goes on.
"""

import logging
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from memories.context import admission, recalling
from memories.context.admission import Admission, Admitted
from memories.context.payloads import Document, HistoryTurn, MemoryItem, item_of, moment, turn_of
from memories.core.logs import event
from memories.guard.validate import MAX_LIMIT
from memories.models import MAX_TURN_CHARACTERS
from memories.write.turns import SESSION_PAUSE

if TYPE_CHECKING:
    from memories.context.gateway import MemoryGateway

_log = logging.getLogger(__name__)
BESIDE_HITS = 6  # best hits whose neighbours are read
FAR = 8  # two hits that are no further apart are read together
_Part = TypeVar("_Part")


@dataclass
class Wanted:
    """What is read: how many turns and memories, what they must be like, and what may be shown."""

    tail: int
    hits: int
    memories: int
    min_confidence: float
    rules: Admission


@dataclass
class Gathered:
    """What was found.

    Attributes:
        history: The last turns that may be shown, oldest first.
        recalled: Turns that answer, and those beside them, by need.
        memories: Memories with their similarity, most relevant first.
        errors: What could not be read, and why.
        left_out: Reasons and ids of what may not be shown.
    """

    history: list[HistoryTurn] = field(default_factory=list)
    recalled: list[HistoryTurn] = field(default_factory=list)
    memories: list[tuple[MemoryItem, float]] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


def gather(
    gateway: "MemoryGateway", wanted: Wanted, conversation: str | None, query: str, message: str
) -> Gathered:
    """Read the last turns of a conversation, what of its earlier turns answers a question, and
    memories.

    Args:
        gateway: Where from. One without `recall_history`, as the specification has it, recalls no
            turns.
        wanted: How much.
        conversation: The conversation; None for no last turns, and to recall turns of all
            conversations.
        query: The question.
        message: The message that is to be answered; it may have been stored already.
    """
    reader = _Reader(gateway, wanted)
    if conversation is not None:
        reader.attempt("history", lambda: reader.history(conversation, message))
    if query.strip():
        reader.attempt("memories", lambda: reader.memories(query))
        if wanted.hits and hasattr(gateway, "recall_history"):
            reader.attempt("recalled", lambda: reader.recalled(query, conversation))
        if hasattr(gateway, "recall_offline") and any(
            each["part"] == "memories" for each in reader.found.errors
        ):
            reader.offline(query)
    return reader.found


class _Reader:
    """Reads one part after another."""

    def __init__(self, gateway: "MemoryGateway", wanted: Wanted) -> None:
        self._gateway, self._wanted = gateway, wanted
        self.found = Gathered()
        self._latest: str | None = None  # the id of the message, if it is stored
        self._unreachable: ConnectionError | None = None

    def attempt(self, part: str, read: Callable[[], None]) -> None:
        """Read a part; if that fails, add the reason to the errors. Where nobody answered, nobody
        is asked again.
        """
        try:
            if self._unreachable is not None:
                raise self._unreachable
            read()
        except Exception as exc:  # noqa: BLE001 - an answer never fails for what is remembered
            if isinstance(exc, ConnectionError):
                self._unreachable = exc
            self._failed(part, exc)

    def _failed(self, part: str, exc: Exception) -> None:
        event(
            _log,
            logging.ERROR,
            "context degraded",
            part=part,
            error=str(exc),
            kind=type(exc).__name__,
        )
        self.found.errors.append(
            {"part": part, "error": " ".join(str(exc).split()) or type(exc).__name__}
        )

    def history(self, conversation_id: str, latest: str) -> None:
        """Read the last turns, without the latest message."""

        def read(n: int) -> tuple[list[Document], Admitted]:
            found = list(self._gateway.tail_history(conversation_id, n))
            earlier = found
            if found and _is_latest(found[-1], latest):
                self._latest, earlier = str(found[-1].get("id")), found[:-1]
            return found, admission.turns(earlier, self._wanted.rules, named=True)

        most = self._wanted.tail
        self.found.history = self._each(turn_of, self._enough(read, most, most))[-most:]

    def memories(self, query: str) -> None:
        """Read the memories, best first."""
        most = self._wanted.memories

        def read(n: int) -> tuple[list[Document], Admitted]:
            found = self._gateway.recall_memory(query, n, self._wanted.min_confidence)
            return found, admission.memories(found, self._wanted.rules, most)

        # Twice as many as are wanted, so that there are others to divide the room among.
        admitted = self._enough(read, most, min(2 * most, MAX_LIMIT))
        self.found.memories = self._each(
            lambda found: (item_of(found), float(found["similarity"])), admitted
        )

    def offline(self, query: str) -> None:
        """Take what the gateway knows without its store."""
        wanted = self._wanted
        try:
            found = self._gateway.recall_offline(query, 2 * wanted.memories, wanted.min_confidence)  # type: ignore[attr-defined]
            admitted = self._admitted(admission.memories(found, wanted.rules, wanted.memories))
        except Exception as exc:  # noqa: BLE001 - as in `attempt`
            self._failed("scratchpad", exc)
            return
        self.found.memories = self._each(
            lambda each: (item_of(each), float(each["similarity"])), admitted
        )

    def recalled(self, query: str, conversation_id: str | None) -> None:
        """Read the turns that answer, and those beside the best."""
        most, named = self._wanted.hits, conversation_id is not None

        def read(n: int) -> tuple[list[Document], Admitted]:
            found = self._gateway.recall_history(query, n, conversation_id)
            others = [document for document in found if document.get("id") != self._latest]
            return found, admission.turns(others, self._wanted.rules)

        def read_own(n: int) -> tuple[list[Document], Admitted]:
            found = self._gateway.recall_history(query, n, own=True)
            own = [document for document in found if _is_own(document)]
            return found, admission.turns(own, self._wanted.rules)

        documents = self._enough(read, most, most)
        if (
            not named and len(documents) >= most and not all(map(_is_own, documents))
        ):  # others may crowd out one's own
            known = {document["id"] for document in documents}
            documents += [
                each for each in self._enough(read_own, most, most) if each["id"] not in known
            ]
        admitted = admission.recalled(documents, self._wanted.rules, most, named=named)
        hits = self._each(turn_of, self._admitted(admitted))
        self.found.recalled = recalling.by_need(hits, self._beside(hits[:BESIDE_HITS], named=named))

    def _beside(self, hits: Sequence[HistoryTurn], *, named: bool) -> list[HistoryTurn]:
        """Return the turns before and after hits that are of their sessions; without a name none of
        other writers.
        """
        places = {recalling.place_of(turn): turn for turn in hits}
        read: list[HistoryTurn] = []
        for conversation, first, last in _stretches(sorted(places)):
            start = max(0, first - recalling.BESIDE)
            found = self._gateway.read_history(
                conversation, start, last + recalling.BESIDE - start + 1
            )
            others = [document for document in found if document.get("id") != self._latest]
            others = [document for document in others if named or _is_own(document)]
            read += self._each(turn_of, self._admitted(admission.turns(others, self._wanted.rules)))
        return [
            turn for turn in read if any(_together(turn, hit) for hit in _hits_beside(turn, places))
        ]

    def _admitted(self, admitted: Admitted) -> list[Document]:
        self.found.left_out += admitted.left_out
        return admitted.documents

    def _enough(
        self, read: Callable[[int], tuple[list[Document], Admitted]], wanted: int, n: int
    ) -> list[Document]:
        """Return what may be shown; ask for more while what is left out takes the place of what is
        wanted.
        """
        while True:
            found, admitted = read(n)
            if len(admitted.documents) >= wanted or len(found) < n or n == MAX_LIMIT:
                return self._admitted(admitted)
            n = min(MAX_LIMIT, 2 * n)

    def _each(
        self, read: Callable[[Document], _Part], documents: Sequence[Document]
    ) -> list[_Part]:
        """Return what each document holds; one that can't be read is left out and logged."""
        found = []
        for document in documents:
            try:
                found.append(read(document))
            except (KeyError, TypeError, ValueError) as exc:
                event(
                    _log, logging.WARNING, "document left out", error=f"{type(exc).__name__}: {exc}"
                )
        return found


def _stretches(places: Sequence[recalling.Place]) -> list[tuple[str, int, int]]:
    """Return conversations with the first and the last place of hits that are close to one
    another.
    """
    stretches: list[tuple[str, int, int]] = []
    for conversation, index in places:
        if stretches and stretches[-1][0] == conversation and index - stretches[-1][2] <= FAR:
            stretches[-1] = (conversation, stretches[-1][1], index)
        else:
            stretches.append((conversation, index, index))
    return stretches


def _hits_beside(turn: HistoryTurn, hits: dict[recalling.Place, HistoryTurn]) -> list[HistoryTurn]:
    near = range(turn.turn_index - recalling.BESIDE, turn.turn_index + recalling.BESIDE + 1)
    return [hits[turn.conversation_id, at] for at in near if (turn.conversation_id, at) in hits]


def _together(one: HistoryTurn, other: HistoryTurn) -> bool:
    return timedelta() <= abs(moment(one.ts) - moment(other.ts)) <= SESSION_PAUSE


def _is_own(document: Document) -> bool:
    return bool(document.get("own", True))


def _is_latest(document: Document, latest: str) -> bool:
    """Return whether the last turn is the message that is to be answered."""
    text = document.get("text")
    return (
        isinstance(text, str)
        and document["metadata"].get("role") == "user"
        and _said(text) == _said(latest)
    )


def _said(text: str) -> list[str]:
    """Return the words of a message, to compare it with a stored one."""
    return unicodedata.normalize("NFC", text)[:MAX_TURN_CHARACTERS].split()
