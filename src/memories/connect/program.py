"""What starts the `memory` command from a host's configuration, and whether a command there is
ours.
"""

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
# Folders that package managers fill for one run, and those that they keep programs in.
_PASSING = (
    "/uv/archive-v",
    "/uv/builds-v",
    "/uv/environments-v",
    "/pipx/.cache/",
    "/.cache/pipx/",
    "/npm/_npx/",
)
_LASTING = ("/uv/tools/", "/pipx/venvs/")


class Program(NamedTuple):
    """What starts the command.

    Attributes:
        command: The program, and the arguments before those of ours.
        doubt: Why it may be gone one day, a sentence; empty if it stays.
    """

    command: tuple[str, ...]
    doubt: str = ""


def bare() -> Program:
    """Return the command as everybody who has it installed can start it."""
    return Program(("memory",))


def installed(environment: Mapping[str, str]) -> Program:
    """Return the command of this installation, by its whole path: programs with windows do not know
    a shell's PATH.
    """
    beside = Path(sys.executable).with_name("memory.exe" if os.name == "nt" else "memory")
    first = shutil.which("memory", path=environment.get("PATH"))
    if first is not None and (
        _same(first, beside) or (_passes(str(beside)) and not _passes(first) and _ours(first))
    ):
        return Program((os.path.abspath(first),), _doubt(first))  # noqa: PTH100 - links stay: an upgrade moves them
    if beside.exists():
        return Program((str(beside),), _doubt(str(beside)))
    # -P: hosts start it in the folders of projects, and a folder `memories` there is no module of
    # ours.
    return Program((sys.executable, "-P", "-m", "memories"), _doubt(sys.executable))


def _same(first: str, beside: Path) -> bool:
    try:
        return beside.exists() and Path(first).samefile(beside)
    except OSError:
        return False


def _ours(program: str) -> bool:
    """Return whether a program is a `memory` of ours: a script that pip or uv wrote for it."""
    try:
        with Path(program).open("rb") as stream:
            return b"memories" in stream.read(4096)
    except OSError:
        return False


def _passes(program: str) -> bool:
    """Return whether a program lies where package managers and systems clean up."""
    place = Path(os.path.realpath(program)).as_posix().lower() + Path(program).as_posix().lower()
    temporary = Path(os.path.realpath(tempfile.gettempdir())).as_posix().lower().rstrip("/") + "/"
    return any(part in place for part in _PASSING) or place.startswith(temporary)


def _doubt(program: str) -> str:
    if _passes(program):
        return (
            f"{program} lies in a folder that is cleaned up one day; install it for good (uv tool install, pipx "
            "install) and run memory connect again"
        )
    place = Path(os.path.realpath(program)).as_posix()
    if sys.prefix != sys.base_prefix and not any(part in place for part in _LASTING):
        return f"the virtual environment {sys.prefix} has to stay, since {program} is in it"
    return ""


def hook(program: Sequence[str], event: str, host: str, options: Sequence[str]) -> str:
    """Return the line for a shell that runs a hook."""
    return " ".join(map(_quoted, (*program, "hook", event, "--host", host, *options)))


def _quoted(part: str, windows: bool = os.name == "nt") -> str:
    """Return a word for a shell; on Windows one that Git Bash, PowerShell and cmd read alike."""
    if not windows:
        return shlex.quote(part)
    part = part.replace("\\", "/")
    return part if _PLAIN.fullmatch(part) else f'"{part}"'


def words_of(command: object) -> list[str]:
    """Return the words of a command in a configuration, a line or a list; none if it is no
    command.
    """
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError:
            return []
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        return command
    return []


def own(words: Sequence[str]) -> int:
    """Return how many words of a command start `memory`; 0 if it is another program's."""
    if words and PurePath(words[0].replace("\\", "/")).name.removesuffix(".exe") == "memory":
        return 1
    for module in (["-P", "-m", "memories"], ["-m", "memories"]):
        if list(words[1 : 1 + len(module)]) == module:
            return 1 + len(module)
    return 0


def is_hook(words: Sequence[str]) -> bool:
    """Return whether a command is a hook of ours."""
    length = own(words)
    return (
        length > 0
        and list(words[length : length + 1]) == ["hook"]
        and words[length + 1 : length + 2] != []
    )


def is_server(words: Sequence[str]) -> bool:
    """Return whether a command is the MCP server of ours."""
    length = own(words)
    return length > 0 and "mcp" in words[length:]


def missing(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether the program of a command is not there."""
    return shutil.which(words[0], path=environment.get("PATH")) is None
