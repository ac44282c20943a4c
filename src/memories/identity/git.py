"""Reads a git repository's files: its location, configuration, branch and commits.

No git process is started, since git would execute commands that it finds in the configuration. All
values are treated as data: they are used as names and never executed. In a checkout, no file
outside `.git` is read. To look up an object, only file names and pack indexes are read; see
gitformat-pack(5).
"""

import contextlib
import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import open_file

MAX_CONFIG_BYTES = 262_144
_MAX_POINTER_BYTES = 8_192  # maximum size of the files `.git`, `commondir` and `HEAD`
_MAX_INCLUDES = 10
_MAX_REFERENCES_BYTES = 16_777_216
_MAX_ALTERNATES = 10
_TRUE = ("1", "true", "yes", "on")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}
# Names of main branches. Two clones are certain to share history only on main branches.
_MAIN = ("main", "master", "trunk", "develop")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_INDEX = b"\xfftOc\0\0\0\2"  # version 2, the only one that git has written since 2007
_FANOUT = 8  # offset of the fan-out table, in bytes
_NAMES = _FANOUT + 256 * 4

# The values of each setting, keyed by section, subsection and name.
Config = dict[tuple[str, str, str], list[str]]


class Checkout(NamedTuple):
    """A working tree, or a bare repository.

    Attributes:
        root: The top folder.
        git: The folder that contains `HEAD`.
        common: The `.git` folder that all working trees of the repository share.
    """

    root: Path
    git: Path
    common: Path

    @property
    def worktree(self) -> str | None:
        """The name of a linked working tree; None for the main one."""
        return self.git.name if self.git != self.common else None


class Unreadable(Exception):
    """A file in a repository can't be read, or was not written by git."""


def find(folder: Path) -> Checkout | None:
    """Return the working tree or bare repository that contains a folder, as git would find it.

    As in git, the search stops at the boundary of a file system and at `GIT_CEILING_DIRECTORIES`. A
    bare repository inside a working tree counts as part of that tree, since all its files may have
    come with a clone, including its configuration.

    Raises:
        Unreadable: The repository can't be read.
        OSError: The folder does not exist, or can't be read.
    """
    start = Path(os.path.realpath(folder))
    variable = os.environ.get("GIT_CEILING_DIRECTORIES", "")
    ceilings = {os.path.realpath(path) for path in variable.split(os.pathsep) if path}
    crosses = os.environ.get("GIT_DISCOVERY_ACROSS_FILESYSTEM", "").lower() in _TRUE
    device, bare = start.stat().st_dev, None
    for place in (start, *start.parents):
        if place != start:
            is_other_device = place.stat().st_dev != device
            if str(place) in ceilings or (is_other_device and not crosses):
                break
        checkout = _find_worktree(place)
        if checkout:
            return checkout
        if bare is None and _is_repository(place):
            bare = Checkout(place, place, _common(place))
    return bare


def find_root(folder: Path) -> Path | None:
    """Return the top folder of the repository that contains a folder; None if none can be read."""
    try:
        checkout = find(folder)
    except (Unreadable, OSError):
        return None
    return None if checkout is None else checkout.root


def is_trusted(checkout: Checkout) -> bool:
    """Return whether a repository belongs to this user or to root, or `safe.directory` lists it."""
    if os.name != "posix":
        return True
    users = {os.geteuid(), 0}
    sudo = os.environ.get("SUDO_UID", "")
    if sudo.isdigit():
        users.add(int(sudo))
    try:
        if all(path.stat().st_uid in users for path in (checkout.git, checkout.common)):
            return True
    except OSError:
        return False
    safe: list[str] = []
    for path in user_config().get(("safe", "", "directory"), []):
        if path == "":  # an empty value cancels the previous ones
            safe.clear()
        else:
            safe.append(path)
    folders = {str(checkout.root), str(checkout.git)}
    return "*" in safe or any(os.path.realpath(expand_home(path)) in folders for path in safe)


def read_config(checkout: Checkout) -> tuple[Config, Config]:
    """Return a repository's configuration, and separately the part that comes from files in `.git`.

    Raises:
        Unreadable: The configuration can't be read, or is too large.
    """
    own = _parse_config(checkout.common / "config")
    if own.get(("extensions", "", "worktreeconfig"), [""])[-1].lower() in _TRUE:
        file = checkout.git / "config.worktree"
        if file.exists():
            _extend(own, _parse_config(file))
    whole: Config = {name: list(values) for name, values in own.items()}
    _include(whole, own, checkout.common, [_MAX_INCLUDES])
    return whole, own


