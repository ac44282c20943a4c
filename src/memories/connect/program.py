"""Writes and recognizes the command that starts this program in a host's configuration.

It also finds other programs with our names that may be started instead.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from memories.core.installation import install_command, is_temporary
from memories.hooks.hook import EVENTS

# Events whose hooks only capture. The hook for the end of a session also ends the session's
# identity, which the MCP server would otherwise keep using.
CAPTURING = tuple(event for event in EVENTS[2:] if event != "session-end")

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_VARIABLES = re.compile(  # assignments at the start of a shell command
    rf"""(?:env\s+)?(?:{_VARIABLE.pattern}(?:[^\s'"\\]|\\.|'[^']*'|"[^"]*")*\s+)+""", re.ASCII
)
NAMES = ("memoriae", "memory")  # names of the command; agents use the first, which is unique
_INSTALLED = ("/uv/tools/", "/pipx/venvs/")
_MODULES = (["-P", "-m", "memories"], ["-m", "memories"])
_LAUNCHERS = (["uvx"], ["uv", "tool", "run"], ["pipx", "run"])
_MARKS = (b"memories.__main__", b"-m memories")
_MAX_SCRIPT_BYTES = 1 << 20  # maximum size; on Windows, a script is appended to a small .exe file


class Program(NamedTuple):
    """The command that starts this program.

    Attributes:
        command: The program, and the arguments that come before ours.
        doubt: Why the program may disappear, as a sentence; empty if it is permanently installed.
    """

    command: tuple[str, ...]
    doubt: str = ""


def bare() -> Program:
    """Return the command without a path, so that it works for every user who has installed it."""
    return Program((NAMES[0],))


def find_program(environment: Mapping[str, str]) -> Program:
    """Return the command of this installation, or of a permanent one if this one is temporary.

    The path is absolute, since desktop programs don't inherit a shell's PATH.
    """
    beside = find_beside(NAMES[0])
    if is_temporary(str(beside)):  # `uvx` puts its own folder first on PATH
        installed = find_installed(NAMES[0], environment)
    else:
        first = shutil.which(NAMES[0], path=environment.get("PATH"))
        installed = first if first is not None and is_same_file(first, beside) else None
    if installed is not None:
        return Program((os.path.abspath(installed),), _doubt(installed))  # noqa: PTH100 - keep links: an upgrade redirects them
    if beside.exists():
        return Program((str(beside),), _doubt(str(beside)))
    # Hosts start this command in a project's folder. -P keeps Python from importing a folder
    # `memories` there.
    return Program((sys.executable, "-P", "-m", "memories"), _doubt(sys.executable))


def find_beside(name: str) -> Path:
    """Return the path of this installation's command with this name."""
    return Path(sys.executable).with_name(f"{name}.exe" if os.name == "nt" else name)


def find_installed(name: str, environment: Mapping[str, str]) -> str | None:
    """Return the first program of this name on PATH that is ours and not in a temporary folder.

    Return None if there is none.
    """
    for folder in environment.get("PATH", "").split(os.pathsep):
        program = shutil.which(name, path=folder)
        if program is not None and not is_temporary(program) and is_ours(program):
            return program
    return None


def is_same_file(first: str, second: Path) -> bool:
    """Return whether both paths lead to the same existing file."""
    try:
        return Path(first).samefile(second)
    except OSError:
        return False


def is_ours(program: str) -> bool:
    """Return whether a program is a script of pip, uv or pipx that starts this package."""
    try:
        with Path(program).open("rb") as stream:
            content = stream.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return False
    return any(mark in content for mark in _MARKS)


def _doubt(program: str) -> str:
    if is_temporary(program):
        return (
            f"{program} is in a temporary folder; install the program permanently "
            f"({install_command()}) and run memory connect again"
        )
    is_installed = any(part in Path(os.path.realpath(program)).as_posix() for part in _INSTALLED)
    is_in_environment = sys.prefix != sys.base_prefix and program.startswith(sys.prefix)
    if is_in_environment and not is_installed:
        return f"keep the virtual environment {sys.prefix}: {program} is in it"
    return ""


def hook_command(program: Sequence[str], event: str, host: str, options: Sequence[str]) -> str:
    """Return the shell command that runs a hook; on Windows, for Git Bash, PowerShell and cmd."""
    words = (*program, "hook", event, "--host", host, *options)
    if os.name != "nt":
        return shlex.join(words)
    quoted = []
    for word in words:
        plain = word.replace("\\", "/")
        quoted.append(plain if _PLAIN.fullmatch(plain) else f'"{plain}"')
    return " ".join(quoted)


def words_of(command: object) -> list[str]:
    """Return the words of a configured command; empty if it isn't a text or a list.

    If a text sets variables for its program, the first word is `env`.
    """
    if isinstance(command, str):
        try:
            words = list(map(os.path.expandvars, shlex.split(command)))
        except ValueError:
            return []
        return ["env", *words] if words and _VARIABLE.match(words[0]) else words
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        return command
    return []


def variables_of(command: str) -> str:
    """Return the variable assignments at the start of a shell command; empty if there are none."""
    start = _VARIABLES.match(command)
    return start[0] if start else ""


def _program_at(words: Sequence[str]) -> int:
    """Return the position of a command's program, after `env` and variables."""
    position = int(words[:1] == ["env"])
    while position and position < len(words) and _VARIABLE.match(words[position]):
        position += 1
    return position


def _count_own_words(words: Sequence[str]) -> int:
    """Return how many words of a command start this program; 0 if it starts another program."""
    start = _program_at(words)
    name = PurePath(program_of(words).replace("\\", "/")).name.removesuffix(".exe")
    if name in NAMES:
        return start + 1
    for launcher in _LAUNCHERS:
        end = start + len(launcher)
        package = "".join(words[end : end + 1]).partition("@")[0]
        if [name, *words[start + 1 : end]] == launcher and package == NAMES[0]:
            return end + 1
    for module in _MODULES:
        end = start + 1 + len(module)
        if list(words[start + 1 : end]) == module:
            return end
    return 0


def is_hook(words: Sequence[str]) -> bool:
    """Return whether a command runs one of our hooks."""
    length = _count_own_words(words)
    return length > 0 and len(words) > length + 1 and words[length] == "hook"


def is_server(words: Sequence[str]) -> bool:
    """Return whether a command starts our MCP server."""
    length = _count_own_words(words)
    return length > 0 and "mcp" in words[length:]


def server_options(words: Sequence[str]) -> list[str]:
    """Return the options of our MCP server's command, without the namespace."""
    if not is_server(words):
        return []
    return _split_namespace(words[list(words).index("mcp", _count_own_words(words)) + 1 :])[1]


def namespace_of(words: Sequence[str]) -> str | None:
    """Return the namespace that one of our commands names; None if it names none."""
    return _split_namespace(words)[0]


def _split_namespace(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the namespace that a command's words name, and the other words."""
    namespace = None
    others: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word in ("-n", "--namespace"):
            namespace = next(remaining, None)
        elif word.startswith("--namespace="):
            namespace = word.partition("=")[2]
        elif word.startswith("-n"):
            namespace = word.removeprefix("-n")
        else:
            others.append(word)
    return namespace, others


def program_of(words: Sequence[str]) -> str:
    """Return the program that a command starts; empty if there is none."""
    return "".join(words[_program_at(words) :][:1])


# --- conflicts ---


class OtherProgram(NamedTuple):
    """A sentence about a program that may be started instead, and the remedy."""

    problem: str
    remedy: str


def find_conflicts(environment: Mapping[str, str]) -> Iterator[OtherProgram]:
    """Yield the programs that a shell starts instead of this one."""
    for name in NAMES:
        first = shutil.which(name, path=environment.get("PATH"))
        if first is None or is_same_file(first, find_beside(name)) or is_ours(first):
            continue
        ours = Path(find_installed(name, environment) or find_beside(name))
        problem = f"{first}, the first {name} on PATH, is another program"
        remedy = f"put {ours.parent} before {Path(first).parent} in PATH"
        if name != NAMES[0]:
            remedy += f", or type {NAMES[0]} instead of {name}; agents call {NAMES[0]}"
        yield OtherProgram(problem, remedy)
