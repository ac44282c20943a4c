"""Memories, versions and other values that users see. For the records in stores, see
`stores.records`.

Only values that nearly every command needs are here, since each dataclass makes the import a
millisecond slower. Turns are in `read.turns`, hits in `search.results`, and the results of
`create` in `write.create`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from memories.guard.origin import Origin

Moment = datetime | str

SHARED = "shared"
PENDING = "pending"  # `ended_by` of a version that awaits review
SESSION = "session"  # the type of a session note
SESSION_KEY = "session/"  # the key prefix of session notes, which hooks write
SHORT_ID = 18  # length of a shortened id; memories stored together share the first 13 characters
OFTEN = 3  # minimum number of reads for the scratchpad to treat a memory as frequently used
KNOWN_TAGS = ("agent", "personality", "project", "type", "global")
# The limit in section 5.1 of the conversation specification. A longer message is stored in parts.
MAX_TURN_CHARACTERS = 100_000
MAX_MESSAGE_CHARACTERS = 4_000_000  # maximum length of a text that the redactor searches


VERIFIED, CHANGED, UNVERIFIED, EXPIRED = "verified", "changed", "unverified", "expired"
VERDICTS = (VERIFIED, CHANGED, UNVERIFIED, EXPIRED)


class Verdict(NamedTuple):
    """Whether a memory is still true according to its anchors and dates; see `anchors.judge`.

    Attributes:
        word: `verified`, `changed`, `unverified` or `expired`.
        reason: What changed, or why it could not be checked; empty if verified.
        since: When it changed or expired, or when it was last known to hold.
    """

    word: str
    reason: str = ""
    since: datetime | None = None

    @property
    def is_doubtful(self) -> bool:
        """Whether the memory may no longer be true: its evidence changed, or it expired."""
        return self.word in (CHANGED, EXPIRED)

    def describe(self) -> str:
        """Return the verdict as a short remark, such as `changed: a.py is gone`."""
        if self.since is None or self.word == EXPIRED:
            if self.reason:
                return f"{self.word}: {self.reason}"
            return self.word
        day = self.since.astimezone().date().isoformat()
        return f"{self.word} since {day}: {self.reason}"


class Cited(NamedTuple):
    """The evidence that a memory cites, for `anchors.judge`; `Memory` explains the attributes."""

    anchors: tuple[str, ...]
    tags: Mapping[str, str]
    stated_at: datetime
    valid_until: datetime | None = None
    recheck_days: int | None = None
    anchored_at: datetime | None = None

    @property
    def can_be_judged(self) -> bool:
        """Whether there is anything to check: an anchor or a date."""
        return bool(self.anchors or self.valid_until or self.recheck_days)

    @property
    def confirmed_at(self) -> datetime:
        """When the memory was last known to be true."""
        return self.anchored_at or self.stated_at


def is_session_note(tags: Mapping[str, str], key: str | None) -> bool:
    """Return whether tags and a key mark a session note; see `hooks.flush.write_note`."""
    return tags.get("type") == SESSION and (key or "").startswith(SESSION_KEY)


def is_recall_off(tags: Mapping[str, str]) -> bool:
    """Return whether the tag `recall=off` keeps hooks from showing a memory."""
    return tags.get("recall", "").lower() == "off"


def is_global(tags: Mapping[str, str]) -> bool:
    """Return whether the tag `global=true` makes a memory valid in every project."""
    return str(tags.get("global", "")).lower() == "true"


def is_valid_in(tags: Mapping[str, str], projects: Sequence[str]) -> bool:
    """Return whether a memory is valid in the project with these names; True without names."""
    project = tags.get("project")
    return not projects or project is None or project in projects or is_global(tags)


LIST_ORDERS = ("created", "updated", "reinforced", "confidence", "accesses", "version", "key")


class DecayPolicy(StrEnum):
    """How confidence decays: never, from the time of writing, or from the last reinforcement."""

    STABLE = "stable"
    CONTEXTUAL = "contextual"
    REINFORCEABLE = "reinforceable"


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory, with the content of its latest version.

    Attributes:
        id: A UUIDv7.
        namespace: The namespace that it belongs to.
        content: The text.
        tags: Arbitrary key-value pairs; `agent`, `personality`, `project`, `type` and `global` have
            special meanings.
        decay_policy: How its confidence decays.
        confidence: How current it is, 0 to 1, at the time of the call.
        base_confidence: The writer's confidence, 0 to 1.
        created_at: When its first version was written.
        updated_at: When its latest version was written.
        stated_at: When its text was last written or confirmed; new tags, for example, don't change
            this.
        last_reinforced_at: When it was last reinforced, if ever.
        version: The number of its latest version, which is also the number of versions.
        key: Its stable key, if it has one. Creating a memory with the same key adds a version to
            this one.
        supersedes: The id of the memory that it superseded.
        superseded_by: The id of the memory that superseded it; searches find only that one.
        deleted: Whether it was deleted. A deleted memory can be restored.
        access_count: Approximately how many times it was read.
        source: The conversation or turn (such as `standup#3`) that it was made from, if that was
            recorded.
        origin: Who wrote its latest version; None if it was stored before origins were recorded.
        pending: Whether it awaits review. Searches, lists and contexts leave it out, unless asked
            for pending memories.
        accepted_at: When it was accepted, if it was reviewed.
        accepted_by: Who accepted it.
        redacted: The kinds of secrets that were removed from its latest version.
        suspicious: The rules that mark its text as a possible instruction to a model; see
            `write.suspicion`. Usually empty.
        corrects: The id of the memory that it corrects; that memory's text stays unchanged.
        also_corrects: The ids of other memories with the same old value, which it corrects too.
        corrected_by: The id of the memory that corrects it; searches show that one first.
        current_again: In the result of a change: the ids of the memories that are current again,
            because the change ended the links to their corrections.
        same_as: In the result of `Memories.restore`: the id of another current memory with the same
            text, if any.
        data: A JSON object that a program stores with it, as text. It is removed if the content
            changes, unless a new object is given.
        pinned: Whether it stays in the scratchpad of its namespace.
        anchors: The evidence that it is true: paths, symbols, literals, commits and URLs; see
            `anchors.grammar`.
        valid_until: When it stops being true, if known.
        recheck_days: The number of days after which it should be confirmed.
        anchored_at: When its anchors were last checked by a writer and found to hold.
        verdict: Whether it is still true; None if there is nothing to check, or if its project's
            working tree isn't available.
    """

    id: str
    namespace: str
    content: str
    tags: Mapping[str, str]
    decay_policy: DecayPolicy
    confidence: float
    base_confidence: float
    created_at: datetime
    updated_at: datetime
    stated_at: datetime
    last_reinforced_at: datetime | None
    version: int
    key: str | None
    supersedes: str | None
    superseded_by: str | None
    deleted: bool
    access_count: int
    origin: Origin | None = None
    pending: bool = False
    accepted_at: datetime | None = None
    accepted_by: str | None = None
    redacted: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()
    source: str | None = None
    corrects: str | None = None
    corrected_by: str | None = None
    data: str | None = None
    pinned: bool = False
    anchors: tuple[str, ...] = ()
    valid_until: datetime | None = None
    recheck_days: int | None = None
    anchored_at: datetime | None = None
    verdict: Verdict | None = None
    also_corrects: tuple[str, ...] = ()
    current_again: tuple[str, ...] = ()
    same_as: str | None = None


