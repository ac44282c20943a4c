"""Which files are trusted: those with a token, and those that choose settings.

A folder's `.env` may choose only settings that can do no harm, unless its user has approved it.

An approval is for one path and one content. It is kept beside the user's `config.toml`, where no
folder reaches.
"""

import json
import os
import stat
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import locked, make_folder, read_file, replacing
from memories.errors import ConfigError
from memories.guard.origin import refuse_agent

MAX_BYTES = 65_536
_REGISTER = "trusted.json"


class Dotenv(NamedTuple):
    """What a `.env` says.

    Attributes:
        values: Its variables, as they are written; nothing is put in for `${…}`.
        approved: Whether the user has approved this very content.
        doubt: Why not even what can do no harm should be taken from it, a part of a sentence; else
            empty.
        changed: It was approved with another content.
    """

    values: dict[str, str]
    approved: bool
    doubt: str = ""
    changed: bool = False


def read(file: Path, registers: Path) -> Dotenv:
    """Read a `.env` and whether it is approved; one that is not there says nothing.

    Args:
        file: The file.
        registers: The folder with the approvals.

    Raises:
        ConfigError: It can't be read.
    """
    if not file.is_file():  # a pipe would keep us waiting
        return Dotenv({}, approved=False)
    data = _content(file)
    if len(data) > MAX_BYTES:
        return Dotenv(
            _variables(file, data[:MAX_BYTES]),
            approved=False,
            doubt=f"is larger than {MAX_BYTES} bytes",
        )
    known = _approvals(registers).get(_name(file))
    approved = known is not None and known == _digest(data)
    doubt = "" if approved else others_may_write(file)
    return Dotenv(_variables(file, data), approved, doubt, known is not None and not approved)


def approve(file: Path, registers: Path) -> str:
    """Approve a `.env` as it is now; return the SHA-256 of its content.

    Raises:
        ConfigError: It can't be read, or is too large.
        InvalidInput: An agent runs this.
    """
    refuse_agent("which settings a folder chooses")
    data = _content(file)
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{file} is larger than {MAX_BYTES} bytes; keep settings in a smaller one"
        )
    digest = _digest(data)
    _change(registers, file, digest)
    return digest


def revoke(file: Path, registers: Path) -> bool:
    """Take the approval of a `.env` back; return whether it had one."""
    return _change(registers, file, None)


def approved_files(registers: Path) -> dict[str, str]:
    """Return the approved files, each with the SHA-256 of the content that was approved."""
    return _approvals(registers)


def others_may_write(path: Path) -> str:
    """Return why a file or folder that settings come from can't be relied on, a part of a sentence;
    else nothing.
    """
    if os.name != "posix":
        return ""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return _open_to_others(path, found)


def home_in_doubt(home: Path) -> str:
    """Return why the home, or the folder that it is in, can't be relied on, a sentence; nothing if
    it can.

    Whoever may write there could put other files in the place of the user's.
    """
    if os.name != "posix" or not home.exists():
        return ""
    found = home.stat()
    if found.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        return f"{home} belongs to another user; set MEMORY_HOME to a folder of your own"
    for part in (home, home.resolve().parent):
        if doubt := _open_to_others(part, part.stat()):
            return f"{part} {doubt}"
    return ""


def open_to_everybody(path: Path, found: os.stat_result) -> str:
    """Return that everybody may put something else in the place of a file, a part of a sentence;
    else nothing.

    In a sticky folder nobody can replace the files of others.
    """
    if found.st_mode & stat.S_IWOTH and not (
        stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    ):
        return f"can be written by everybody; run: chmod o-w {path}"
    return ""


def _open_to_others(path: Path, found: os.stat_result) -> str:
    if doubt := open_to_everybody(path, found):
        return doubt
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return f"can be written by others of its group; run: chmod g-w {path}"
    return ""


def _is_private(group: int) -> bool:
    """Return whether a group is the user's alone, as many systems give everybody one."""
    import grp
    import pwd

    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return (
        found.gr_gid == user.pw_gid
        and found.gr_name == user.pw_name
        and set(found.gr_mem) <= {user.pw_name}
    )


def _content(file: Path) -> bytes:
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"cannot read {file}: {exc.strerror}") from exc


def _variables(file: Path, data: bytes) -> dict[str, str]:
    import io
    import logging

    from dotenv import dotenv_values  # 20 ms, so only where there is such a file

    logging.getLogger("dotenv.main").addFilter(
        _nothing
    )  # lines that it can't read are for other programs
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        if len(data) - exc.start < 4 and len(data) >= MAX_BYTES:  # cut within a character
            return _variables(file, data[: exc.start])
        raise ConfigError(
            f"cannot read {file}: it is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start})"
        ) from exc
    found = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in found.items() if value is not None}


def _nothing(_record: object) -> bool:
    return False


def _name(file: Path) -> str:
    return str(file.parent.resolve() / file.name)


def _digest(data: bytes) -> str:
    import hashlib  # 2 ms that commands without a .env do without

    return hashlib.sha256(data).hexdigest()


def _approvals(registers: Path) -> dict[str, str]:
    register = registers / _REGISTER
    try:
        if doubt := others_may_write(register):
            raise ConfigError(f"{register} {doubt}")
        found = json.loads(read_file(register))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"cannot read {register}: {exc}; remove it and trust your files again"
        ) from exc
    if not isinstance(found, dict):
        raise ConfigError(
            f"{register} is not what memory trust writes; remove it and trust your files again"
        )
    return {str(name): str(digest) for name, digest in found.items()}


def _change(registers: Path, file: Path, digest: str | None) -> bool:
    """Set or remove an approval; return whether there was one."""
    make_folder(registers)
    with locked(registers / f"{_REGISTER}.lock"):
        approvals = _approvals(registers)
        before = approvals.pop(_name(file), None)
        if digest is not None:
            approvals[_name(file)] = digest
        with replacing(registers / _REGISTER) as stream:
            stream.write(json.dumps(approvals, indent=1, sort_keys=True).encode())
    return before is not None


def read_secret(file: Path) -> str:
    """Return the token that a file holds.

    Raises:
        ConfigError: There is none in it, it can't be read, or others may read or write it.
    """
    try:
        if doubt := others_may_write(file):
            raise ConfigError(f"{file} {doubt}")
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} can be read by others; run: chmod 600 {file}")
        token = read_file(file).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"cannot read {file}: {getattr(exc, 'strerror', None) or 'it is not ASCII'}"
        ) from exc
    if len(token.split()) != 1:
        raise ConfigError(f"{file} must hold one token and nothing else")
    return token
