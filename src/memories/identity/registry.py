"""A user's register of projects: the names of repositories, and aliases.

The register is next to the user's `config.toml`, where no repository's content can change it.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import locked, make_folder, read_file, replacing
from memories.errors import ConfigError, InvalidInput

_FOLDER = ".projects"  # no namespace has this name, since none begins with a dot
_ALIASES = "aliases.json"


class Repository(NamedTuple):
    """A repository that was seen earlier.

    Attributes:
        folder: The folder that its working trees share; see `git.Checkout`.
        name: The first name of its project.
        remote: The name of its most recent remote; None without a remote.
        commit: One of its commits. It distinguishes the repository from a different one that is
            later put in the same folder.
        number: The folder's inode number, which serves the same purpose if there are no commits.
    """

    folder: str
    name: str
    remote: str | None
    commit: str | None
    number: int


def find_repository(home: Path, folder: Path) -> Repository | None:
    """Return the repository that was last seen in a folder."""
    return _read(_file(home, folder))


def remember(home: Path, repository: Repository) -> None:
    """Record a repository. If the file can't be written, the repository is examined every time."""
    with contextlib.suppress(OSError):
        make_folder(home / _FOLDER)
        _write(home, repository)


def remember_first(home: Path, repository: Repository, other: str) -> Repository:
    """Record a new repository under its name, or as `other` if that name is already in use.

    Returns:
        The recorded repository; another process may have recorded it first. If the file can't be
        written, the repository is named `other`, since its own name may later go to a different
        project.
    """
    try:
        make_folder(home / _FOLDER)
        with locked(home / _FOLDER / ".names.lock"):
            if before := find_repository(home, Path(repository.folder)):
                return before
            if in_use(home, repository.name):
                repository = repository._replace(name=other)
            _write(home, repository)
    except OSError:
        return repository._replace(name=other)
    return repository


def repositories(home: Path) -> Iterator[Repository]:
    """Yield all recorded repositories, sorted by folder."""
    known = []
    for file in (home / _FOLDER).glob("*.json"):
        repository = _read(file) if file.name != _ALIASES else None
        if repository is not None:
            known.append(repository)
    yield from sorted(known)


def aliases(home: Path) -> dict[str, str]:
    """Return the aliases, and the name of the project that each stands for.

    Raises:
        ConfigError: The file can't be read.
    """
    file = home / _FOLDER / _ALIASES
    try:
        data = read_file(file)
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ConfigError(f"cannot read {file}: {exc}") from exc
    try:
        names = json.loads(data)
    except ValueError as exc:
        raise ConfigError(f"{file} is not JSON ({exc}); repair or remove it") from exc
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ConfigError(f"{file} does not map aliases to names; repair or remove it")
    return names


def resolve(name: str, aliases: dict[str, str]) -> str:
    """Return a project's own name, given any of its names."""
    for _ in range(len(aliases)):
        if name not in aliases:
            break
        name = aliases[name]
    return name


def names_of(name: str, aliases: dict[str, str]) -> list[str]:
    """Return all names of a project, its own name first, given any of them."""
    own = resolve(name, aliases)
    others = [alias for alias in aliases if alias != own and resolve(alias, aliases) == own]
    return [own, *sorted(others)]


def set_alias(home: Path, alias: str, name: str | None) -> str | None:
    """Make a name an alias of a project, or remove an alias.

    Args:
        home: The user's folder.
        alias: The name.
        name: The project; None to remove the alias.

    Returns:
        The project that the alias stood for before; None if the name was not an alias.

    Raises:
        InvalidInput: The two names would be aliases of each other.
    """
    make_folder(home / _FOLDER)
    with locked(home / _FOLDER / ".aliases.lock"):
        names = aliases(home)
        before = names.pop(alias, None)
        if name is not None:
            if resolve(name, names) == alias:
                raise InvalidInput(f'"{name}" already means "{alias}"; remove that alias first')
            names[alias] = name
        data = json.dumps(names, indent=2, sort_keys=True, ensure_ascii=False)
        with replacing(home / _FOLDER / _ALIASES) as stream:
            stream.write(data.encode() + b"\n")
    return before


def in_use(home: Path, name: str) -> bool:
    """Return whether a name belongs to a repository, is an alias, or has an alias."""
    names = aliases(home)
    if name in names or name in names.values():
        return True
    return any(repository.name == name for repository in repositories(home))


def _file(home: Path, folder: Path) -> Path:
    digest = hashlib.sha256(str(folder).encode(errors="surrogateescape")).hexdigest()
    return home / _FOLDER / f"{digest[:24]}.json"


def _write(home: Path, repository: Repository) -> None:
    with replacing(_file(home, Path(repository.folder))) as stream:
        stream.write(json.dumps(repository._asdict()).encode())


def _read(file: Path) -> Repository | None:
    """Return the repository recorded in a file; None if the file is missing or damaged."""
    try:
        fields = json.loads(read_file(file))
        # Earlier versions wrote more fields.
        repository = Repository(*(fields[name] for name in Repository._fields))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_valid = isinstance(repository.name, str) and isinstance(repository.folder, str)
    return repository if is_valid else None
