"""Reads the text of a scratchpad's file carefully, and detects edits.

Every command runs this code, so the module imports little.
"""

import errno
import os
import re
import stat
from pathlib import Path
from zlib import crc32

from memories.errors import InvalidInput

MAX_BYTES = 262_144
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors put this at the beginning of a file
_CHECK = re.compile(r'^check: "([0-9a-f]{8})"\n', re.MULTILINE)


def path_of(home: Path, namespace: str) -> Path:
    """Return the path of a namespace's scratchpad."""
    return home / namespace / "scratchpad.yaml"


def read_text(file: Path) -> str | None:
    """Return the text of a scratchpad's file.

    Returns:
        The text; None if the file is missing, or is empty (which happens after a power failure).

    Raises:
        InvalidInput: The file isn't a regular file of this user, others may write to it, it is too
            large, or it isn't UTF-8.
    """
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        flags |= getattr(os, name, 0)
    try:
        if file.parent.is_symlink():
            raise InvalidInput(f"{file.parent} is a symbolic link; put the folder itself there")
        fd = os.open(file, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        is_link = exc.errno == errno.ELOOP
        reason = "it is a symbolic link; put the file itself there" if is_link else exc.strerror
        raise InvalidInput(f"{file} can't be read: {reason}") from exc
    try:
        _refuse_untrusted(file, os.fstat(fd))
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
        return data.removeprefix(_BYTE_ORDER_MARK).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{file} is not UTF-8 (byte {exc.start}); save it as UTF-8") from None


def _refuse_untrusted(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(f"{file} is not a regular file; remove it to have it rewritten")
    if os.name != "posix":
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise InvalidInput(f"{file} belongs to another user; remove it to have it rewritten")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        from memories.core.disk import others_may_write  # a group of only this user is fine

        doubt = others_may_write(file)
        if doubt:
            raise InvalidInput(f"{file} {doubt}")


def has_entry(text: str, memory_id: str) -> bool:
    """Return whether a text that a program wrote has an entry for a memory."""
    return f'\n- id: "{memory_id}"\n' in text


def seal(text: str) -> str:
    """Return a text with a checksum added, so that later changes can be detected."""
    body = _CHECK.sub("", text, count=1)
    return body.replace("memories:\n", f'check: "{_checksum(body)}"\nmemories:\n', 1)


def is_edited(text: str) -> bool:
    """Return whether a text was changed since a program wrote it."""
    check = _CHECK.search(text)
    if check is None:
        return True
    return check[1] != _checksum(text[: check.start()] + text[check.end() :])


def _checksum(text: str) -> str:
    return f"{crc32(text.encode()):08x}"
