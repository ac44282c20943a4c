"""How what was said in a session is stored: turns as history, candidates to be reviewed, and what
the session left.
"""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from memories.context.policy import MemoryPolicy, window_key
from memories.errors import InvalidInput, NotFound
from memories.guard.origin import user
from memories.hooks import echo, extract
from memories.hooks.extract import Candidate
from memories.hooks.session import Session
from memories.hooks.session_note import write_note
from memories.identity.project import Project
from memories.memories import Memories
from memories.models import SESSION, SESSION_KEY
from memories.read.turns import Turn, TurnDraft
from memories.write.suspicion import find_marks

WINDOW = "window"  # the tag that counts memories, as agents use it
_BATCH = 100
_MOST_TURNS = 1_000  # of a session, for the note that it leaves
_MOST_GIVEN = 200  # memories that a session was given and are compared
_FOUND = 5  # memories that are compared with a candidate


class Said(NamedTuple):
    """What somebody said in a session.

    Attributes:
        role: `user`, `assistant` or `tool`.
        text: What was said.
        at: When.
        number: How often the same was said before by that role, and this time.
    """

    role: str
    text: str
    at: datetime
    number: int = 1

    @property
    def mark(self) -> str:
        """What the text is known by."""
        return hashlib.blake2b(self.text.encode("utf-8", "replace"), digest_size=12).hexdigest()


class Source(NamedTuple):
    """Where it was said.

    Attributes:
        name: Host and session, as files are named.
        host: The host.
        folder: Where the agent works.
        project: The project of that folder, if it has one.
        session: What the session was given.
    """

    name: str
    host: str
    folder: Path
    project: Project | None
    session: Session

    @property
    def conversation(self) -> str:
        """The conversation that the session is."""
        return self.name.replace(".", ":", 1)

    @property
    def tags(self) -> dict[str, str]:
        """The tags that tell of it."""
        if self.project is None:
            return {"agent": self.host}
        found = {"agent": self.host, "project": self.project.name}
        return found if self.project.branch is None else found | {"branch": self.project.branch}


def write(
    memories: Memories, readable: Memories, source: Source, said: Sequence[Said], *, ends: bool
) -> tuple[int, int, int]:
    """Store what was said in a session; doing it again changes nothing.

    Args:
        memories: The memory of the one who was spoken with, and of nobody else.
        readable: All that they read, with the same store.
        source: Where it was said.
        said: What, in order.
        ends: The session ends, or forgets its beginning: it leaves a note.

    Returns:
        How many turns are new, how many memories now wait for review, and how many summaries were
        written.
    """
    turns = [each for each in said if each.role != extract.TOOL and each.text]
    places: dict[Said, str] = {}
    new = 0
    for first in range(0, len(turns), _BATCH):
        part = turns[first : first + _BATCH]
        drafts = [
            TurnDraft(each.text, each.role, created_at=each.at, message_id=_id(each))
            for each in part
        ]
        for each, turn in zip(part, memories.add_turns(source.conversation, drafts), strict=True):
            places[each] = turn.id
            new += turn.status == "stored"
    if new:
        memories.update_conversation(source.conversation, user=user() or None, tags=source.tags)
    known = _Known(readable, source)
    return (
        new,
        _propose(memories, source, said, places, known),
        int(ends and _leave(memories, source, known)),
    )


def _id(said: Said) -> str:
    return f"{said.role}:{said.mark}:{said.number}"


def _propose(
    memories: Memories,
    source: Source,
    said: Sequence[Said],
    places: dict[Said, str],
    known: "_Known",
) -> int:
    """Store the candidates that the policy lets through, so that they wait for review; return how
    many are new.
    """
    config = memories.config
    policy = MemoryPolicy(
        config.memory_confidence_min,
        config.memory_max_per_window,
        lambda key: _count(memories, key),
    )
    proposed = 0
    for each in said:
        for candidate in extract.candidates(each.text, each.role):
            window = window_key(source.conversation, each.at)
            fits = policy.should_store(candidate.kind, candidate.confidence) and not known.has(
                candidate.content
            )
            if fits and policy.enforce_rate_limit(window):
                proposed += _wait(memories, source, candidate, window, places.get(each))
    return proposed


def _wait(
    memories: Memories, source: Source, candidate: Candidate, window: str, place: str | None
) -> bool:
    tags = source.tags | {
        "type": candidate.kind,
        WINDOW: window,
        "phrase": candidate.by.rstrip(":"),
    }
    made = memories.create(
        candidate.content,
        tags=tags,
        confidence=candidate.confidence,
        pending=True,
        source=place or source.conversation,
    )
    return made.stored


def _count(memories: Memories, window: str) -> int:
    """Return how many memories a window has, those that wait among them."""
    found = [
        memories.list(tags={WINDOW: window}, pending=pending, limit=1_000).memories
        for pending in (True, False)
    ]
    return sum(memory.namespace == memories.namespace for page in found for memory in page)


def _leave(memories: Memories, source: Source, known: "_Known") -> bool:
    """Store what the session left; a later end of it is a new version. Return whether it says
    something new.
    """
    key = f"{SESSION_KEY}{source.name.replace('.', '/', 1)}"
    turns = ((turn.role, turn.content) for turn in _turns(memories, source.conversation))
    note = write_note(
        turns, lambda sentence: not find_marks(sentence) and not known.was_given(sentence)
    )
    if not note:
        return False
    return memories.create(
        note, tags=source.tags | {"type": SESSION}, key=key, source=source.conversation
    ).stored


def _turns(memories: Memories, conversation: str) -> Iterator[Turn]:
    yield from memories.tail_turns(conversation, limit=_MOST_TURNS)


class _Known:
    """What a session was given, what is remembered, and what instruction files say: none of it is
    news.
    """

    def __init__(self, memories: Memories, source: Source) -> None:
        self._memories, self._source = memories, source
        self._given: list[str] | None = None
        self._instructions: list[str] | None = None

    def has(self, sentence: str) -> bool:
        """Return whether a sentence says nothing new."""
        return (
            self.was_given(sentence)
            or self._is_instructed(sentence)
            or self._is_remembered(sentence)
        )

    def was_given(self, sentence: str) -> bool:
        """Return whether a sentence repeats what a hook put into the session."""
        if echo.marks(sentence) & self._source.session.said:
            return True
        if self._given is None:
            self._given = list(self._texts())
        return bool(self._given) and echo.repeats(sentence, self._given)

    def _texts(self) -> Iterator[str]:
        for memory_id in sorted(self._source.session.given)[-_MOST_GIVEN:]:
            if "#" in memory_id:
                continue  # a turn
            try:
                yield self._memories.get(memory_id).content
            except (NotFound, InvalidInput):
                continue  # it was forgotten since

    def _is_instructed(self, sentence: str) -> bool:
        if self._instructions is None:
            root = None if self._source.project is None else self._source.project.root
            self._instructions = echo.instructions(self._source.folder, root, Path.home())
        return bool(self._instructions) and echo.repeats(sentence, self._instructions)

    def _is_remembered(self, sentence: str) -> bool:
        hits = self._memories.search(sentence[:1_000], limit=_FOUND, min_confidence=0.0)
        return echo.repeats(
            sentence, [hit.memory.content for hit in hits if hit.memory.tags.get("type") != SESSION]
        )
