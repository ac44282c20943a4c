"""The flusher: stores the inbox as conversation turns, proposals and session notes.

An event leaves the inbox only after everything in it is stored. If a flusher is killed, the next
one recognizes what is already stored: a turn by its text and its number among turns with the same
text, and a memory by its text.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from memories.config import load_config
from memories.context.fitting import largest_fitting
from memories.context.tokens import estimate_tokens
from memories.core.disk import try_lock
from memories.core.events import note as note_operation
from memories.errors import ConfigError, SystemFault
from memories.guard.origin import user
from memories.guard.validate import amount
from memories.hooks import files, inbox, runs, session
from memories.hooks.handler import store_mark
from memories.hooks.proposals import KnownTexts, SessionSource, propose
from memories.hooks.sentences import split_sentences
from memories.hooks.switch import parse_wish
from memories.hooks.transcripts import (
    ASSISTANT,
    TOOL,
    USER,
    Event,
    Progress,
    Utterance,
    prune_progress,
    read_utterances,
)
from memories.identity.project import identify
from memories.memories import Memories
from memories.models import SESSION
from memories.read.turns import TurnDraft
from memories.settings import Config
from memories.write.captured import FLUSH_LOCK
from memories.write.suspicion import find_marks

_ATTEMPTS = 3  # number of attempts before a session that can't be stored is moved away
_ROUNDS = 20  # maximum number of passes over the inbox
_BATCH = 100  # number of turns stored at a time
_ENDING_EVENTS = ("session-end", "pre-compact")  # after these events, a session leaves a note

# Maximum lengths of the two parts of a session note. The notes must be short, because every session
# in the project starts with the latest ones.
REQUEST_TOKENS, ANSWER_TOKENS = 30, 50
_MAX_NOTE_TURNS = 1_000
_MAX_CHARACTERS = 1_000  # a longer part never fits; this check is faster than counting tokens
_MIN_CHARACTERS = 12  # a shorter first sentence is usually a greeting or thanks


class StoredCounts(NamedTuple):
    """Counts of new records in the store.

    Attributes:
        turns: Number of new turns.
        proposed: Number of new memories that await review.
        summaries: Number of new session notes and new versions of existing ones.
    """

    turns: int = 0
    proposed: int = 0
    summaries: int = 0


class Flushed(NamedTuple):
    """The result of a flush.

    Attributes:
        sessions: Number of sessions that had something to store.
        turns: Number of new turns.
        proposed: Number of new memories that await review.
        summaries: Number of new session notes and new versions of existing ones.
        waiting: Number of bytes that are still in the inbox.
        reasons: Sentences that say why events are still in the inbox or were moved aside.
    """

    sessions: int = 0
    turns: int = 0
    proposed: int = 0
    summaries: int = 0
    waiting: int = 0
    reasons: tuple[str, ...] = ()


def flush(home: str) -> Flushed:
    """Store the inbox's events until no more arrive, unless another process is already doing so."""
    if not os.path.isdir(os.path.join(home, files.INBOX)):
        return Flushed()
    flusher = _Flusher(home)
    failed: set[str] = set()
    for _ in range(_ROUNDS):
        with try_lock(Path(home, files.INBOX, FLUSH_LOCK), 0) as is_locked:
            if not is_locked:
                break
            for name in inbox.names(home):
                if name not in failed and not flusher.store(name):
                    failed.add(name)
            session.prune(home)
            prune_progress(home)
        # Check this after releasing the lock: while it was held, any flusher that a hook started
        # for new events exited at once.
        if not set(inbox.names(home)) - failed:
            break
    return flusher.result()