def user_config() -> Config:
    """Return the system's and the user's git configuration; unreadable files are skipped."""
    config: Config = {}
    variable = os.environ.get("GIT_CONFIG_GLOBAL")
    if variable:
        files = [Path(variable)]
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
        files = [
            Path("/etc/gitconfig"),
            expand_home(base) / "git" / "config",
            expand_home("~/.gitconfig"),
        ]
    for file in files:
        with contextlib.suppress(Unreadable):
            _extend(config, _parse_config(file))
    return config


def current_branch(checkout: Checkout) -> str | None:
    """Return the checked-out branch; None if `HEAD` is detached or can't be read."""
    reference = head_reference(checkout)
    if reference is None or not reference.startswith("refs/heads/"):
        return None
    name = reference.removeprefix("refs/heads/")
    is_valid = name not in ("", ".invalid") and name.isprintable() and len(name) <= 250
    return name if is_valid else None


def head_reference(checkout: Checkout) -> str | None:
    """Return the reference in `HEAD`, such as `refs/heads/main`.

    Return None if `HEAD` is a commit or can't be read.
    """
    try:
        text = _read_text(checkout.git / "HEAD", _MAX_POINTER_BYTES)
    except Unreadable:
        return None
    kind, _, name = text.partition(":")
    return name.strip() if kind == "ref" else None


def expand_home(path: str) -> Path:
    """Replace `~` or `~user` with that user's home; leave a path with an unknown user unchanged."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _read_text(file: Path, max_bytes: int) -> str:
    """Return a file's text.

    Raises:
        Unreadable: The file does not exist, is not a regular file, can't be read, or is too large.
    """
    try:
        with open_file(file) as stream:
            data = stream.read(max_bytes + 1)
    except (OSError, ValueError) as exc:
        raise Unreadable(str(file)) from exc
    if len(data) > max_bytes:
        raise Unreadable(f"{file} is larger than {max_bytes} bytes")
    return data.decode(errors="replace")


def _find_worktree(folder: Path) -> Checkout | None:
    """Return the working tree with this top folder."""
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
    text = _read_text(entry, _MAX_POINTER_BYTES).rstrip("\r\n")
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
    """Return the `.git` folder that a repository's working trees share."""
    file = git / "commondir"
    if not os.path.lexists(file):
        return git
    path = _read_text(file, _MAX_POINTER_BYTES).rstrip("\r\n")
    common = Path(os.path.realpath(git / path))
    if not (common / "objects").is_dir():
        raise Unreadable(str(common))
    return common


def _parse_config(file: Path) -> Config:
    if not file.exists():
        return {}
    config: Config = {}
    for section, subsection, name, value in _parse_lines(_read_text(file, MAX_CONFIG_BYTES)):
        config.setdefault((section, subsection, name), []).append(value)
    return config


def _extend(config: Config, more: Config) -> None:
    for name, values in more.items():
        config.setdefault(name, []).extend(values)


def _include(config: Config, including: Config, folder: Path, left: list[int]) -> None:
    """Add the files that a configuration includes unconditionally; `includeIf` is ignored."""
    for path in including.get(("include", "", "path"), ()):
        left[0] -= 1
        if left[0] < 0:
            raise Unreadable("too many included files")
        file = folder / expand_home(path)
        more = _parse_config(file)
        _extend(config, more)
        _include(config, more, file.parent, left)


