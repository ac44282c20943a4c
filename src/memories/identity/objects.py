"""Commits of a git repository, read from its loose objects and packs: the first one, and whether one is there.

See gitformat-pack(5) for the formats. No git process is started: one would follow what the configuration says.
"""

import contextlib
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memories.identity.git import Unreadable, read_text

MAX_COMMITS = 50_000  # on the way back to the first one; about a second
_MAX_OBJECT_BYTES = 1_048_576
_FEW_BYTES = 2_048  # that nearly every commit fits into
_MAX_REFERENCES_BYTES = 16_777_216
_MAX_DELTAS = 64  # git makes chains of at most 50
_MAX_ALTERNATES = 10
_COMMIT, _OFFSET_DELTA, _REFERENCE_DELTA = 1, 6, 7
_MAIN = ("main", "master", "trunk", "develop")  # a branch without a common history may be checked out in a clone
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BROKEN = (OSError, ValueError, IndexError, struct.error, zlib.error, Unreadable)


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


def first_commit(common: Path, latest: str) -> str | None:
    """Return the first commit of a history, following first parents.

    Returns:
        None for a shallow clone, a damaged repository and one with more than `MAX_COMMITS`.
    """
    try:
        if (common / "shallow").stat().st_size:
            return None
    except OSError:
        pass  # there is none, so all of it is here
    with contextlib.suppress(*_BROKEN), _Objects(common) as objects:
        at = latest
        for _ in range(MAX_COMMITS):
            parent = objects.parent(at)
            if parent is None:
                return at
            at = parent
    return None


def has_commit(common: Path, name: str) -> bool:
    """Return whether a repository has a commit."""
    with contextlib.suppress(*_BROKEN), _Objects(common) as objects:
        return _ID.fullmatch(name) is not None and objects.has(name)
    return False


def _packed_references(common: Path) -> dict[str, str]:
    try:
        text = read_text(common / "packed-refs", _MAX_REFERENCES_BYTES)
    except Unreadable:
        return {}
    pairs = (line.split(" ", 1) for line in text.splitlines() if line[:1] not in "#^")
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and _ID.fullmatch(pair[0])}


class _Pack(NamedTuple):
    names: mmap.mmap
    data: Path
    opened: list[mmap.mmap]

    def offset(self, name: bytes) -> int | None:
        """Return where an object begins in the pack, from version 2 of the index: git makes no other since 2007."""
        index, size = self.names, len(name)
        first, count = name[0], struct.unpack_from(">I", index, 8 + 255 * 4)[0]
        low = struct.unpack_from(">I", index, 8 + (first - 1) * 4)[0] if first else 0
        high = min(struct.unpack_from(">I", index, 8 + first * 4)[0], count)
        names = 8 + 256 * 4
        while low < high:
            middle = (low + high) // 2
            at = names + middle * size
            found = index[at : at + size]
            if found == name:
                offsets = names + count * (size + 4)
                offset = struct.unpack_from(">I", index, offsets + middle * 4)[0]
                if offset & 0x80000000:
                    large = offsets + count * 4 + (offset & 0x7FFFFFFF) * 8
                    offset = struct.unpack_from(">Q", index, large)[0]
                return int(offset)
            low, high = (middle + 1, high) if found < name else (low, middle)
        return None

    def bytes(self) -> mmap.mmap:
        if not self.opened:
            self.opened.append(_mapped(self.data))
        return self.opened[0]