class _Flusher:
    """Stores sessions one by one, and counts the results."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._sessions = 0
        self._stored = StoredCounts()
        self._reasons: list[str] = []

    def result(self) -> Flushed:
        """Return the counts so far, and how many bytes are still in the inbox."""
        waiting = inbox.size(self._home)
        return Flushed(self._sessions, *self._stored, waiting, tuple(self._reasons))

    def store(self, name: str) -> bool:
        """Store one session's events; return False if they stay in the inbox."""
        try:
            is_stored = self._store_events(name)
        except (SystemFault, ConfigError, OSError) as exc:
            self._report(f"{name} stays in the inbox: {exc}")
            return False
        except Exception as exc:  # noqa: BLE001 - one session must not keep the others from being stored
            progress = Progress(self._home, name)  # the state before this attempt
            progress.failures += 1
            progress.save()
            reason = f"{name} could not be stored: {type(exc).__name__}: {exc}"
            if progress.failures >= _ATTEMPTS:
                reason += f"; it was moved to {inbox.put_aside(self._home, name)}"
            self._report(reason)
            return False
        if is_stored:
            self._sessions += 1
        return is_stored

    def _store_events(self, name: str) -> bool:
        progress = Progress(self._home, name)
        events, length, unreadable = inbox.read(self._home, name, store_mark())
        if not length and inbox.read(self._home, name)[1]:
            self._report(
                f"{name} is for another store; run memory capture flush with the MEMORY_STORE of "
                "that session"
            )
            return False
        if unreadable:
            lines = amount(unreadable, "unreadable line", "unreadable lines")
            self._report(f"skipped {lines} of {name}")
        event_runs = list(_split_runs(_skip_stored(events, progress.last_event)))
        for number, run in enumerate(event_runs, 1):
            stored = self._store_run(name, run, progress, is_last=number == len(event_runs))
            self._stored = StoredCounts(
                self._stored.turns + stored.turns,
                self._stored.proposed + stored.proposed,
                self._stored.summaries + stored.summaries,
            )
        progress.failures = 0
        for event in reversed(events):
            if event.get("id"):
                progress.last_event = str(event["id"])
                break
        progress.save()
        inbox.remove(self._home, name, length)
        return True

    def _report(self, reason: str) -> None:
        with contextlib.suppress(OSError):  # the disk may be full; the result has the reason too
            runs.log(self._home, f"flush: {reason}")
        self._reasons.append(reason)

    def _store_run(
        self, name: str, run: list[Event], progress: Progress, *, is_last: bool
    ) -> StoredCounts:
        """Store a run of events with the same namespace and folder."""
        event = run[-1]
        folder = Path(str(event.get("folder") or self._home))
        is_readable = os.path.isdir(folder)
        if not is_readable:
            folder = Path(self._home)
        flags = {"namespace": event.get("namespace") or None}
        config = load_config(flags, folder=folder, tell=partial(runs.log, self._home))
        project = None
        if config.project_detection and is_readable:
            project = identify(folder)
        state = session.read(self._home, name)
        progress.forgotten_at = max(progress.forgotten_at, state.forked_at)
        utterances = read_utterances(run, progress, is_last=is_last)
        source = SessionSource(name, str(event.get("host", "")), folder, project, state)
        quiet = config._replace(count_accesses=False, reinforce_on_retrieval=False)
        # Turns are stored in the session's own namespace. To tell whether a fact is new, the
        # namespace `shared` is searched as well, because the session can read it.
        with (
            Memories(config=quiet, channel="hook", shared=False) as memories,
            Memories(config=quiet, channel="hook", embedder=memories.embedder) as readable,
        ):
            leaves_note = any(event.get("event") in _ENDING_EVENTS for event in run)
            stored = store_session(memories, readable, source, utterances, leaves_note=leaves_note)
        _note_operations(run, config, source)
        return stored


def _skip_stored(events: Sequence[Event], last_event: str) -> Sequence[Event]:
    """Return the events still to be stored, without those that a killed flusher stored."""
    if last_event:
        for number, event in enumerate(events, 1):
            if event.get("id") == last_event:
                return events[number:]
    return events


