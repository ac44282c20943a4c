"""Commits of a git repository by their names: the one at the tip of the main branch, and whether
one is there.

No object is read, only names of files and the indexes of packs; see gitformat-pack(5). No git
process is started: one would follow the instructions of the configuration.
"""

import contextlib
import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from memories.identity.git import Unreadable, read_text

_MAX_REFERENCES_BYTES = 16_777_216
_MAX_ALTERNATES = 10
_MAIN = (
    "main",
    "master",
    "trunk",
    "develop",
)  # a branch without a common history may be checked out in a clone
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_INDEX = b"\xfftOc\0\0\0\2"  # version 2: git has made no other since 2007
_FANOUT = 8  # bytes before the table of how many names begin with at most each byte
_NAMES = _FANOUT + 256 * 4


def latest_commit(common: Path, head: str | None) -> str | None:
    """Return the commit at the tip of the main branch, or else of the branch that `HEAD` names.

    Args:
        common: The folder that the working trees of the repository share.
        head: The reference that its `HEAD` names.
    """
    packed: dict[str, str] | None = None
    for name in [*(f"refs/heads/{each}" for each in _MAIN), head]:
        if name is None or ".." in name or not name.startswith("refs/"):
            continue
        with contextlib.suppress(Unreadable):
            if _ID.fullmatch(found := read_text(common / name, 256).strip()):
                return found
        if packed is None:
            packed = _packed_references(common)
        if name in packed:
            return packed[name]
    return None


def has_commit(common: Path, name: str) -> bool:
    """Return whether a repository has a commit."""
    if not _ID.fullmatch(name):
        return False
    with contextlib.suppress(OSError, ValueError, struct.error):
        for folder in _folders(common / "objects", [_MAX_ALTERNATES]):
            if (folder / name[:2] / name[2:]).is_file():
                return True
            if any(_lists(index, bytes.fromhex(name)) for index in (folder / "pack").glob("*.idx")):
                return True
    return False


def _packed_references(common: Path) -> dict[str, str]:
    try:
        text = read_text(common / "packed-refs", _MAX_REFERENCES_BYTES)
    except Unreadable:
        return {}
    pairs = (line.split(" ", 1) for line in text.splitlines() if line[:1] not in "#^")
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and _ID.fullmatch(pair[0])}


def _lists(index: Path, name: bytes) -> bool:
    """Return whether the index of a pack lists an object."""
    with index.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:_FANOUT] != _INDEX:
            return False
        counts = struct.unpack_from(">256I", data, _FANOUT)
        low, high = counts[name[0] - 1] if name[0] else 0, counts[name[0]]
        while low < high:
            middle = (low + high) // 2
            at = _NAMES + middle * len(name)
            candidate = data[at : at + len(name)]
            if candidate == name:
                return True
            low, high = (middle + 1, high) if candidate < name else (low, middle)
    return False


def _folders(objects: Path, left: list[int]) -> Iterator[Path]:
    """Yield a folder with objects and those that it borrows from."""
    left[0] -= 1
    if left[0] < 0:
        return
    yield objects
    try:
        text = read_text(objects / "info" / "alternates", 65_536)
    except Unreadable:
        return
    for line in text.splitlines():
        if line and line[0] not in '#"':
            yield from _folders(Path(os.path.normpath(objects / line)), left)
