"""The file of a scratchpad, as far as every command looks at it: read with care, and whether a
person changed it.
"""

import errno
import os
import stat
from pathlib import Path
from zlib import crc32

from memories.errors import InvalidInput

MAX_BYTES = 262_144  # of a file that is read
_MARK = b"\xef\xbb\xbf"  # which some editors put before UTF-8


def path(home: Path, namespace: str) -> Path:
    """Return the path of a namespace's scratchpad."""
    return home / namespace / "scratchpad.yaml"


def content(file: Path) -> str | None:
    """Return the text of a scratchpad's file; None if it is not there, or empty, as a power cut may
    leave it.

    Raises:
        InvalidInput: It is no file of this user's own, others may write it, it is too large, or it
            is not UTF-8.
    """
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_CLOEXEC", 0)
    )
    try:
        if file.parent.is_symlink():
            raise InvalidInput(f"{file.parent} is a symbolic link; put the folder itself there")
        fd = os.open(file, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        why = (
            "is a symbolic link; put the file itself there"
            if exc.errno == errno.ELOOP
            else f"({exc.strerror})"
        )
        raise InvalidInput(f"{file} can't be read: it {why}") from exc
    try:
        _refuse(file, os.fstat(fd))
        with os.fdopen(fd, "rb", closefd=False) as stream:
            data = stream.read(MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise InvalidInput(
            f"{file} is larger than {MAX_BYTES} bytes; remove what does not belong there"
        )
    if not data.strip(b"\0 \r\n"):
        return None
    try:
        return data.removeprefix(_MARK).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{file} is not UTF-8 (byte {exc.start}); save it as UTF-8") from None


def _refuse(file: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(f"{file} is no file; remove it, and the scratchpad is made anew")
    if os.name != "posix":
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise InvalidInput(
            f"{file} belongs to another user; remove it, and the scratchpad is made anew"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        from memories.core.trust import others_may_write  # which knows groups of one user

        if doubt := others_may_write(file):
            raise InvalidInput(f"{file} {doubt}")


def is_edited(text: str) -> bool:
    """Return whether a text was changed since a program wrote it."""
    head, mark, last = text.rpartition("check: ")
    return not mark or last != f'"{check(head)}"\n'


def check(text: str) -> str:
    """Return the number that ends a file which a program wrote."""
    return f"{crc32(text.encode()):08x}"