def _split_runs(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yield consecutive events with the same namespace and folder."""

    def namespace_and_folder(event: Event) -> tuple[object, object]:
        return event.get("namespace"), event.get("folder")

    for _, run in itertools.groupby(events, namespace_and_folder):
        yield list(run)


def _note_operations(run: Sequence[Event], config: Config, source: SessionSource) -> None:
    """Record the hooks that captured the events, for `memory stats`."""
    project = source.project.name if source.project else None
    for event in run:
        if isinstance(event.get("ms"), int | float):
            note_operation(
                config.home,
                f"hook.{event.get('event')}",
                setting=config.events,
                namespace=config.namespace,
                project=project,
                ms=event["ms"],
                agent=source.host,
                channel="hook",
                outcome="ok",
                tokens=0,
            )


def store_session(
    memories: Memories,
    readable: Memories,
    source: SessionSource,
    utterances: Sequence[Utterance],
    *,
    leaves_note: bool,
) -> StoredCounts:
    """Store a session's utterances: turns, proposals, and its note. Repeating this changes nothing.

    Args:
        memories: The memories in the session's own namespace only.
        readable: All memories that the session may read, in the same store.
        source: The session.
        utterances: Its utterances, in order.
        leaves_note: Whether to store a note. True if the session ends or its context is compacted.
    """
    turns = [said for said in utterances if said.role != TOOL and said.text]
    turn_ids: dict[Utterance, str] = {}
    new = 0
    for start in range(0, len(turns), _BATCH):
        batch = turns[start : start + _BATCH]
        drafts = [
            TurnDraft(said.text, said.role, created_at=said.at, message_id=said.message_id)
            for said in batch
        ]
        results = memories.add_turns(source.conversation, drafts)
        for utterance, result in zip(batch, results, strict=True):
            turn_ids[utterance] = result.id
            new += result.status == "stored"
    if new:
        memories.update_conversation(source.conversation, user=user() or None, tags=source.tags)
    known = KnownTexts(readable, source)
    proposed = propose(memories, source, utterances, turn_ids, known)
    has_note = leaves_note and _store_note(memories, source, known)
    return StoredCounts(new, proposed, int(has_note))


def _store_note(memories: Memories, source: SessionSource, known: KnownTexts) -> bool:
    """Store a session's note under its key; return whether it is new or has changed."""
    turns = memories.tail_turns(source.conversation, limit=_MAX_NOTE_TURNS)
    note = write_note([(turn.role, turn.content) for turn in turns], known.was_shown)
    if not note:
        return False
    tags = source.tags
    tags["type"] = SESSION
    key = session.note_key(source.name)
    return memories.create(note, tags=tags, key=key, source=source.conversation).stored


def write_note(turns: Sequence[tuple[str, str]], was_shown: Callable[[str], bool]) -> str:
    """Return a session's note: its first request and its last answer, each cut to one line.

    A prompt that only switches memory, such as "start as bob", is not a request.

    Args:
        turns: The role and text of each turn, in order.
        was_shown: Returns whether a sentence repeats text that the session was given.

    Returns:
        The note, made of sentences from the turns; empty if there is no request.
    """
    requests = [text for role, text in turns if role == USER and parse_wish(text) is None]
    answers = [text for role, text in reversed(turns) if role == ASSISTANT]
    request = _shorten_first(requests, REQUEST_TOKENS, was_shown)
    if not request:
        return ""
    return f"{request}\n{_shorten_first(answers, ANSWER_TOKENS, was_shown)}".rstrip()


def _shorten_first(texts: Iterable[str], max_tokens: int, was_shown: Callable[[str], bool]) -> str:
    """Return the first text that says anything new, shortened; empty if there is none.

    A suspicious text is skipped as a whole, since not every sentence of an attack looks suspicious.
    """
    for text in texts:
        short = _shorten(text, max_tokens, was_shown)
        if short and not find_marks(text):
            return short
    return ""


def _shorten(text: str, max_tokens: int, was_shown: Callable[[str], bool]) -> str:
    """Return as many of a text's new sentences as fit, on one line; "…" stands for the rest.

    If not even the first sentence fits, return its first words.
    """
    short = ""
    for sentence in split_sentences(text):
        is_greeting = not short and len(sentence) < _MIN_CHARACTERS
        if is_greeting or was_shown(sentence):
            continue
        longer = f"{short} {sentence}".strip()
        if len(longer) > _MAX_CHARACTERS or estimate_tokens(f"{longer} …") > max_tokens:
            return f"{short} …" if short else _cut(sentence, max_tokens)
        short = longer
    return short


def _cut(sentence: str, max_tokens: int) -> str:
    """Cut a sentence to at most `max_tokens` tokens, after a whole word if possible."""

    def fits(length: int) -> bool:
        return estimate_tokens(f"{sentence[:length]}…") <= max_tokens

    longest = min(len(sentence), _MAX_CHARACTERS)
    beginning = sentence[: largest_fitting(longest + 1, fits)]
    words, _, _ = beginning.rpartition(" ")
    return f"{words or beginning}…"
