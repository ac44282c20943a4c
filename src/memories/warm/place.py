"""Where the server of a store listens. The command asks this before anything else, so nothing heavy is imported."""

import os
import sys
from binascii import crc32

_MOST_BYTES = 100  # of the path of a Unix socket; systems allow 103 to 107
_HOME = "home"  # the name of the default store, whatever file that is


def socket_of(store: str, environment: "os._Environ[str] | dict[str, str]") -> str:
    """Return the path of the Unix socket at which the server of a store listens.

    Args:
        store: Its URL, as it was given; empty for the default store.
        environment: Its MEMORY_HOME counts, or else where the system keeps data of programs.
    """
    name = f"{crc32(absolute(store).encode('utf-8', 'surrogateescape')):08x}" if store else _HOME
    given = environment.get("MEMORY_HOME", "").strip(" ")
    folder = os.path.join(_path(given) if given else _data_folder(environment), "serve")  # noqa: PTH118
    if _is_long(folder):
        short = f"memories-{os.getuid()}-{crc32(os.fsencode(folder)):08x}"
        folder = os.path.join(environment.get("XDG_RUNTIME_DIR") or "/tmp", short)  # noqa: PTH118, S108 - see `is_ours`
        folder = f"/tmp/{short}" if _is_long(folder) else folder  # noqa: S108
    return f"{folder}/{name}.sock"


def _is_long(folder: str) -> bool:
    """Return whether a socket in a folder, by the name under which it is bound at first, has too long a path."""
    return len(os.fsencode(folder)) + len("/12345678.http.4194304") > _MOST_BYTES


def is_ours(path: str) -> bool:
    """Return whether a socket is in a folder that only this user can enter, so that nobody else can listen there."""
    found = os.lstat(os.path.dirname(path))  # noqa: PTH120
    return found.st_uid == os.geteuid() and found.st_mode & 0o170077 == 0o040000


def absolute(url: str) -> str:
    """Return the URL of a store, with an absolute path without links if it is on this machine."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("sqlite", "files", "qdrant") and rest.startswith("/") and rest != "/":
        return f"{scheme}:///{_path(rest[1:])}"
    return url


def _path(given: str) -> str:
    return os.path.realpath(os.path.expanduser(given))  # noqa: PTH111 - pathlib costs as much as the answer


def _data_folder(environment: "os._Environ[str] | dict[str, str]") -> str:
    """Return what `config` calls the platform's folder for data."""
    home = os.path.expanduser("~")  # noqa: PTH111
    if sys.platform == "darwin":
        return f"{home}/Library/Application Support/memories"
    return f"{environment.get('XDG_DATA_HOME', '').strip() or f'{home}/.local/share'}/memories"
