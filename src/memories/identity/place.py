"""Finds the project and branch in which a program runs; see the argument `place` of `Memories`."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from memories.guard import origin
from memories.guard.origin import Place
from memories.settings import Config

if TYPE_CHECKING:
    from memories.memories import Memories

# A long-running program checks again after this time, since the user may have switched branches.
_FRESH_SECONDS = 2.0


def here(config: Config, folder: Path | None = None) -> Callable[[], Place | None]:
    """Return a function that looks up a folder's project and branch when it is called.

    Args:
        config: The settings. If `project_detection` is off, the function always returns None.
        folder: The folder; by default the working folder.
    """
    if not config.project_detection:
        return lambda: None

    current: Place | None = None
    looked_at = -_FRESH_SECONDS

    def place() -> Place | None:
        nonlocal current, looked_at
        if time.monotonic() - looked_at >= _FRESH_SECONDS:
            current, looked_at = _look(folder), time.monotonic()
        return current

    return place


def _look(folder: Path | None) -> Place | None:
    from memories.identity.project import identify  # not needed for reading

    try:
        project = identify(folder or Path.cwd())
    except FileNotFoundError:
        return None  # the working folder has been removed
    if project is None:
        return None
    return Place(project.name, project.branch, project.root, names_of(project.name))


def remembered_root(name: str) -> Path | None:
    """Return the top folder of a project's main working tree, if the user's register contains it.

    Args:
        name: Any name of the project.
    """
    from memories.config import registers
    from memories.identity import registry
    from memories.identity.project import identify

    home = registers()
    own = registry.resolve(name, registry.aliases(home))
    for repository in registry.repositories(home):
        folder = Path(repository.folder)
        if folder.name != ".git":
            continue
        project = identify(folder.parent, record=False)
        if project is not None and project.name == own:
            return project.root
    return None


def find_project(name: str) -> str | tuple[str, ...] | None:
    """Return a project that a user named, in the form that `Memories.search` accepts.

    Args:
        name: The user's name for the project; `.` means the working folder's project.

    Returns:
        All names of the project, if it has aliases or the user gave `.`. Otherwise the given name,
        which may be only the end of the full name; None if it is blank.
    """
    names = names_of(name)
    if len(names) > 1 or name.strip() == ".":
        return names
    return "".join(names) or None


def with_whole_name(memories: "Memories", tags: Mapping[str, str]) -> Mapping[str, str]:
    """Return a filter's tags in which the working folder's project has its whole name, as it has in
    new memories; see `origin.with_whole_name`.
    """

    def find_projects() -> Mapping[str, int]:
        """Return the projects in use; none if only the scratchpad can answer, so that the name
        means the working folder's project, which is the most likely one.
        """
        return memories.ask_store(lambda: memories.tags("project"), dict[str, int])[0]

    if "project" not in tags:
        return tags
    return origin.with_whole_name(tags, memories.place, find_projects)


def name_project(name: str) -> tuple[str | None, bool]:
    """Return the current name of a project that a user named, and whether that name may be only the
    end of the full name.

    Args:
        name: As for `find_project`.
    """
    project = find_project(name)
    if isinstance(project, tuple):
        return project[0], False
    return project, project is not None


def names_of(project: str | None) -> tuple[str, ...]:
    """Return a project's names, the current one first; `.` means the working folder's project.

    Args:
        project: The name given by a user; None or blank means no project.

    Raises:
        InvalidInput: The working folder has no project.
        ConfigError: The user's aliases can't be read.
    """
    if project is None or not project.strip():
        return ()
    from memories.config import registers
    from memories.identity import registry

    name = project.strip()
    if name == ".":
        name = origin.present(_look(None)).project
    return tuple(registry.names_of(name, registry.aliases(registers())))
