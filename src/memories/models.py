"""What users see of memories; what stores keep is in `stores.records`.

Turns are in `turns`, what only a search returns is in `search.results`, what only a create returns
in `write.create`: every dataclass costs each command that imports it a millisecond.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from memories.guard.origin import Origin

Moment = datetime | str

SHARED = "shared"
PENDING = "pending"  # what ended a memory that waits to be accepted: it was never current
SESSION = "session"  # the type of a memory that says what a session left
SESSION_KEY = "session/"  # what the key of one begins with that hooks wrote
KNOWN_TAGS = ("agent", "personality", "project", "type", "global")
# section 5.1 of the conversation specification; a longer message is kept in parts
MAX_TURN_CHARACTERS = 100_000
MAX_MESSAGE_CHARACTERS = 4_000_000  # no more than secrets are looked for in


def is_session_note(tags: Mapping[str, str], key: str | None) -> bool:
    """Return whether tags and a key are those of the note that a session left; see
    `hooks.session_note`.
    """
    return tags.get("type") == SESSION and (key or "").startswith(SESSION_KEY)


class DecayPolicy(StrEnum):
    """How confidence ages: never, from when it was written, or from when it was last reinforced."""

    STABLE = "stable"
    CONTEXTUAL = "contextual"
    REINFORCEABLE = "reinforceable"


@dataclass(frozen=True, slots=True)
class Memory:
    """A statement worth keeping, as its latest version says it.

    Attributes:
        id: A UUIDv7.
        namespace: The namespace it belongs to.
        content: The statement.
        tags: Free `key=value` pairs; `agent`, `personality`, `project`, `type` and `global` are
            known ones.
        decay_policy: How its confidence ages.
        confidence: How current it is, 0 to 1, computed when asked.
        base_confidence: How sure its writer was, 0 to 1.
        created_at: When its first version was written.
        updated_at: When its latest version was written.
        last_reinforced_at: When it was last reinforced, if ever.
        version: The number of its latest version, which is also how many there are.
        key: Its stable key, if it has one: creating with the same key adds a version.
        supersedes: The id of the memory that it replaced.
        superseded_by: The id of the memory that replaced it; it is then no longer found by a
            search.
        deleted: Whether it was deleted (it can be restored).
        access_count: How often it was read; approximate.
        source: The conversation that it was made from, or a turn of it such as `standup#3`, if its
            writer said so.
        origin: Who wrote its latest version; None if that was before origins were kept.
        pending: Whether it waits to be accepted; no search, list or context shows it unless asked
            for what waits.
        accepted_at: When it was accepted, if it had to wait.
        accepted_by: Who accepted it.
        redacted: The kinds of the secrets that were taken out of its latest version when it was
            written.
        suspicious: Why it may give orders to a model, by the names of rules; see `write.suspicion`.
            Mostly empty.
        corrects: The id of the memory that it corrects, which stays as it is: see
            `write.corrections`.
        corrected_by: The id of the memory that corrects it; a search shows that one first.
        data: A JSON object that a program keeps with it, as text; it goes when the content is
            changed without it.
        pinned: Whether it stays in the scratchpad of its namespace.
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


class Version(NamedTuple):
    """One version of a memory: what it said from `created_at` until `ended_at`.

    Attributes:
        operation: What wrote it: `create`, `update`, `restore` or `rollback`.
        ended_at: When it stopped being the current one, if it did.
        ended_by: What ended it: `update`, `delete` or `supersede`; the last two say so if they were
            undone. `pending` if it waits to be accepted.
        origin: Who wrote it; None if it was written before origins were kept.
        accepted_at: When it was accepted, if it had to wait.
        accepted_by: Who accepted it.
        suspicious: Why it may give orders to a model; see `Memory`.
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
    """Every version of a memory, oldest first, the memories before and after it in its chain, and
    its namespace.

    Attributes:
        pending: Whether it waits to be accepted.
        corrects: The memory that it corrects.
        corrected_by: The memory that corrects it.
    """

    id: str
    versions: tuple[Version, ...]
    supersedes: str | None
    superseded_by: str | None
    namespace: str = SHARED
    pending: bool = False
    corrects: str | None = None
    corrected_by: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A memory to be written; see `Memories.create` for the fields.

    Attributes:
        pending: It waits until it is accepted; its key, and what it supersedes, count from then on.
        data: A JSON object that a program keeps with it, as text; "" removes the one that is there.
        id: The id that a new memory gets, a UUIDv7 that nobody else has: writing the same draft
            again, since nobody knows whether it was written, stores nothing twice. If the memory
            with this id began with another text, the draft is refused.
        fresh: Its id was never written, which saves looking for it.
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


class Page(NamedTuple):
    """A page of a listing; pass `next_cursor` on to get the next one, None at the end."""

    memories: tuple[Memory, ...]
    next_cursor: str | None


class NamespaceCounts(NamedTuple):
    """How much is in a namespace, or was at a time; None is not kept of the past.

    Attributes:
        name: The namespace.
        memory_count: How many memories are current.
        pending_count: How many wait for review.
        deleted_count: How many are deleted and can be restored.
        turn_count: How many turns of conversations there are.
        read: Whether the caller reads it.
    """

    name: str
    memory_count: int
    pending_count: int | None
    deleted_count: int | None
    turn_count: int
    read: bool


class Forgotten(NamedTuple):
    """What was removed for good.

    Attributes:
        id: The memory, or the conversation.
        versions: How many versions or turns it had; 0 if they were gone and only their bytes were
            left.
        also_in: Files that may still hold it: backups, and snapshots taken before an upgrade.
        memories: How many memories went with the turns that they were made from.
    """

    id: str
    versions: int
    also_in: tuple[str, ...]
    memories: int = 0


class Actor(NamedTuple):
    """Who made a change, as far as the program knows.

    Attributes:
        channel: How the change came: `cli`, `python` or `mcp`.
        user: The user of the operating system.
        host: The name of the machine.
        program: The version of this program.
    """

    channel: str
    user: str
    host: str
    program: str


class Change(NamedTuple):
    """What an entry of the audit log says was done to a memory or a conversation.

    Attributes:
        action: `create`, `update`, `restore`, `delete`, `supersede`, `reinforce`, `accept`,
            `rollback`, `turns`, `forget`, `import`, `undone` (the change of the entry `first` was
            not stored after all) or `change`.
        id: The memory; None for turns.
        conversation: The conversation of turns, if it is still there and may be read; else its
            digest, after a `#`.
        first: The first version or turn index.
        last: The last one.
    """

    action: str
    id: str | None
    conversation: str | None
    first: int
    last: int


class LogEntry(NamedTuple):
    """An entry of the audit log: what one transaction changed in a namespace. It holds no content.

    Attributes:
        number: Its number in the chain of its namespace, from 1 on.
        at: When it was written.
        namespace: The namespace that was changed.
        actor: Who changed it.
        changes: What was changed.
        previous: The hash of the entry before it, empty for the first one; None if it does not
            follow from that.
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
    """What a check of the audit log of a namespace found.

    Attributes:
        namespace: The namespace.
        entries: How many entries there are.
        since: When the first one was written.
        until: When the last one was written.
        head: The hash of the last one. Keep it elsewhere: it proves later that nothing before it
            was changed or cut.
        forks: Numbers that two entries have, since two copies of the store were written to and then
            merged.
        unlogged: How many records were written after the log began and are in none of its entries.
        problem: The first thing that is wrong; None if nothing is.
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
    """How the memory is: where it lies and what it holds, as far as the caller's namespaces
    reach.
    """

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