def corrected_ids(memory: "Memory | History") -> tuple[str, ...]:
    """Return the ids of all memories that a memory corrects."""
    return () if memory.corrects is None else (memory.corrects, *memory.also_corrects)


def describe_current_again(memory_ids: Iterable[str]) -> list[str]:
    """Return a clause for each memory that is current again."""
    return [f"memory {memory_id} is current again" for memory_id in memory_ids]


def is_doubtful(memory: Memory) -> bool:
    """Return whether a memory may no longer be true, according to its verdict."""
    return memory.verdict is not None and memory.verdict.is_doubtful


def is_expired(verdict: Verdict | None) -> bool:
    """Return whether a memory has expired, according to its verdict."""
    return verdict is not None and verdict.word == EXPIRED


def cited_by(memory: Memory) -> Cited:
    """Return the evidence that a memory cites; none if it awaits review or was deleted."""
    if memory.pending or memory.deleted:
        return Cited((), memory.tags, memory.stated_at)
    return Cited(
        memory.anchors,
        memory.tags,
        memory.stated_at,
        memory.valid_until,
        memory.recheck_days,
        memory.anchored_at,
    )


class Version(NamedTuple):
    """One version of a memory, which was current from `created_at` until `ended_at`.

    Attributes:
        operation: The operation that wrote it: `create`, `update`, `confirm`, `restore` or
            `rollback`.
        ended_at: When it stopped being current, if it did.
        ended_by: The operation that ended it: `update`, `delete` or `supersede`; `delete
            (restored)` or `supersede (restored)` if that was undone; `pending` if it awaits review.
        origin: Who wrote it; None if it was stored before origins were recorded.
        accepted_at: When it was accepted, if it was reviewed.
        accepted_by: Who accepted it.
        suspicious: The rules that mark its text as a possible instruction to a model.
    """

    version: int
    content: str
    tags: Mapping[str, str]
    operation: str
    created_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    origin: Origin | None = None
    accepted_at: datetime | None = None
    accepted_by: str | None = None
    suspicious: tuple[str, ...] = ()