def _parse_lines(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield each line's section, subsection, name and value, with names in lower case as in git."""
    section = subsection = ""
    lines = iter(text.removeprefix("\ufeff").split("\n"))
    for line in lines:
        content = line.strip()
        if content.startswith("["):
            section, subsection, content = _parse_header(content)
        if not content or content[0] in "#;":
            continue
        name, equals, value = content.partition("=")
        if not equals:
            name = content.split("#", 1)[0].split(";", 1)[0]
            yield section, subsection, name.strip().lower(), "true"
            continue
        while (len(value) - len(value.rstrip("\\"))) % 2:  # the value continues on the next line
            value = value[:-1] + next(lines, "").rstrip("\r")
        yield section, subsection, name.strip().lower(), _parse_value(value)


def _parse_header(line: str) -> tuple[str, str, str]:
    """Return a header's section and subsection, and the content after it on the line."""
    end = _end_of_header(line)
    content = line[end + 1 :].strip()
    name, quote, subsection = line[1:end].partition('"')
    name = name.strip().lower()
    if not quote:
        name, _, subsection = name.partition(".")
        return name, subsection, content
    plain, is_escaped = [], False
    for sign in subsection.rstrip().removesuffix('"'):
        if sign == "\\" and not is_escaped:
            is_escaped = True
            continue
        plain.append(sign)
        is_escaped = False
    return name, "".join(plain), content


def _end_of_header(line: str) -> int:
    """Return the position of the bracket that closes a header.

    Raises:
        Unreadable: The header is not closed.
    """
    is_quoted = is_escaped = False
    for position, sign in enumerate(line):
        if is_escaped:
            is_escaped = False
        elif sign == "\\":
            is_escaped = True
        elif sign == '"':
            is_quoted = not is_quoted
        elif sign == "]" and not is_quoted:
            return position
    raise Unreadable("a section without an end")


def _parse_value(text: str) -> str:
    """Parse a value: resolve quotes and escapes, and drop comments and surrounding spaces."""
    parsed: list[str] = []
    length, is_quoted, signs = 0, False, iter(text.strip())  # length without trailing spaces
    for sign in signs:
        if sign == "\\":
            escape = next(signs, "")
            parsed.append(_ESCAPES.get(escape, escape))
        elif sign == '"':
            is_quoted = not is_quoted
            length = len(parsed)
            continue
        elif sign in "#;" and not is_quoted:
            break
        else:
            parsed.append(sign)
        if is_quoted or not sign.isspace():
            length = len(parsed)
    return "".join(parsed[:length])


def latest_commit(common: Path, head: str | None) -> str | None:
    """Return the commit at the tip of the main branch, or else of the branch in `HEAD`.

    Args:
        common: The folder shared by the repository's working trees.
        head: The reference in the repository's `HEAD`.
    """
    packed: dict[str, str] | None = None
    names: list[str | None] = [f"refs/heads/{branch}" for branch in _MAIN]
    for name in (*names, head):
        if name is None or ".." in name or not name.startswith("refs/"):
            continue
        with contextlib.suppress(Unreadable):
            commit = _read_text(common / name, 256).strip()
            if _COMMIT.fullmatch(commit):
                return commit
        if packed is None:
            packed = _packed_references(common)
        if name in packed:
            return packed[name]
    return None


def _packed_references(common: Path) -> dict[str, str]:
    try:
        text = _read_text(common / "packed-refs", _MAX_REFERENCES_BYTES)
    except Unreadable:
        return {}
    references = {}
    for line in text.splitlines():
        commit, space, name = line.partition(" ")
        if space and _COMMIT.fullmatch(commit):
            references[name] = commit
    return references


def has_commit(common: Path, commit: str) -> bool:
    """Return whether a repository has a commit."""
    if not _COMMIT.fullmatch(commit):
        return False
    with contextlib.suppress(OSError, ValueError, struct.error):
        for folder in _object_folders(common / "objects", [_MAX_ALTERNATES]):
            if (folder / commit[:2] / commit[2:]).is_file():
                return True
            for index in (folder / "pack").glob("*.idx"):
                if _is_listed(index, bytes.fromhex(commit)):
                    return True
    return False


def _is_listed(index: Path, name: bytes) -> bool:
    """Return whether a pack's index lists an object."""
    with index.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:_FANOUT] != _INDEX:
            return False
        counts = struct.unpack_from(">256I", data, _FANOUT)
        first_byte = name[0]
        low, high = 0, counts[first_byte]
        if first_byte:
            low = counts[first_byte - 1]
        while low < high:
            middle = (low + high) // 2
            start = _NAMES + middle * len(name)
            candidate = data[start : start + len(name)]
            if candidate == name:
                return True
            if candidate < name:
                low = middle + 1
            else:
                high = middle
    return False


def _object_folders(objects: Path, left: list[int]) -> Iterator[Path]:
    """Yield a folder of objects, and the folders from which it borrows objects (its alternates)."""
    left[0] -= 1
    if left[0] < 0:
        return
    yield objects
    try:
        text = _read_text(objects / "info" / "alternates", 65_536)
    except Unreadable:
        return
    for line in text.splitlines():
        if line and line[0] not in '#"':
            yield from _object_folders(Path(os.path.normpath(objects / line)), left)
