"""When each hook of each host last ran, how often it failed and why: a small file each, and a log
that stays small.

Neither holds anything that was said.
"""

import json
import os
import time

from memories.hooks import place

try:
    import fcntl
except ImportError:  # Windows: two hooks at once may count as one
    fcntl = None  # type: ignore[assignment]

_LONGEST = 300  # characters of a reason
_MAX_STAMP_BYTES = 4_096


class Stamp:
    """What is known of one hook of one host.

    Attributes:
        host: The host.
        event: The event.
        ran: When it last ran, in milliseconds since 1970; 0 for never.
        runs: How often it ran.
        failures: How often it failed.
        failed: When it last failed; 0 for never.
        why: Why it did; empty if it never did.
    """

    __slots__ = ("event", "failed", "failures", "host", "ran", "runs", "why")

    def __init__(self, host: str, event: str, known: "dict[str, object]") -> None:
        """Take in what a file says."""
        self.host, self.event = host, event
        self.ran, self.runs, self.failures, self.failed = (
            value if isinstance(value := known.get(name), int) else 0
            for name in ("ran", "runs", "failures", "failed")
        )
        self.why = str(known.get("why", ""))


def ran(home: str, host: str, event: str, why: str = "") -> None:
    """Write down that a hook ran.

    Args:
        home: The home.
        host: The host.
        event: The event.
        why: Why it failed; empty if it did not.

    Raises:
        OSError: It can't be written.
    """
    fd = place.opened(os.path.join(place.private(home, place.HOOKS), f"{host}.{event}"), os.O_RDWR)
    try:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_EX)
        stamp, now = (
            Stamp(host, event, _parsed(os.read(fd, _MAX_STAMP_BYTES))),
            int(time.time() * 1000),
        )
        known: dict[str, object] = {
            "ran": now,
            "runs": stamp.runs + 1,
            "failures": stamp.failures + bool(why),
        }
        known |= (
            {"failed": now, "why": why[:_LONGEST]}
            if why
            else {"failed": stamp.failed, "why": stamp.why}
        )
        os.lseek(fd, 0, os.SEEK_SET)
        written = json.dumps(known).encode()
        os.ftruncate(fd, os.write(fd, written))
    finally:
        os.close(fd)
    if why:
        log(home, f"{host} {event}: {why}")


def log(home: str, said: str) -> None:
    """Add a line to the log; when it is full, it becomes the older one of two.

    Raises:
        OSError: It can't be written.
    """
    path = os.path.join(place.private(home), place.LOG)
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(said.split())[:_LONGEST]}\n"
    fd = place.opened(path, os.O_WRONLY | os.O_APPEND)
    try:
        if os.fstat(fd).st_size > place.MAX_LOG_BYTES:
            os.replace(path, f"{path}.1")
            os.close(fd)
            fd = place.opened(path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, line.encode("utf-8", "backslashreplace"))
    finally:
        os.close(fd)


def known(home: str) -> list[Stamp]:
    """Return what is known of all hooks that ever ran, in order of host and event."""
    try:
        names = sorted(os.listdir(os.path.join(home, place.HOOKS)))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        host, dot, event = name.partition(".")
        if dot:
            with open(os.path.join(home, place.HOOKS, name), "rb") as stream:
                found.append(Stamp(host, event, _parsed(stream.read(_MAX_STAMP_BYTES))))
    return found


def _parsed(data: bytes) -> "dict[str, object]":
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
