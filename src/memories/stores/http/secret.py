"""A token in a file that nobody else can read."""

from pathlib import Path

from memories.disk import read_file
from memories.errors import ConfigError
from memories.trust import others_may_write


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
        raise ConfigError(f"cannot read {file}: {getattr(exc, 'strerror', None) or 'it is not ASCII'}") from exc
    if len(token.split()) != 1:
        raise ConfigError(f"{file} must hold one token and nothing else")
    return token
