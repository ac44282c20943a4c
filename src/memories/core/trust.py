"""Trust in files: `.env` files that choose settings, and files with tokens.

For the permissions of files and folders, see `disk`.

A folder's `.env` may choose only harmless settings, unless the user has approved it. An approval
applies to one path and its exact content. Approvals are stored next to the user's `config.toml`, so
that no `.env` can approve itself.
"""

import json
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import locked, make_folder, others_may_write, read_file, replacing
from memories.errors import ConfigError
from memories.guard.origin import refuse_agent

MAX_BYTES = 65_536
_REGISTER = "trusted.json"


class Dotenv(NamedTuple):
    """A `.env` file.

    Attributes:
        values: Its variables as written; `${…}` isn't expanded.
        approved: Whether the user has approved this content.
        doubt: Why even its harmless settings are ignored, as a clause; usually empty.
        changed: Whether an approval exists, but for different content.
    """

    values: dict[str, str]
    approved: bool
    doubt: str = ""
    changed: bool = False


def read(file: Path, registers: Path) -> Dotenv:
    """Read a `.env` and its approval; a missing file has no variables.

    Args:
        file: The file.
        registers: The folder with the approvals.

    Raises:
        ConfigError: The file can't be read.
    """
    if not file.is_file():  # a pipe would block
        return Dotenv({}, approved=False)
    data = _content(file)
    if len(data) > MAX_BYTES:
        variables = _variables(file, data[:MAX_BYTES])
        return Dotenv(variables, approved=False, doubt=f"is larger than {MAX_BYTES} bytes")
    approved_digest = _approvals(registers).get(_name(file))
    approved = approved_digest == _digest(data)
    return Dotenv(
        _variables(file, data),
        approved,
        doubt="" if approved else others_may_write(file),
        changed=approved_digest is not None and not approved,
    )


def approve(file: Path, registers: Path) -> str:
    """Approve a `.env` with its current content, and return the content's SHA-256.

    Raises:
        ConfigError: The file can't be read, or is too large.
        InvalidInput: An agent is running this command.
    """
    refuse_agent("whether to trust a .env file")
    data = _content(file)
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{file} is larger than {MAX_BYTES} bytes; keep settings in a smaller file"
        )
    digest = _digest(data)
    _change(registers, file, digest)
    return digest


def revoke(file: Path, registers: Path) -> bool:
    """Revoke the approval of a `.env`; return whether it had one."""
    return _change(registers, file, None)


def approved_files(registers: Path) -> dict[str, str]:
    """Return the approved files, each with the SHA-256 of the approved content."""
    return _approvals(registers)


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

    from dotenv import dotenv_values  # imported late, since it takes 20 ms

    # dotenv warns about lines that it can't read, but these are for other programs.
    logging.getLogger("dotenv.main").disabled = True
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        splits_character = len(data) >= MAX_BYTES and len(data) - exc.start < 4
        if splits_character:
            return _variables(file, data[: exc.start])
        raise ConfigError(
            f"cannot read {file}: it is not UTF-8 (byte 0x{data[exc.start]:02x} at {exc.start})"
        ) from exc
    variables = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in variables.items() if value is not None}


def _name(file: Path) -> str:
    return str(file.parent.resolve() / file.name)


def _digest(data: bytes) -> str:
    import hashlib  # imported late, since it takes 2 ms

    return hashlib.sha256(data).hexdigest()


def _approvals(registers: Path) -> dict[str, str]:
    register = registers / _REGISTER
    try:
        doubt = others_may_write(register)
        if doubt:
            raise ConfigError(f"{register} {doubt}")
        approvals = json.loads(read_file(register))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"cannot read {register}: {exc}; remove it and trust your files again"
        ) from exc
    if not isinstance(approvals, dict):
        raise ConfigError(
            f"{register} was not written by `memory trust`; remove it and trust your files again"
        )
    return {str(name): str(digest) for name, digest in approvals.items()}


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
    """Return the token in a file that no other user may read or replace.

    Raises:
        ConfigError: The file can't be read, doesn't contain exactly one token, or is open to other
            users.
    """
    try:
        doubt = others_may_write(file)
        if doubt:
            raise ConfigError(f"{file} {doubt}")
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"{file} is readable by other users; run: chmod 600 {file}")
        token = read_file(file).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"cannot read {file}: {getattr(exc, 'strerror', None) or 'it is not ASCII'}"
        ) from exc
    if len(token.split()) != 1:
        raise ConfigError(f"{file} must contain one token and nothing else")
    return token
