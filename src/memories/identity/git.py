"""What the files of a git repository say: where it lies, its configuration, its branch. No process
is started.

All of it is data: a value names things, and nothing of it is run, and no file of a checkout is read
but `.git`.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import open_file

MAX_CONFIG_BYTES = 262_144
_MAX_POINTER_BYTES = 8_192  # of `.git`, `commondir` and `HEAD`
_MAX_INCLUDES = 10

Config = dict[tuple[str, str, str], list[str]]


class Checkout(NamedTuple):
    """A working tree, or a bare repository.

    Attributes:
        root: Its top folder.
        git: The folder with its `HEAD`.
        common: The folder that all working trees of the repository share.
    """

    root: Path
    git: Path
    common: Path

    @property
    def worktree(self) -> str | None:
        """The name of a linked working tree; None for the main one."""
        return self.git.name if self.git != self.common else None


class Unreadable(Exception):
    """A file of a repository can't be read, or is not what git writes."""


def find(folder: Path) -> Checkout | None:
    """Return the working tree or bare repository that a folder is in, as git finds it.

    It stops at another file system, as git does, and at `GIT_CEILING_DIRECTORIES`. A bare
    repository inside of a working tree is part of that: its files may have come with a clone, and
    they would choose the configuration.

    Raises:
        Unreadable: There is one that can't be read.
        OSError: The folder is not there, or can't be read.
    """
    start = Path(os.path.realpath(folder))
    ceilings = {
        os.path.realpath(each)
        for each in os.environ.get("GIT_CEILING_DIRECTORIES", "").split(os.pathsep)
        if each
    }
    across = os.environ.get("GIT_DISCOVERY_ACROSS_FILESYSTEM", "").lower() in (
        "1",
        "true",
        "yes",
        "on",
    )
    device, bare = start.stat().st_dev, None
    for at in (start, *start.parents):
        if at != start and (str(at) in ceilings or not (across or at.stat().st_dev == device)):
            break
        if found := _pointed(at):
            return found
        if bare is None and _is_repository(at):
            bare = Checkout(at, at, _common(at))
    return bare


def is_trusted(checkout: Checkout, settings: Config | None = None) -> bool:
    """Return whether the repository belongs to this user; as for git, `safe.directory` makes
    exceptions.

    Args:
        checkout: Where it lies.
        settings: The user's own configuration; read if it is needed and not given.
    """
    if os.name != "posix":
        return True
    mine = {os.geteuid(), 0} | (
        {int(sudo)} if (sudo := os.environ.get("SUDO_UID", "")).isdigit() else set()
    )
    try:
        if all(each.stat().st_uid in mine for each in {checkout.git, checkout.common}):
            return True
    except OSError:
        return False
    safe = (user_config() if settings is None else settings).get(("safe", "", "directory"), [])
    if "" in safe:  # an empty one takes back those before it
        safe = safe[len(safe) - safe[::-1].index("") :]
    real = {str(checkout.root), str(checkout.git)}
    return "*" in safe or any(os.path.realpath(in_home(each)) in real for each in safe)


def read_config(checkout: Checkout) -> tuple[Config, Config]:
    """Return the configuration of a repository, and that part of it that no file outside of `.git`
    can have set.

    Raises:
        Unreadable: It can't be read, or is too large.
    """
    own = _parsed(checkout.common / "config")
    if own.get(("extensions", "", "worktreeconfig"), [""])[-1].lower() in (
        "true",
        "yes",
        "on",
        "1",
    ):
        file = checkout.git / "config.worktree"
        if file.exists():
            _add(own, _parsed(file))
    whole: Config = {name: list(values) for name, values in own.items()}
    _include(whole, own, checkout.common, [_MAX_INCLUDES])
    return whole, own


def user_config() -> Config:
    """Return what the user's own configuration files say, empty if they can't be read."""
    found: Config = {}
    if given := os.environ.get("GIT_CONFIG_GLOBAL"):
        files = [Path(given)]
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        files = [Path("/etc/gitconfig"), in_home(base) / "git" / "config", in_home("~/.gitconfig")]
    for file in files:
        try:
            _add(found, _parsed(file))
        except Unreadable:
            continue  # as if it were not there: nobody can say what it would say
    return found


def branch(checkout: Checkout) -> str | None:
    """Return the branch that is checked out; None for a commit without one, and where it can't be
    known.
    """
    head = reference(checkout)
    name = (head or "").removeprefix("refs/heads/")
    return (
        name
        if head and name not in (head, ".invalid") and name.isprintable() and len(name) <= 250
        else None
    )


def reference(checkout: Checkout) -> str | None:
    """Return the reference that `HEAD` names, such as `refs/heads/main`; None if it names a
    commit.
    """
    try:
        text = read_text(checkout.git / "HEAD", _MAX_POINTER_BYTES)
    except Unreadable:
        return None
    kind, _, name = text.partition(":")
    return name.strip() if kind == "ref" else None