class History(NamedTuple):
    """All versions of a memory, oldest first, and its links to other memories.

    Attributes:
        supersedes: The memory that it superseded.
        superseded_by: The memory that superseded it.
        pending: Whether it awaits review.
        corrects: The memory that it corrects.
        corrected_by: The memory that corrects it.
        also_corrects: Other memories that it corrects.
        memory: The memory in its latest version, even if it was deleted.
    """

    id: str
    versions: tuple[Version, ...]
    supersedes: str | None
    superseded_by: str | None
    namespace: str = SHARED
    pending: bool = False
    corrects: str | None = None
    corrected_by: str | None = None
    also_corrects: tuple[str, ...] = ()
    memory: Memory | None = None

    @property
    def version(self) -> int:
        """The number of the latest version."""
        return self.versions[-1].version

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the latest version."""
        return self.versions[-1].tags

    @property
    def valid_until(self) -> datetime | None:
        """When the latest version stops being true, if known."""
        return None if self.memory is None else self.memory.valid_until


@dataclass(frozen=True, slots=True)
class Draft:
    """A memory to create; see `Memories.create` for the fields.

    Attributes:
        pending: Whether it must be reviewed first. The key and `supersedes` take effect only when
            it is accepted.
        data: A JSON object that a program stores with it, as text; "" removes an existing one.
        id: The id of the new memory, a unique UUIDv7. With an id, a draft can be written again if
            the first result is unknown, without storing the memory twice. It is refused if the
            first version of the memory with this id has a different text.
        fresh: Whether the id is certainly new, so that it need not be looked up.
        imported_as: The hash by which a later import recognizes the same statement.
        seen: Ids of memories that the writer has just read. If they are about the same subject,
            `Created.similar_to` is more likely to include them.
        anchors: The evidence that it is true; None to find anchors in the content, empty for none.
        valid_until: When it stops being true, if known.
        recheck: The time span after which it should be confirmed: text such as "90d", or a number
            of days.
        anchored_at: When its anchors were found to hold; the program that stores it sets this.
    """

    content: str
    tags: Mapping[str, str] = field(default_factory=dict)
    decay: str | None = None
    key: str | None = None
    supersedes: str | None = None
    confidence: float | None = None
    created_at: datetime | None = None
    pending: bool = False
    source: str | None = None
    data: str | None = None
    id: str | None = None
    fresh: bool = False
    imported_as: str | None = None
    seen: Collection[str] = ()
    anchors: Sequence[str] | None = None
    valid_until: Moment | None = None
    recheck: str | int | None = None
    anchored_at: datetime | None = None


# Fields of a draft with the same names in records. Updates can change `CHANGEABLE`, and restoring
# an earlier version restores them.
CHANGEABLE = ("decay", "confidence")
DECLARED = (*CHANGEABLE, "source")


class Page(NamedTuple):
    """A page of memories. Pass `next_cursor` to get the next page; it is None at the end."""

    memories: tuple[Memory, ...]
    next_cursor: str | None


class NamespaceCounts(NamedTuple):
    """A namespace's size, now or at a past time. A count that is unknown for that time is None.

    Attributes:
        name: The namespace.
        memory_count: The number of current memories.
        pending_count: The number of memories that await review.
        deleted_count: The number of deleted memories, which can be restored.
        turn_count: The number of conversation turns.
        read: Whether the caller can read it.
    """

    name: str
    memory_count: int
    pending_count: int | None
    deleted_count: int | None
    turn_count: int
    read: bool


class Forgotten(NamedTuple):
    """The result of an erasure.

    Attributes:
        id: The memory, or the conversation.
        versions: The number of its versions or turns; 0 if only leftover bytes were erased.
        also_in: Files that may still contain it: backups, snapshots taken before an upgrade, and
            event files with content.
        memories: The number of memories that were erased because they were made from these turns.
        current_again: The ids of the memories that are current again because the memory that
            corrected them was erased.
    """

    id: str
    versions: int
    also_in: tuple[str, ...]
    memories: int = 0
    current_again: tuple[str, ...] = ()


class Actor(NamedTuple):
    """The author of a change, as far as the program knows.

    Attributes:
        channel: The channel of the change; see `Origin`.
        user: The operating-system user.
        host: The name of the machine.
        program: The version of this program.
    """

    channel: str
    user: str
    host: str
    program: str


LOG_ACTIONS = (
    "create", "update", "restore", "confirm", "delete", "supersede", "reinforce", "accept",
    "rollback", "turns", "forget", "import", "move", "undone", "change",
)  # fmt: skip


class Change(NamedTuple):
    """A change to a memory or a conversation, in the audit log.

    Attributes:
        action: One of `LOG_ACTIONS`; `undone` means that the changes in log entry `first` were
            never stored.
        id: The memory; None for turns.
        conversation: The conversation of turns, if it still exists and is readable, else `#` and
            its digest. None for a memory.
        first: The number of the first version, or the index of the first turn.
        last: The number of the last version, or the index of the last turn.
    """

    action: str
    id: str | None
    conversation: str | None
    first: int
    last: int


class LogEntry(NamedTuple):
    """An entry of the audit log: the changes of one transaction in a namespace, without content.

    Attributes:
        number: Its number in the chain of its namespace, starting at 1.
        at: When it was written.
        namespace: The changed namespace.
        actor: The author of the changes.
        changes: The changes.
        previous: The hash of the previous entry; empty for the first entry, None if the chain is
            broken here.
        hash: Its own hash, SHA-256 in hexadecimal digits.
    """

    number: int
    at: datetime
    namespace: str
    actor: Actor
    changes: tuple[Change, ...]
    previous: str | None
    hash: str


class LogCheck(NamedTuple):
    """The result of checking a namespace's audit log.

    Attributes:
        namespace: The namespace.
        entries: The number of entries.
        since: When the first entry was written.
        until: When the last entry was written.
        head: The hash of the last entry. Keep it elsewhere: it can prove later that no entry up to
            this one was changed or removed.
        forks: Numbers that two entries share, because two copies of the store were both written to
            and then merged.
        unlogged: The number of records that were written after the log began but are missing from
            it.
        problem: The first problem; None if there is none.
    """

    namespace: str
    entries: int
    since: datetime | None
    until: datetime | None
    head: str | None
    forks: tuple[int, ...]
    unlogged: int
    problem: str | None


class Status(NamedTuple):
    """The state of the store: its location, and the size of each readable namespace."""

    store: str
    collection: str
    namespace: str
    namespaces_read: tuple[str, ...]
    memory_count: int
    turn_count: int
    deleted_count: int
    without_vector_count: int
    embedder: str
    store_model: str | None
    schema_version: int | None
    size_bytes: int | None
    erasing: bool
    log_bytes: int | None = None
    missing_commits: int = 0
    damage: tuple[str, ...] = ()
    read_only: bool = False
    pending_count: int = 0
    compact: bool = False
