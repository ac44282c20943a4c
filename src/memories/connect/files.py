"""Files of other programs: read with care, replaced in one step, with a copy of what was there
beside them.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from memories.core.disk import make_folder, read_file, replacing
from memories.errors import InvalidInput, SystemFault

MAX_BYTES = 33_554_432
KEPT_COPIES = 3
_MARK = ".before-memories-"


def read(path: Path, *, inside: Path | None = None) -> bytes | None:
    """Return what a configuration file holds, links followed; None if there is none.

    Args:
        path: The file.
        inside: The folder that a link must not lead out of, if any.

    Raises:
        InvalidInput: It is no file of this user's that may be changed; the sentence says why.
    """
    try:
        place = Path(os.path.realpath(path, strict=False))
        if inside is not None and not place.is_relative_to(os.path.realpath(inside)):
            raise InvalidInput(f"{path} is a link that leads out of {inside}; nothing was changed")
        if not place.exists():
            if (
                inside is None and hasattr(os, "geteuid") and os.geteuid() == 0
            ):  # as with sudo, in a user's home
                _check_owner(next(each for each in place.parents if each.exists()), path)
            return None
        _check_owner(place, path)
        size = place.stat().st_size
        if size > MAX_BYTES:
            raise InvalidInput(
                f"{path} has {size} bytes, more than a configuration has; nothing was changed"
            )
        return read_file(place)
    except OSError as exc:
        raise InvalidInput(
            f"cannot read {path}: {exc.strerror or exc}; nothing was changed"
        ) from exc


def _check_owner(place: Path, path: Path) -> None:
    """Refuse what belongs to somebody else: a new file of ours would be none of theirs any more."""
    owner = place.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        raise InvalidInput(
            f"{path} belongs to user {owner}; run this as that user; nothing was changed"
        )


def refuse_read_only(path: Path) -> None:
    """Refuse to change a file that is marked as not to be written, which replacing it would pass
    over.

    Raises:
        InvalidInput: It is.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not mode & stat.S_IWUSR:
        raise InvalidInput(
            f"{path} is read-only; make it writable first (chmod u+w); nothing was changed"
        )


def decoded(data: bytes | None, path: Path) -> tuple[str, str]:
    """Return a file's text and the byte-order mark before it, if it has one.

    Raises:
        InvalidInput: It is not UTF-8.
    """
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError as exc:
        line = (data or b"").count(b"\n", 0, exc.start) + 1
        raise InvalidInput(
            f"{path}, line {line}, is not UTF-8; save it as UTF-8; nothing was changed"
        ) from None
    return (text[1:], text[0]) if text.startswith("\ufeff") else (text, "")


def write(
    path: Path, data: bytes, *, private: bool, agreed: Callable[[], None] = lambda: None
) -> list[str]:
    """Put a file in its place in one step; one that is there keeps its mode, and a link to it stays
    a link.

    Args:
        path: The file.
        data: What it shall hold.
        private: Nobody else may read it, if it is made now.
        agreed: Called just before it takes its place; what it raises keeps what is there.

    Returns:
        The folders that were made for it, the innermost first.
    """
    place = Path(os.path.realpath(path))
    made = [str(each) for each in place.parents if not each.exists()]
    if private:
        make_folder(place.parent)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
    try:
        mode = stat.S_IMODE(place.stat().st_mode)
    except FileNotFoundError:
        mode = 0o600 if private else 0o666 & ~_umask()
    with replacing(place, agreed=agreed) as stream:
        stream.write(data)
        if hasattr(os, "fchmod"):
            os.fchmod(stream.fileno(), mode)
    return made


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def remove(path: Path) -> None:
    """Remove a file, not a link to it."""
    Path(os.path.realpath(path)).unlink(missing_ok=True)


def remove_empty(folders: list[str]) -> None:
    """Remove those of some folders that are empty."""
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):  # something else is in it
            Path(folder).rmdir()


def copy(path: Path, data: bytes, folder: Path, now: datetime) -> Path:
    """Keep a copy of a file, for its user alone; copies of it beyond the newest `KEPT_COPIES` are
    removed.

    Args:
        path: The file.
        data: What it holds.
        folder: Where copies of it are kept.
        now: The time, which names the copy.
    """
    begin = path.name if folder == path.parent else f"{digest(str(path).encode())[:12]}-{path.name}"
    target = folder / f"{begin}{_MARK}{now:%Y%m%dT%H%M%S%f}Z"
    with replacing(target) as stream:
        stream.write(data)
    for old in sorted(folder.glob(f"{_literal(begin)}{_MARK}*"))[:-KEPT_COPIES]:
        old.unlink(missing_ok=True)
    return target


def _literal(name: str) -> str:
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def unwritable(path: Path, exc: OSError) -> SystemFault:
    """Return the error for a file that can't be written."""
    return SystemFault(f"cannot write {path}: {exc.strerror or exc}; nothing was changed")
