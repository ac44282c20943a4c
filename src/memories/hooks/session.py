"""What is known of one session of a host: who it is, what it was given, whether it switched memory
off.

A file of lines that are only added, so that two hooks at once lose nothing; it holds no text of a
memory, only hashes.
"""

import json
import os
import time

from memories.hooks import place

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 1_048_576
KEPT_SECONDS = 30 * 86_400
ONCE = "once"
SHOWN, SAID, RESET, OFF, NAMESPACE, FOLDER = "shown", "said", "reset", "off", "namespace", "folder"
SUSPECT_SINCE, PROBED_AT = "late", "tried"  # the words of files of earlier versions
GIVEN_TO = "given_to"  # as `identity.captured` has it


class Session:
    """What is known of a session.

    Attributes:
        namespace: Who it switched to; None if it did not.
        off: Whether it switched memory off.
        folder: Where it works.
        shown: The marks of what is in its context, put there by a hook; see `mark`.
        given: The marks of all that it was ever given.
        said: The hashes of the sentences that it was ever given; see `echo`.
        suspect_since: Since when the store is suspected not to answer, in milliseconds since 1970;
            0 if it is not.
        probed_at: When the store was last probed, in milliseconds since 1970.
    """

    __slots__ = (
        "folder",
        "given",
        "namespace",
        "off",
        "probed_at",
        "said",
        "shown",
        "suspect_since",
    )

    def __init__(self) -> None:
        """Know nothing yet."""
        self.namespace: str | None = None
        self.off = False
        self.suspect_since = self.probed_at = 0
        self.folder: str | None = None
        self.shown: set[str] = set()
        self.given: set[str] = set()
        self.said: set[str] = set()

    def take(self, line: "dict[str, object]") -> None:
        """Take in one line of the file."""
        for name, sets in ((SHOWN, (self.shown, self.given)), (SAID, (self.said,))):
            found = line.get(name)
            if isinstance(found, list):
                for each in sets:
                    each.update(mark(str(value)) for value in found)
        if line.get(RESET):
            self.shown.clear()
        if isinstance(line.get(OFF), bool):
            self.off = line[OFF] is True
        if isinstance(line.get(NAMESPACE), str):
            self.namespace = str(line[NAMESPACE])
        if isinstance(line.get(FOLDER), str):
            self.folder = str(line[FOLDER])
        if isinstance(suspect_since := line.get(SUSPECT_SINCE), int):
            self.suspect_since = suspect_since
        if isinstance(probed_at := line.get(PROBED_AT), int):
            self.probed_at = probed_at


def mark(shown: str) -> str:
    """Return what a session file keeps of an id: the id of a memory, a hash of a turn's
    `CONVERSATION#INDEX`.

    A conversation has a name of the user's choice, which must not outlive the conversation. A mark
    is its own mark, so files of earlier versions, which have the names, are read like others.
    """
    if shown.rfind("#") <= 0:
        return shown
    import hashlib  # which a hook that recalls no turn does without

    return f"#{hashlib.blake2b(shown.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"


def read(home: str, name: str) -> Session:
    """Return what is known of a session; a line that was cut short is passed over."""
    known = Session()
    try:
        with open(os.path.join(home, place.SESSIONS, name), "rb") as stream:
            lines = stream.read(2 * MAX_BYTES).split(b"\n")
    except FileNotFoundError:
        return known
    for line in lines:
        try:
            found = json.loads(line) if line else None
        except ValueError:
            continue
        if isinstance(found, dict):
            known.take(found)
    return known


def note(home: str, name: str, **known: object) -> None:
    """Add to what is known of a session.

    Raises:
        OSError: It can't be written.
    """
    if isinstance(shown := known.get(SHOWN), list):
        known[SHOWN] = [mark(str(each)) for each in shown]
    path = os.path.join(place.private(home, place.SESSIONS), name)
    fd = place.opened(path, os.O_WRONLY | os.O_APPEND)
    try:
        if fcntl is not None:
            fcntl.flock(
                fd, fcntl.LOCK_EX
            )  # a namespace may be erased just now, and what is known of it
        if os.fstat(fd).st_size > MAX_BYTES and not known.keys() & {OFF, NAMESPACE, RESET}:
            raise OSError(f"{path} is full; end this session or start another")
        os.write(fd, b"\n" + json.dumps(known).encode() + b"\n")
    finally:
        os.close(fd)


def first(home: str, name: str, what: str, *, within: float | None) -> bool:
    """Return whether nobody did something in a session yet, and write down that it is done now.

    Args:
        home: The home.
        name: The session.
        what: What is done; no text that was said.
        within: For how many seconds it is the same; None for good.

    Raises:
        OSError: It can't be written.
    """
    now = time.time()
    begins = f"{json.dumps({ONCE: what})[:-1]}, ".encode()
    path = os.path.join(place.private(home, place.SESSIONS), name)
    fd = place.opened(path, os.O_RDWR | os.O_APPEND)
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX)
        known = os.read(fd, 2 * MAX_BYTES)
        last = known.rpartition(b"\n" + begins)
        if last[1] and (
            within is None
            or now - float(last[2].partition(b'"at": ')[2].partition(b"}")[0]) < within
        ):
            return False
        if len(known) <= MAX_BYTES:  # in a full one a thing is done twice rather than never
            os.write(fd, b"\n" + begins + f'"at": {now:.3f}}}\n'.encode())
    finally:
        os.close(fd)
    return True


def latest_in(home: str, folder: str) -> str | None:
    """Return the name of the session that was last heard of in a folder; None if there is none."""
    found = [
        (entry.stat().st_mtime, entry.name)
        for entry in _entries(home)
        if read(home, entry.name).folder == folder
    ]
    return max(found)[1] if found else None


def prune(home: str) -> None:
    """Remove what is known of sessions that nothing was heard of for a month."""
    for entry in _entries(home):
        if time.time() - entry.stat(follow_symlinks=False).st_mtime > KEPT_SECONDS:
            os.unlink(entry.path)


def _entries(home: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(os.path.join(home, place.SESSIONS)) as entries:
            return [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
