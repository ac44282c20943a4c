"""What is remembered of projects, for one user: which name each repository has, and which names
mean the same project.

It lies beside the user's `config.toml`, where nothing that a repository brings can reach.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memories.core.disk import locked, make_folder, read_file, replacing
from memories.errors import ConfigError, InvalidInput

_FOLDER = ".projects"  # no namespace begins with a dot, and folders of namespaces may lie beside it
_ALIASES = "aliases.json"


class Known(NamedTuple):
    """What is remembered of a repository.

    Attributes:
        folder: Its common folder.
        name: The name that its project got first.
        remote: The name of its remote then or since; None without one.
        commit: A commit that it had, which tells it from another repository in the same place.
        number: The number of its folder in the file system, for one without commits.
    """

    folder: str
    name: str
    remote: str | None
    commit: str | None
    number: int


def repository(home: Path, folder: Path) -> Known | None:
    """Return what is remembered of the repository in a folder."""
    return _read(_file(home, folder))


def remember(home: Path, known: Known) -> None:
    """Remember a repository. Where nothing can be written, it is looked at again each time."""
    with contextlib.suppress(OSError):
        make_folder(home / _FOLDER)
        _write(home, known)


def remember_first(home: Path, known: Known, other: str) -> Known:
    """Remember a repository by its name, or by the other one if a project has that name already.

    Returns:
        What is remembered now, perhaps by another process. Where nothing can be written, the
        repository with the other name, since nothing would keep the next one from the same name.
    """
    try:
        make_folder(home / _FOLDER)
        with locked(home / _FOLDER / ".names.lock"):
            if before := repository(home, Path(known.folder)):
                return before
            if in_use(home, known.name):
                known = known._replace(name=other)
            _write(home, known)
    except OSError:
        return known._replace(name=other)
    return known


def _write(home: Path, known: Known) -> None:
    with replacing(_file(home, Path(known.folder))) as stream:
        stream.write(json.dumps(known._asdict()).encode())


def forget_folder(home: Path, folder: Path) -> None:
    """Forget what is remembered of a repository."""
    _file(home, folder).unlink(missing_ok=True)


def repositories(home: Path) -> Iterator[Known]:
    """Yield what is remembered, in order of names."""
    found = (_read(file) for file in (home / _FOLDER).glob("*.json") if file.name != _ALIASES)
    yield from sorted(each for each in found if each is not None)


def aliases(home: Path) -> dict[str, str]:
    """Return the names that mean another project, each with the name of that.

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
        found = json.loads(data)
    except ValueError as exc:
        raise ConfigError(f"{file} is not JSON ({exc}); repair or remove it") from exc
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ConfigError(f"{file} is not an object of names; repair or remove it")
    return found


def resolve(name: str, known: dict[str, str]) -> str:
    """Return the project that a name means."""
    for _ in range(len(known)):
        if name not in known:
            break
        name = known[name]
    return name


def names_of(name: str, known: dict[str, str]) -> list[str]:
    """Return every name of the project that a name means, its own first."""
    own = resolve(name, known)
    return [own, *sorted(alias for alias in known if alias != own and resolve(alias, known) == own)]


def set_alias(home: Path, alias: str, name: str | None) -> str | None:
    """Let a name mean another project from now on.

    Args:
        home: The user's folder.
        alias: The name.
        name: The project that it means; None for none but its own.

    Returns:
        What it meant before, if that was another project.

    Raises:
        InvalidInput: The two would mean each other.
    """
    make_folder(home / _FOLDER)
    with locked(home / _FOLDER / ".aliases.lock"):
        known = aliases(home)
        before = known.pop(alias, None)
        if name is not None:
            if resolve(name, known) == alias:
                raise InvalidInput(f'"{name}" already means "{alias}"; remove that alias first')
            known[alias] = name
        with replacing(home / _FOLDER / _ALIASES) as stream:
            stream.write(
                json.dumps(known, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
            )
    return before


def in_use(home: Path, name: str) -> bool:
    """Return whether a name is known already: of a repository, or as an alias."""
    known = aliases(home)
    return (
        name in known
        or name in known.values()
        or any(each.name == name for each in repositories(home))
    )


def _file(home: Path, folder: Path) -> Path:
    return (
        home
        / _FOLDER
        / f"{hashlib.sha256(str(folder).encode(errors='surrogateescape')).hexdigest()[:24]}.json"
    )


def _read(file: Path) -> Known | None:
    """Return what a file remembers; None without one, and for one that nothing can be read from."""
    try:
        fields = json.loads(read_file(file))
        found = Known(*(fields[name] for name in Known._fields))  # earlier versions wrote more
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found.name, str) and isinstance(found.folder, str) else None
