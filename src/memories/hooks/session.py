"""Session files: each host session's namespace, its switch, and the memories it was shown.

Hooks only append lines to a session file, so hooks that run at the same time lose nothing. The file
contains hashes of the sentences shown, not their text.
"""

import json
import os
import time

from memories.hooks import files

TYPE_CHECKING = False  # importing `typing` for this takes 3 ms
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MAX_BYTES = 1_048_576
KEEP_SECONDS = 30 * 86_400
# The variables in which hosts pass a session's id, each with the name that hooks use for the host.
VARIABLES = {
    "CLAUDE_CODE_SESSION_ID": "claude-code",
    "CODEX_THREAD_ID": "codex",
    "GEMINI_SESSION_ID": "gemini",
}
# Keys of the lines; they keep the names that earlier versions used.
ONCE = "once"
SHOWN, SENTENCES, RESET, OFF = "shown", "said", "reset", "off"
NAMESPACE, NAMED, FOLDER, ENDED = "namespace", "named", "folder", "ended"
RESUMED, FORKED_AT, HAS_TOOLS = "resumed", "forked_at", "tools"
SUSPECT_FROM, PROBED_AT, MISS_REPORTED = "late", "tried", "miss_reported"
GIVEN_TO = "given_to"  # the same key as in `write.captured`
_FIELDS: "tuple[tuple[str, str, type], ...]" = (
    (OFF, "off", bool),
    (ENDED, "ended", bool),
    (RESUMED, "resumed", bool),
    (FORKED_AT, "forked_at", int),
    (HAS_TOOLS, "has_tools", bool),
    (NAMESPACE, "namespace", str),
    (NAMED, "named", str),
    (FOLDER, "folder", str),
    (SUSPECT_FROM, "suspect_from", int),
    (PROBED_AT, "probed_at", int),
    (MISS_REPORTED, "miss_reported", int),
)


class Session:
    """A session's state, from the lines in its file.

    Attributes:
        namespace: The namespace that the session switched to; None if it did not switch.
        named: The namespace in the commands of the session's hooks; empty if they name none.
        off: Whether the session switched memory off.
        folder: The session's working folder.
        ended: Whether the session has ended and was not resumed.
        in_context: The memories and turns now in the session's context. The keys are their ids
            (see `stored_id`); the values are the hashes of the sentences last shown with them.
        has_context: Whether the session's context still contains a text that hooks gave it.
        resumed: Whether the session was resumed with its earlier context.
        forked_at: When the session was forked from another, in milliseconds since 1970; 0 if it was
            not.
        has_tools: Whether the session's hooks come from a plugin that also provides the MCP server.
        seen: The ids of all memories and turns ever shown to the session.
        sentences: The hashes of all sentences ever shown to the session.
        suspect_from: When the store becomes suspect, in milliseconds since 1970; 0 if it is not. A
            hook that is waiting for the store sets this to the hook's deadline.
        probed_at: When the store was last probed, in milliseconds since 1970.
        miss_reported: The last `suspect_from` that was reported to the agent.
    """

    def __init__(self) -> None:
        """Create an empty state."""
        self.namespace: str | None = None
        self.named = ""
        self.off = self.ended = self.resumed = self.has_context = self.has_tools = False
        self.suspect_from = self.probed_at = self.miss_reported = self.forked_at = 0
        self.folder: str | None = None
        self.in_context: dict[str, set[str]] = {}
        self.seen: set[str] = set()
        self.sentences: set[str] = set()

    def has(self, item_id: str, sentences: "set[str] | frozenset[str]" = frozenset()) -> bool:
        """Return whether a memory or turn is now in the session's context, with these sentences."""
        shown = self.in_context.get(stored_id(item_id))
        return shown is not None and sentences <= shown

    def update(self, line: "dict[str, object]") -> None:
        """Apply one line from the file."""
        shown, sentences = line.get(SHOWN), line.get(SENTENCES)
        hashes = set(map(str, sentences)) if isinstance(sentences, list) else set()
        self.sentences |= hashes
        if isinstance(shown, list):
            ids = {stored_id(str(value)) for value in shown}
            self.in_context.update(dict.fromkeys(ids, hashes))
            self.seen |= ids
            self.has_context = True
        if line.get(RESET):
            self.in_context.clear()
            self.has_context = False
        for key, attribute, kind in _FIELDS:
            value = line.get(key)
            if isinstance(value, kind):
                setattr(self, attribute, value)


def stored_id(item_id: str) -> str:
    """Return the form of an id in a session file.

    A memory's id is unchanged. A turn's id, `CONVERSATION#INDEX`, is hashed: users name their
    conversations, and such a name must not outlive the conversation. A hashed id stays the same, so
    this can be applied to every id in a file. Files from earlier versions contain no hashed ids.
    """
    if item_id.rfind("#") <= 0:
        return item_id
    import hashlib  # not needed by hooks that don't recall turns

    return (
        f"#{hashlib.blake2b(item_id.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"
    )


