"""Where hooks keep their files, found without loading the settings: a hook that only appends has no
time for them.
"""

import os
import stat
import sys

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Mapping

INBOX, SESSIONS, HOOKS, LOG, OFF = "inbox", "sessions", "hooks", "hooks.log", "off"
MAX_LOG_BYTES = 262_144
_CREATING = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Unsafe(OSError):
    """Others may write where a hook keeps what it was told."""


def home(environment: "Mapping[str, str]") -> str:
    """Return the folder that the setting `home` names, as `load_config` finds it.

    Raises:
        ValueError: The setting is empty, or `config.toml` can't be read.
    """
    if "MEMORY_HOME" in environment:
        return _folder(environment["MEMORY_HOME"], environment)
    named = own_settings(environment).get("home")
    return (
        _folder(named, environment)
        if isinstance(named, str)
        else _platform_folder("data", environment)
    )


def settings_folder(environment: "Mapping[str, str]") -> str:
    """Return the folder with the user's `config.toml` and what is known of projects, as `registers`
    finds it.

    Raises:
        ValueError: The setting `home` is empty.
    """
    if "MEMORY_HOME" in environment:
        return _folder(environment["MEMORY_HOME"], environment)
    return _platform_folder("config", environment)


def own_settings(environment: "Mapping[str, str]") -> "dict[str, object]":
    """Return what the user's `config.toml` says, if it says anything that a hook asks for.

    Raises:
        ValueError: It can't be read.
    """
    try:
        with open(os.path.join(settings_folder(environment), "config.toml"), "rb") as stream:
            written = stream.read()
    except FileNotFoundError:
        return {}
    if not any(name in written for name in (b"home", b"capture_projects", b"events")):
        return {}
    import tomllib  # as much as a hook may take as a whole, so only where it is needed

    return tomllib.loads(written.decode())


def private(*parts: str) -> str:
    """Return a folder that only this user may write to; make it if it is not there.

    Args:
        *parts: The home and names in it.

    Raises:
        Unsafe: It belongs to another user, others may write to it, or it is a link.
    """
    folder = os.path.join(*parts)
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        _make(folder)
        found = os.lstat(folder)
    if os.name == "posix":
        others = found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if others or not stat.S_ISDIR(found.st_mode):
            raise Unsafe(f"{folder} must be a folder that only its owner, this user, may write to")
    return folder


def _make(folder: str) -> None:
    """Make a folder and those above it for this user alone; `makedirs` would leave those above open
    to all.
    """
    above = os.path.dirname(folder)
    if above != folder and not os.path.isdir(above):
        _make(above)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return  # another hook made it meanwhile


def opened(path: str, flags: int) -> int:
    """Open a file of ours, which is made for this user alone if it is not there; a link in its
    place is refused.

    Raises:
        OSError: It can't be opened, or is no file.
    """
    fd = os.open(path, flags | _CREATING, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a file")
    return fd


def name_of(host: str, session: str) -> str:
    """Return the name of the files of a session: its id may hold anything."""
    if (
        session.isascii()
        and len(session) <= 80
        and session.replace("-", "").replace("_", "").isalnum()
    ):
        return f"{host}.{session}"
    import hashlib

    return f"{host}.{hashlib.blake2b(session.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _folder(named: str, environment: "Mapping[str, str]") -> str:
    if not named.strip(" "):
        raise ValueError("MEMORY_HOME is set but empty; give it a value or unset it")
    return os.path.abspath(_expanded(named.strip(" "), environment))


def _expanded(path: str, environment: "Mapping[str, str]") -> str:
    if path.startswith("~/") and "HOME" in environment:
        return environment["HOME"] + path[1:]
    return os.path.expanduser(path) if path.startswith("~") else path


def _platform_folder(kind: str, environment: "Mapping[str, str]") -> str:
    """Return the folder for an application's data or configuration; as in `config`, but without
    `pathlib`.
    """
    own = environment.get("HOME") or os.path.expanduser("~")
    if sys.platform == "win32":
        own = environment.get("LOCALAPPDATA") or os.path.join(
            os.path.expanduser("~"), "AppData", "Local"
        )
        return os.path.join(own, "memories", "memories")
    if sys.platform == "darwin":
        return os.path.join(own, "Library", "Application Support", "memories")
    variable, fallback = {
        "data": ("XDG_DATA_HOME", ".local/share"),
        "config": ("XDG_CONFIG_HOME", ".config"),
    }[kind]
    return os.path.join(
        environment.get(variable, "").strip() or os.path.join(own, fallback), "memories"
    )
