"""Reads other programs' files carefully, replaces them atomically, and records the changes.

A file is copied before it changes. The register `connected.json`, next to the user's `config.toml`,
records every change, so that disconnecting restores files byte for byte. Without the register, our
entries can still be removed one by one.
"""

import contextlib
import glob
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from memories.core.disk import make_folder, read_file, replacing
from memories.errors import InvalidInput, SystemFault

MAX_BYTES = 33_554_432
MAX_COPIES = 3
_COPY = ".before-memories-"
_BYTE_ORDER_MARK = "\ufeff"
REGISTER = "connected.json"


def read(path: Path, *, inside: Path | None = None) -> bytes | None:
    """Return the content of a configuration file, following links; None if there is none.

    Args:
        path: The file.
        inside: The folder that links must not lead out of; None if they may lead anywhere.

    Raises:
        InvalidInput: This user isn't allowed to change the file; the message says why.
    """
    try:
        target = Path(os.path.realpath(path, strict=False))
        if inside is not None and not target.is_relative_to(os.path.realpath(inside)):
            raise InvalidInput(f"{path} is a link that leads out of {inside}; nothing was changed")
        if not target.exists():
            is_root = hasattr(os, "geteuid") and os.geteuid() == 0
            if inside is None and is_root:  # for example, with sudo in another user's home
                _check_owner(next(parent for parent in target.parents if parent.exists()), path)
            return None
        _check_owner(target, path)
        size = target.stat().st_size
        if size > MAX_BYTES:
            raise InvalidInput(
                f"{path} is {size} bytes, too large for a configuration file; nothing was changed"
            )
        return read_file(target)
    except OSError as exc:
        raise InvalidInput(
            f"cannot read {path}: {exc.strerror or exc}; nothing was changed"
        ) from exc


def _check_owner(target: Path, path: Path) -> None:
    """Refuse another user's file: if we replaced it, its owner could no longer change it."""
    owner = target.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        raise InvalidInput(
            f"{path} belongs to user {owner}; run this command as that user; nothing was changed"
        )


def refuse_read_only(path: Path) -> None:
    """Raise an error if a file is read-only.

    A read-only file could still be replaced, but its owner has protected it on purpose.

    Raises:
        InvalidInput: The file is read-only.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not mode & stat.S_IWUSR:
        raise InvalidInput(
            f"{path} is read-only; make it writable first (chmod u+w); nothing was changed"
        )


def decode(data: bytes | None, path: Path) -> tuple[str, str]:
    """Return a file's text, and the byte-order mark before it, if any.

    Raises:
        InvalidInput: The file is not UTF-8.
    """
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError as exc:
        line = (data or b"").count(b"\n", 0, exc.start) + 1
        raise InvalidInput(
            f"{path}, line {line}, is not UTF-8; save it as UTF-8; nothing was changed"
        ) from None
    if text.startswith(_BYTE_ORDER_MARK):
        return text[1:], _BYTE_ORDER_MARK
    return text, ""


def write(
    path: Path, data: bytes, *, private: bool, check: Callable[[], None] = lambda: None
) -> list[str]:
    """Write a file atomically. An existing file keeps its mode, and a link to it stays a link.

    Args:
        path: The file.
        data: The new content.
        private: Whether only its owner may read a new file.
        check: Called just before the file is replaced; if it raises, the file stays as it was.

    Returns:
        The folders that were created for the file, the innermost first.
    """
    target = Path(os.path.realpath(path))
    created = [str(folder) for folder in target.parents if not folder.exists()]
    if private:
        make_folder(target.parent)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0o077)
        os.umask(mask)
        mode = 0o600 if private else 0o666 & ~mask
    with replacing(target, agreed=check) as stream:
        stream.write(data)
        if hasattr(os, "fchmod"):
            os.fchmod(stream.fileno(), mode)
    return created


def remove(path: Path) -> None:
    """Remove a file; if the path is a link, remove the file that it leads to."""
    Path(os.path.realpath(path)).unlink(missing_ok=True)


def remove_empty(folders: Iterable[str]) -> None:
    """Remove folders that are empty."""
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):  # not empty
            Path(folder).rmdir()


def copy(path: Path, data: bytes, folder: Path, now: datetime) -> Path:
    """Keep a private copy of a file, and remove all but its newest `MAX_COPIES` copies.

    Args:
        path: The file.
        data: Its content.
        folder: The folder for copies of the file.
        now: The time, which becomes part of the copy's name.
    """
    prefix = path.name
    if folder != path.parent:
        prefix = f"{digest(str(path).encode())[:12]}-{path.name}"
    target = folder / f"{prefix}{_COPY}{now:%Y%m%dT%H%M%S%f}Z"
    with replacing(target) as stream:
        stream.write(data)
    for old in sorted(folder.glob(f"{glob.escape(prefix)}{_COPY}*"))[:-MAX_COPIES]:
        old.unlink(missing_ok=True)
    return target


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def write_error(path: Path, exc: OSError) -> SystemFault:
    """Return the error for a file that can't be written."""
    return SystemFault(f"cannot write {path}: {exc.strerror or exc}; nothing was changed")


class WrittenFile(NamedTuple):
    """One file that was changed.

    Attributes:
        path: The file.
        before: The path of a copy of the earlier content; None if there was no file.
        existed: Whether the file existed before.
        exact: Whether restoring the earlier content undoes our changes and nothing else. False if
            another program changed the file between two of our changes; if so, our entries must be
            removed one by one.
        after: The SHA-256 of the new content.
        folders: The folders that were created for the file.
    """

    path: str
    before: str | None
    existed: bool
    exact: bool
    after: str
    folders: Sequence[str]


class Receipt(NamedTuple):
    """The files changed by connecting a host.

    Attributes:
        host: The host.
        scope: `user` or `project`.
        root: The project's folder; empty for a user.
        files: The files.
    """

    host: str
    scope: str
    root: str
    files: tuple[WrittenFile, ...]

    @property
    def place(self) -> tuple[str, str, str]:
        """The host, scope and root."""
        return self.host, self.scope, self.root


def load_receipts(folder: Path) -> list[Receipt]:
    """Return all receipts in a folder's register.

    Raises:
        InvalidInput: The register can't be read.
    """
    file = folder / REGISTER
    try:
        rows = json.loads(read_file(file))["connected"]
        return list(map(_receipt, rows))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(
            f"{file} is damaged; remove it (hosts can be disconnected without it)"
        ) from exc


def _receipt(row: dict[str, Any]) -> Receipt:
    values_of = itemgetter(*WrittenFile._fields)  # earlier versions wrote more fields
    written = [WrittenFile(*values_of(fields)) for fields in row["files"]]
    return Receipt(row["host"], row["scope"], row["root"], tuple(written))


def find_receipt(folder: Path, place: tuple[str, str, str]) -> Receipt | None:
    """Return the receipt for a host, scope and root; None if there is none."""
    for receipt in load_receipts(folder):
        if receipt.place == place:
            return receipt
    return None


def keep_receipt(folder: Path, place: tuple[str, str, str], written: Sequence[WrittenFile]) -> None:
    """Replace the receipt for a host, scope and root; remove it if there are no files."""
    receipts = [receipt for receipt in load_receipts(folder) if receipt.place != place]
    if written:
        receipts.append(Receipt(*place, tuple(written)))
    rows = []
    for receipt in receipts:
        row = receipt._asdict()
        row["files"] = [file._asdict() for file in receipt.files]
        rows.append(row)
    make_folder(folder)
    with replacing(folder / REGISTER) as stream:
        stream.write(json.dumps({"connected": rows}, indent=1).encode() + b"\n")
