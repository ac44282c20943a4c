"""Finds the paths of the hooks' files, and creates private files and folders.

The paths are found without loading the settings, which would be too slow for a hook that only
appends to the inbox.
"""

import os
import stat
import sys

TYPE_CHECKING = False  # importing `typing` for this takes 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

INBOX, SESSIONS, HOOKS, LOG, OFF = "inbox", "sessions", "hooks", "hooks.log", "off"
MAX_LOG_BYTES = 262_144
_CREATE = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_READ_SETTINGS = (b"home", b"capture_projects", b"events")


class UnsafeFolder(OSError):
    """A folder that must be private is writable by other users."""


def try_write(write: "Callable[[], object]") -> str:
    """Call a function that writes a file; return the reason if it fails, else an empty string.

    Raises:
        UnsafeFolder: Other users may write to the folder.
    """
    try:
        write()
    except UnsafeFolder:
        raise
    except OSError as exc:  # for example, the disk is full
        return exc.strerror or str(exc)
    return ""


def home() -> str:
    """Return the folder named by the setting `home`, as `load_config` does.

    Raises:
        ValueError: The setting is empty, or `config.toml` can't be read.
    """
    if "MEMORY_HOME" in os.environ:
        return _memory_home()
    folder = own_settings().get("home")
    if isinstance(folder, str):
        file = os.path.join(settings_folder(), "config.toml")
        return _absolute(folder, f"home ({file})")
    return _platform_folder("data")


def settings_folder() -> str:
    """Return the folder with the user's `config.toml` and projects, as `config.registers` does.

    Raises:
        ValueError: The setting `home` is empty.
    """
    if "MEMORY_HOME" in os.environ:
        return _memory_home()
    return _platform_folder("config")


def own_settings() -> "dict[str, object]":
    """Return the user's `config.toml`; empty if it contains no setting that hooks read.

    Raises:
        ValueError: The file can't be read.
    """
    try:
        with open(os.path.join(settings_folder(), "config.toml"), "rb") as stream:
            data = stream.read()
    except FileNotFoundError:
        return {}
    if not any(name in data for name in _READ_SETTINGS):
        return {}
    import tomllib  # importing tomllib takes as long as the rest of a hook

    return tomllib.loads(data.decode())


def private_folder(*parts: str) -> str:
    """Return a folder that only this user may write to; create it if it does not exist.

    Args:
        *parts: The home folder, then the names of the folders below it.

    Raises:
        UnsafeFolder: The folder belongs to another user, others may write to it, or it is a link.
    """
    folder = os.path.join(*parts)
    try:
        status = os.lstat(folder)
    except FileNotFoundError:
        _make(folder)
        status = os.lstat(folder)
    if os.name != "posix":
        return folder
    is_own = status.st_uid == os.geteuid()
    others_may_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not is_own or others_may_write or not stat.S_ISDIR(status.st_mode):
        raise UnsafeFolder(
            f"{folder} must be a folder that belongs to this user and that no other user may write "
            "to"
        )
    return folder


def _make(folder: str) -> None:
    """Create a private folder and its parents, which `makedirs` would not make private."""
    parent = os.path.dirname(folder)
    if parent != folder and not os.path.isdir(parent):
        _make(parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return  # another hook has created it in the meantime


def open_private(path: str, flags: int) -> int:
    """Open a file for this user only, creating it if it does not exist; links are refused.

    Raises:
        OSError: The file can't be opened, or is not a regular file.
    """
    fd = os.open(path, flags | _CREATE, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a file")
    return fd


def lock(fd: int) -> None:
    """Wait for the lock on an open file; closing the file releases the lock.

    Windows has no such lock. There, the only protection is that a line is written in one call.
    """
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX)


def session_name(host: str, session: str) -> str:
    """Return the name of a session's files; the session's id may contain any characters."""
    is_plain = session.isascii() and session.replace("-", "").replace("_", "").isalnum()
    if is_plain and len(session) <= 80:
        return f"{host}.{session}"
    import hashlib

    digest = hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"{host}.{digest.hexdigest()}"


def _memory_home() -> str:
    return _absolute(os.environ["MEMORY_HOME"], "MEMORY_HOME (environment)")


def _absolute(path: str, name: str) -> str:
    """Return the absolute path of the folder that a setting names.

    Args:
        path: The value of the setting.
        name: The setting and its source, for the error.

    Raises:
        ValueError: The value is empty.
    """
    path = path.strip(" ")
    if not path:
        raise ValueError(f"{name} is set but empty; give it a value or unset it")
    if path.startswith("~/") and "HOME" in os.environ:
        path = os.environ["HOME"] + path[1:]
    elif path.startswith("~"):
        path = os.path.expanduser(path)
    return os.path.abspath(path)


def _platform_folder(kind: str) -> str:
    """Return the application's data or config folder, as `config` does, without `pathlib`."""
    user = os.environ.get("HOME") or os.path.expanduser("~")
    if sys.platform == "win32":
        local = os.path.join(os.path.expanduser("~"), "AppData", "Local")
        return os.path.join(os.environ.get("LOCALAPPDATA") or local, "memories", "memories")
    if sys.platform == "darwin":
        return os.path.join(user, "Library", "Application Support", "memories")
    if kind == "data":
        variable, default = "XDG_DATA_HOME", ".local/share"
    else:
        variable, default = "XDG_CONFIG_HOME", ".config"
    base = os.environ.get(variable, "").strip() or os.path.join(user, default)
    return os.path.join(base, "memories")