def read_text(file: Path, most: int) -> str:
    """Return what a file says.

    Raises:
        Unreadable: It is not there, no file, can't be read or is larger than `most` bytes.
    """
    try:
        with open_file(file) as stream:
            data = stream.read(most + 1)
    except (OSError, ValueError) as exc:
        raise Unreadable(str(file)) from exc
    if len(data) > most:
        raise Unreadable(f"{file} is larger than {most} bytes")
    return data.decode(errors="replace")


def in_home(path: str) -> Path:
    """Return a path, with the home of a user in the place of `~`; as it is where there is no such
    user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _pointed(folder: Path) -> Checkout | None:
    """Return the working tree whose top folder this is."""
    entry = folder / ".git"
    try:
        mode = entry.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise Unreadable(str(entry)) from exc
    if stat.S_ISDIR(mode):
        git = Path(os.path.realpath(entry))
        return Checkout(folder, git, _common(git)) if _is_repository(git) else None
    text = read_text(entry, _MAX_POINTER_BYTES).rstrip("\r\n")
    if not text.startswith("gitdir: "):
        raise Unreadable(str(entry))
    git = Path(os.path.realpath(folder / text.removeprefix("gitdir: ")))
    if not _is_repository(git):
        raise Unreadable(str(git))
    return Checkout(folder, git, _common(git))


def _is_repository(git: Path) -> bool:
    if not os.path.lexists(git / "HEAD"):
        return False
    return (git / "commondir").exists() or ((git / "objects").is_dir() and (git / "refs").is_dir())


def _common(git: Path) -> Path:
    """Return the folder that the working trees of a repository share."""
    file = git / "commondir"
    if not os.path.lexists(file):
        return git
    common = Path(os.path.realpath(git / read_text(file, _MAX_POINTER_BYTES).rstrip("\r\n")))
    if not (common / "objects").is_dir():
        raise Unreadable(str(common))
    return common


def _parsed(file: Path) -> Config:
    if not file.exists():
        return {}
    found: Config = {}
    for section, subsection, name, value in _lines(read_text(file, MAX_CONFIG_BYTES)):
        found.setdefault((section, subsection, name), []).append(value)
    return found


def _add(to: Config, more: Config) -> None:
    for name, values in more.items():
        to.setdefault(name, []).extend(values)


def _include(into: Config, found: Config, folder: Path, left: list[int]) -> None:
    """Add what the files say that a configuration includes; conditions (`includeIf`) are not looked
    at.
    """
    for path in found.get(("include", "", "path"), ()):
        left[0] -= 1
        if left[0] < 0:
            raise Unreadable("too many included files")
        file = folder / in_home(path)
        more = _parsed(file)
        _add(into, more)
        _include(into, more, file.parent, left)


def _lines(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the section, subsection, name and value of each line; names in lower case, as git
    compares them.
    """
    section = subsection = ""
    lines = iter(text.removeprefix("\ufeff").split("\n"))
    for line in lines:
        rest = line.strip()
        if rest.startswith("["):
            section, subsection, rest = _header(rest)
        if not rest or rest[0] in "#;":
            continue
        name, equals, value = rest.partition("=")
        if not equals:
            name, value = rest.split("#", 1)[0].split(";", 1)[0], "true"
        while _goes_on(value):
            value = value[:-1] + next(lines, "").rstrip("\r")
        yield section, subsection, name.strip().lower(), _value(value) if equals else value


def _header(line: str) -> tuple[str, str, str]:
    """Return the section and subsection of a header, and what follows it on the line."""
    quoted, escaped, at = False, False, 1
    for at in range(1, len(line)):
        if escaped:
            escaped = False
        elif line[at] == "\\":
            escaped = True
        elif line[at] == '"':
            quoted = not quoted
        elif line[at] == "]" and not quoted:
            break
    else:
        raise Unreadable("a section without an end")
    name, quote, subsection = line[1:at].partition('"')
    name = name.strip().lower()
    if quote:
        plain, skip = [], False
        for sign in subsection.rstrip().removesuffix('"'):
            if sign == "\\" and not skip:
                skip = True
                continue
            plain.append(sign)
            skip = False
        return name, "".join(plain), line[at + 1 :].strip()
    name, _, subsection = name.partition(".")
    return name, subsection, line[at + 1 :].strip()


def _goes_on(value: str) -> bool:
    return (len(value) - len(value.rstrip("\\"))) % 2 == 1


_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def _value(text: str) -> str:
    """Return a value without quotes, escapes, comments and the spaces around it."""
    made: list[str] = []
    kept, quoted, signs = 0, False, iter(text.strip())
    for sign in signs:
        if sign == "\\":
            escape = next(signs, "")
            made.append(_ESCAPES.get(escape, escape))
        elif sign == '"':
            quoted = not quoted
            kept = len(made)
            continue
        elif sign in "#;" and not quoted:
            break
        else:
            made.append(sign)
        if quoted or not sign.isspace():
            kept = len(made)
    return "".join(made[:kept])