def note_key(name: str) -> str:
    """Return the key of a session's note."""
    from memories.models import SESSION_KEY  # most hooks don't need this module

    return f"{SESSION_KEY}{name.replace('.', '/', 1)}"


def ids_in(environment: "Mapping[str, str]") -> dict[str, str]:
    """Return the session ids that hosts pass in environment variables, keyed by host."""
    named = {host: environment.get(variable, "") for variable, host in VARIABLES.items()}
    return {host: session_id for host, session_id in named.items() if session_id}


def read(home: str, name: str) -> Session:
    """Return a session's state; damaged lines are skipped."""
    session = Session()
    try:
        with open(os.path.join(home, files.SESSIONS, name), "rb") as stream:
            lines = stream.read(2 * MAX_BYTES).split(b"\n")
    except FileNotFoundError:
        return session
    for line in lines:
        try:
            fields = json.loads(line) if line else None
        except ValueError:
            continue
        if isinstance(fields, dict):
            session.update(fields)
    return session


def append(home: str, name: str, **fields: object) -> None:
    """Append a line with some fields to a session's file.

    Raises:
        OSError: The file can't be written.
    """
    shown = fields.get(SHOWN)
    if isinstance(shown, list):
        fields[SHOWN] = [stored_id(str(value)) for value in shown]
    path = os.path.join(files.private_folder(home, files.SESSIONS), name)
    fd = files.open_private(path, os.O_WRONLY | os.O_APPEND)
    try:
        files.lock(fd)  # another process may be moving or removing a namespace in this file
        is_full = os.fstat(fd).st_size > MAX_BYTES
        if is_full and not fields.keys() & {OFF, NAMESPACE, RESET}:
            raise OSError(f"{path} is full; end this session or start another")
        os.write(fd, b"\n" + json.dumps(fields).encode() + b"\n")
    finally:
        os.close(fd)


def try_append(home: str, name: str, **fields: object) -> str:
    """Append a line to a session's file; return why it can't be written, or an empty string.

    Raises:
        UnsafeFolder: Other users may write to the file's folder.
    """
    return files.try_write(lambda: append(home, name, **fields))


def claim(home: str, name: str, action: str, *, within: float | None, is_end: bool = False) -> bool:
    """Record an action in a session; return False if another process has already recorded it.

    After a session has ended and was resumed, each action is a new one.

    Args:
        home: The home folder.
        name: The session.
        action: The action; it must not contain any text of the session.
        within: For how many seconds a repetition is treated as the same action; None for no limit.
        is_end: Whether the action belongs to the end of the session.

    Raises:
        OSError: The file can't be written.
    """
    now = time.time()
    start = f"{json.dumps({ONCE: action})[:-1]}, ".encode()
    path = os.path.join(files.private_folder(home, files.SESSIONS), name)
    fd = files.open_private(path, os.O_RDWR | os.O_APPEND)
    try:
        files.lock(fd)
        data = os.read(fd, 2 * MAX_BYTES)
        change = json.dumps({ENDED: not is_end}).strip("{}").encode()
        _, earlier, line = data.rpartition(change)[2].rpartition(b"\n" + start)
        if earlier:
            earlier_at = float(line.partition(b'"at": ')[2].partition(b"}")[0])
            if within is None or now - earlier_at < within:
                return False
        if len(data) <= MAX_BYTES:  # if the file is full, an action is repeated rather than lost
            os.write(fd, b"\n" + start + f'"at": {now:.3f}}}\n'.encode())
    finally:
        os.close(fd)
    return True


def find_latest(
    home: str, folder: str, *, since: float = 0.0, hosts: "Collection[str]" = ()
) -> str | None:
    """Return the name of the session last active in a folder; None if there is none.

    Sessions that have ended don't count.

    Args:
        home: The home folder.
        folder: The folder.
        since: Ignore sessions that were last active before this time, in seconds since 1970.
        hosts: Ignore sessions of other hosts; empty to consider all.
    """
    active = [(entry.stat().st_mtime, entry.name) for entry in _entries(home)]
    for moment, name in sorted(active, reverse=True):
        if moment < since:
            break
        if hosts and name.partition(".")[0] not in hosts:
            continue
        session = read(home, name)
        own = session.folder
        if own is None or session.ended:
            continue
        if folder in (own, os.path.realpath(own)):
            return name
    return None


def prune(home: str) -> None:
    """Remove the files of sessions that have been inactive for a month."""
    for entry in _entries(home):
        if time.time() - entry.stat(follow_symlinks=False).st_mtime > KEEP_SECONDS:
            os.unlink(entry.path)


def _entries(home: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(os.path.join(home, files.SESSIONS)) as entries:
            return [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