class _Objects:
    """The objects of one repository, while it is open."""

    def __init__(self, common: Path) -> None:
        self._folders = list(_folders(common / "objects", [_MAX_ALTERNATES]))
        self._open: list[_Pack] | None = None
        self._size = 20  # bytes of a name

    def __enter__(self) -> "_Objects":
        return self

    def __exit__(self, *_: object) -> None:
        for pack in self._open or ():
            for each in (pack.names, *pack.opened):
                each.close()

    def has(self, name: str) -> bool:
        return any(self._loose(folder, name).is_file() for folder in self._folders) or self._packed(name) is not None

    def parent(self, name: str) -> str | None:
        """Return the first parent of a commit; None if it has none.

        Raises:
            Unreadable: It is not there, or no commit.
        """
        self._size = len(name) // 2
        lines = self._commit(name).split(b"\n", 2)
        if not lines[0].startswith(b"tree "):
            raise Unreadable(name)
        kind, _, parent = lines[1].decode("ascii", "replace").partition(" ")
        return parent if kind == "parent" and _ID.fullmatch(parent) else None

    def _commit(self, name: str) -> bytes:
        for folder in self._folders:
            file = self._loose(folder, name)
            if file.is_file():
                head, _, content = _inflated(file.read_bytes()[:_MAX_OBJECT_BYTES]).partition(b"\0")
                if not head.startswith(b"commit "):
                    raise Unreadable(name)
                return content
        packed = self._packed(name)
        if packed is None:
            raise Unreadable(name)
        kind, content = self._unpacked(*packed, deltas=_MAX_DELTAS)
        if kind != _COMMIT:
            raise Unreadable(name)
        return content

    def _unpacked(self, pack: _Pack, offset: int, deltas: int) -> tuple[int, bytes]:
        """Return the type and content of an object of a pack."""
        data, at = pack.bytes(), offset
        byte = data[at]
        kind, at = byte >> 4 & 7, at + 1
        while byte & 0x80:
            byte, at = data[at], at + 1
        if kind not in (_OFFSET_DELTA, _REFERENCE_DELTA):
            return kind, _inflated_at(data, at) if kind == _COMMIT else b""
        if deltas == 0:
            raise Unreadable("too many deltas")
        if kind == _OFFSET_DELTA:
            byte, at = data[at], at + 1
            back = byte & 0x7F
            while byte & 0x80:
                byte, at = data[at], at + 1
                back = ((back + 1) << 7) | (byte & 0x7F)
            base: tuple[_Pack, int] | None = (pack, offset - back)
        else:
            base, at = self._packed(data[at : at + self._size].hex()), at + self._size
        if base is None or base == (pack, offset) or base[1] < 0:
            raise Unreadable("a delta of nothing")
        base_kind, base_content = self._unpacked(*base, deltas=deltas - 1)
        return base_kind, _applied(base_content, _inflated_at(data, at))

    def _packed(self, name: str) -> tuple[_Pack, int] | None:
        packs = self._packs()
        for number, pack in enumerate(packs):
            offset = pack.offset(bytes.fromhex(name))
            if offset is not None:
                packs.insert(0, packs.pop(number))  # the next one is most often in the same
                return pack, offset
        return None

    def _packs(self) -> list[_Pack]:
        if self._open is None:
            self._open = []
            for folder in self._folders:
                for file in sorted((folder / "pack").glob("*.idx")):
                    index = _mapped(file)
                    if index[:8] != b"\xfftOc\0\0\0\2":
                        index.close()
                        continue
                    self._open.append(_Pack(index, file.with_suffix(".pack"), []))
        return self._open

    @staticmethod
    def _loose(folder: Path, name: str) -> Path:
        return folder / name[:2] / name[2:]


def _mapped(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


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


def _inflated(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, _MAX_OBJECT_BYTES)


def _inflated_at(data: mmap.mmap, at: int) -> bytes:
    stream = zlib.decompressobj()
    inflated = stream.decompress(data[at : at + _FEW_BYTES], _MAX_OBJECT_BYTES)
    return inflated if stream.eof else _inflated(data[at : at + _MAX_OBJECT_BYTES])


def _applied(base: bytes, delta: bytes) -> bytes:
    """Return what a delta makes of its base."""
    at = 0
    for _ in range(2):  # the sizes of the base and of the result
        while delta[at] & 0x80:
            at += 1
        at += 1
    made = bytearray()
    while at < len(delta) and len(made) <= _MAX_OBJECT_BYTES:
        order, at = delta[at], at + 1
        if not order & 0x80:
            made += delta[at : at + order]
            at += order
            continue
        numbers = []
        for bit in range(7):
            present = order >> bit & 1
            numbers.append(delta[at] if present else 0)
            at += present
        offset, size = int.from_bytes(numbers[:4], "little"), int.from_bytes(numbers[4:], "little") or 0x10000
        made += base[offset : offset + size]
    return bytes(made)
