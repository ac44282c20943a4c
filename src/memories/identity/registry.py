"""Register of a user's projects: the name of each repository, and aliases.

It is beside the user's `config.toml`, out of reach of anything that a repository brings.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import locked, make_folder, read_file, replacing
from memories.errors import ConfigError, InvalidInput

_FOLDER = ".projects"  # namespaces do not start with a dot; their folders may be beside it
_ALIASES = "aliases.json"


class Repository(NamedTuple):
    """A repository that was seen before.

    Attributes:
        folder: Its common folder.
        name: The first name of its project.
        remote: The name of its last remote; None without one.
        commit: A commit of it, which distinguishes it from another repository in the same place.
        number: The inode number of its folder, for a repository without commits.
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
    """Remember a repository; if the file can't be written, it is examined again each time."""
    with contextlib.suppress(OSError):
        make_folder(home / _FOLDER)
        _write(home, repository)


def remember_first(home: Path, repository: Repository, other: str) -> Repository:
    """Remember a new repository by its name, or by another one if a project has that name already.

    Returns:
        The remembered repository, perhaps from another process. If the file can't be written, the
        repository with the other name, since nothing keeps the next one from getting the same name.
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
    """Yield all remembered repositories, in order of their folders."""
    known = []
    for file in (home / _FOLDER).glob("*.json"):
        repository = _read(file) if file.name != _ALIASES else None
        if repository is not None:
            known.append(repository)
    yield from sorted(known)


def aliases(home: Path) -> dict[str, str]:
    """Return the names that mean another project, each with the name of that project.

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
        raise ConfigError(f"{file} is not an object of names; repair or remove it")
    return names


def resolve(name: str, aliases: dict[str, str]) -> str:
    """Return the name of the project that a name means."""
    for _ in range(len(aliases)):
        if name not in aliases:
            break
        name = aliases[name]
    return name


def names_of(name: str, aliases: dict[str, str]) -> list[str]:
    """Return all names of the project that a name means, its own first."""
    own = resolve(name, aliases)
    others = [alias for alias in aliases if alias != own and resolve(alias, aliases) == own]
    return [own, *sorted(others)]


def set_alias(home: Path, alias: str, name: str | None) -> str | None:
    """Make a name mean another project.

    Args:
        home: The user's folder.
        alias: The name.
        name: The project that it means; None to remove the alias.

    Returns:
        The project that it meant before; None if it was not an alias.

    Raises:
        InvalidInput: The two would mean each other.
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
    """Return whether a repository, an alias, or the project of an alias has a name already."""
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
    """Return the repository of a file; None if there is no file, or it is damaged."""
    try:
        fields = json.loads(read_file(file))
        # Earlier versions wrote more fields.
        repository = Repository(*(fields[name] for name in Repository._fields))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_valid = isinstance(repository.name, str) and isinstance(repository.folder, str)
    return repository if is_valid else None
