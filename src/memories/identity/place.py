"""Where a program works, for what it writes; see `Memories`."""

import time
from collections.abc import Callable
from pathlib import Path

from memories.errors import InvalidInput
from memories.guard.origin import Place
from memories.settings import Config

_FRESH_SECONDS = 2.0  # after which a server looks anew: another branch may be checked out


def here(config: Config, folder: Path | None = None) -> Callable[[], Place | None]:
    """Return what tells the project and the branch of a folder when it is asked: only writing needs
    to know.

    Args:
        config: The settings; with `project_detection` off there is no place.
        folder: The folder; by default the working folder.
    """
    if not config.project_detection:
        return lambda: None

    known: Place | None = None
    looked_at = -_FRESH_SECONDS

    def place() -> Place | None:
        nonlocal known, looked_at
        if time.monotonic() - looked_at >= _FRESH_SECONDS:
            known, looked_at = _look(folder), time.monotonic()
        return known

    return place


def _look(folder: Path | None) -> Place | None:
    from memories.identity.project import identify  # reading does without it

    try:
        project = identify(folder or Path.cwd())
    except FileNotFoundError:
        return None  # the working folder was removed under us
    return None if project is None else Place(project.name, project.branch)


def names_of(project: str | None) -> tuple[str, ...]:
    """Return every name of a project that somebody named, the one in use first: `.` is that of the
    working folder.

    Args:
        project: What was given; nothing, and blanks, stand for no project.

    Raises:
        InvalidInput: The working folder is in no repository.
        ConfigError: The user's aliases can't be read.
    """
    if project is None or not project.strip():
        return ()
    from memories.config import registers
    from memories.identity import registry

    name = project.strip()
    if name == ".":
        from memories.identity.project import identify

        found = identify(Path.cwd())
        if found is None:
            raise InvalidInput(
                "the working folder is in no git repository of yours; name the project instead of ."
            )
        name = found.name
    return tuple(registry.names_of(name, registry.aliases(registers())))
