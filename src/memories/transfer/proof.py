"""The key by which an export is known again as our own. Who can read it could forge one, so it is the user's alone."""

import os
import stat
from pathlib import Path

from memories.core.disk import CREATING, locked, replacing
from memories.errors import ConfigError

_NAME = "export.key"
_BYTES = 32


def own_key(folder: Path, *, make: bool = False) -> bytes | None:
    """Return the key of this user's exports; None if there is none yet.

    Args:
        folder: Where it is kept: beside the user's `config.toml`, where no folder's `.env` reaches.
        make: Make one where there is none.

    Raises:
        ConfigError: It can't be relied on; the message says why, and what to do.
        OSError: It can't be made.
    """
    file = folder / _NAME
    if make and not os.path.lexists(file):
        with locked(folder / f"{_NAME}.lock"):
            if not os.path.lexists(file):
                with replacing(file) as stream:
                    stream.write(os.urandom(_BYTES))
    try:
        fd = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | CREATING & ~os.O_CREAT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:  # a link among them, which could lead anywhere
        raise ConfigError(f"cannot read {file}: {exc.strerror}; remove it, and the next export makes one") from exc
    try:
        doubt = _doubt(file, os.fstat(fd))
        key = b"" if doubt else os.read(fd, _BYTES + 1)
    finally:
        os.close(fd)
    if doubt or len(key) != _BYTES:
        raise ConfigError(f"{file} {doubt or 'is no key of exports; remove it, and the next export makes one'}")
    return key


def _doubt(file: Path, found: os.stat_result) -> str:
    """Return why a key can't be relied on, a part of a sentence; nothing if it can."""
    if not stat.S_ISREG(found.st_mode):
        return "is not a file; remove it, and the next export makes one"
    if os.name == "posix" and found.st_uid not in (os.geteuid(), 0):
        return "belongs to another user; remove it, and the next export makes one"
    if os.name == "posix" and found.st_mode & 0o077:
        return f"can be read or written by others, who could forge exports; remove it, or run: chmod 600 {file}"
    return ""
