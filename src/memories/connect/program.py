"""The `memory` command in a host's configuration: writes and recognizes it."""

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

EVENTS = ("session-start", "user-prompt", "answer", "stop", "pre-compact", "session-end")
CAPTURING = EVENTS[2:]

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
# Folders that package managers use for a single run, and folders where they install programs.
_TEMPORARY = (
    "/uv/archive-v",
    "/uv/builds-v",
    "/uv/environments-v",
    "/pipx/.cache/",
    "/.cache/pipx/",
    "/npm/_npx/",
)
_INSTALLED = ("/uv/tools/", "/pipx/venvs/")
_MODULES = (["-P", "-m", "memories"], ["-m", "memories"])


class Program(NamedTuple):
    """The command that starts this program.

    Attributes:
        command: The program, and the arguments that come before ours.
        doubt: Why the program may disappear, as a sentence; empty if it is permanently installed.
    """

    command: tuple[str, ...]
    doubt: str = ""


def bare() -> Program:
    """Return the command as any user who has it installed can start it."""
    return Program(("memory",))


def find_program(environment: Mapping[str, str]) -> Program:
    """Return the command of this installation with its full path.

    Desktop programs do not know a shell's PATH.
    """
    beside = Path(sys.executable).with_name("memory.exe" if os.name == "nt" else "memory")
    first = shutil.which("memory", path=environment.get("PATH"))
    if first is not None and _is_preferred(first, beside):
        return Program((os.path.abspath(first),), _doubt(first))  # noqa: PTH100 - links stay: an upgrade moves them
    if beside.exists():
        return Program((str(beside),), _doubt(str(beside)))
    # -P: hosts start it in folders of projects, where a folder `memories` must not be imported.
    return Program((sys.executable, "-P", "-m", "memories"), _doubt(sys.executable))


def _is_preferred(first: str, beside: Path) -> bool:
    """Return whether the first `memory` on PATH is this one, or is ours and more permanent."""
    try:
        if beside.exists() and Path(first).samefile(beside):
            return True
    except OSError:
        pass
    return _is_temporary(str(beside)) and not _is_temporary(first) and _is_ours(first)


def _is_ours(program: str) -> bool:
    """Return whether a program is a script that pip or uv wrote for this package."""
    try:
        with Path(program).open("rb") as stream:
            return b"memories" in stream.read(4096)
    except OSError:
        return False


def _is_temporary(program: str) -> bool:
    """Return whether a program is in a folder that package managers or the system clean up."""
    place = _real_path(program).lower() + Path(program).as_posix().lower()
    temporary = _real_path(tempfile.gettempdir()).lower().rstrip("/") + "/"
    return place.startswith(temporary) or any(part in place for part in _TEMPORARY)


def _real_path(path: str) -> str:
    return Path(os.path.realpath(path)).as_posix()


def _doubt(program: str) -> str:
    if _is_temporary(program):
        return (
            f"{program} is in a folder that will be cleaned up; install it permanently (uv tool "
            "install, pipx install) and run memory connect again"
        )
    is_installed = any(part in _real_path(program) for part in _INSTALLED)
    if sys.prefix != sys.base_prefix and not is_installed:
        return f"keep the virtual environment {sys.prefix}: {program} is in it"
    return ""


def hook_command(program: Sequence[str], event: str, host: str, options: Sequence[str]) -> str:
    """Return the shell command that runs a hook."""
    words = (*program, "hook", event, "--host", host, *options)
    return " ".join(_quote(word) for word in words)


def _quote(word: str) -> str:
    """Quote a word for a shell; on Windows, for Git Bash, PowerShell and cmd alike."""
    if os.name != "nt":
        return shlex.quote(word)
    word = word.replace("\\", "/")
    return word if _PLAIN.fullmatch(word) else f'"{word}"'


def words_of(command: object) -> list[str]:
    """Return the words of a command in a configuration, text or list; empty if it is neither."""
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError:
            return []
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        return command
    return []


def _count_own_words(words: Sequence[str]) -> int:
    """Return how many words of a command start `memory`; 0 if it starts another program."""
    if words and PurePath(words[0].replace("\\", "/")).name.removesuffix(".exe") == "memory":
        return 1
    for module in _MODULES:
        if list(words[1 : 1 + len(module)]) == module:
            return 1 + len(module)
    return 0


def is_hook(words: Sequence[str]) -> bool:
    """Return whether a command is one of our hooks."""
    length = _count_own_words(words)
    return length > 0 and len(words) > length + 1 and words[length] == "hook"


def is_server(words: Sequence[str]) -> bool:
    """Return whether a command is our MCP server."""
    length = _count_own_words(words)
    return length > 0 and "mcp" in words[length:]


def is_missing(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether the program of a command does not exist."""
    return shutil.which(words[0], path=environment.get("PATH")) is None
