"""Whether memory is on for a folder and a session, and as whom: what anybody may switch off, and
who may switch it on.

A file in a repository can only switch it off. What switches it on lies in the home of the user,
where no repository reaches: a session's own file, and the setting `capture_projects`.
"""

import os

from memories.hooks import place

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MARKER, VARIABLE, PROJECTS = ".memories-off", "MEMORY_OFF", "CAPTURE_PROJECTS"
EVERYWHERE = "*"
PROJECT = "project "  # what the line of a project begins with, among those of folders
_NO = ("", "0", "false", "no", "off")


class State:
    """How a session is switched.

    Attributes:
        on: Whether anything may be written or injected.
        capture: Whether what is said may be captured, if the hook is told to capture.
        why: Why it is off, or not captured, as a part of a sentence; empty if it is on.
        session: It is off only because this session asked for it, which the session may take back.
        namespace: The namespace that the session switched to; None if it did not.
    """

    __slots__ = ("capture", "namespace", "on", "session", "why")

    def __init__(
        self,
        *,
        on: bool,
        capture: bool,
        why: str,
        session: bool = False,
        namespace: str | None = None,
    ) -> None:
        """Set what is known."""
        self.on, self.capture, self.why, self.session, self.namespace = (
            on,
            capture,
            why,
            session,
            namespace,
        )

    def __bool__(self) -> bool:
        return self.on


def _off(why: str, *, session: bool = False, namespace: str | None = None) -> State:
    return State(on=False, capture=False, why=why, session=session, namespace=namespace)


def state(folder: str, session: str | None, environment: "Mapping[str, str]") -> State:
    """Return how memory is switched.

    Args:
        folder: Where the agent works.
        session: Host and id of its session, as `place.name_of` writes them; None for none.
        environment: The variables of the process.

    Raises:
        ValueError: The home or the user's `config.toml` can't be read.
        OSError: What is switched off can't be read.
    """
    if environment.get(VARIABLE, "").strip().lower() not in _NO:
        return _off(f"{VARIABLE} is set")
    above = list(_folders(folder))
    for each in above:
        if os.path.lexists(os.path.join(each, MARKER)):
            return _off(f"{os.path.join(each, MARKER)} is there")
    home = place.home(environment)
    if why := _switched_off(switched_off(home), above, environment):
        return _off(why)
    from memories.hooks.session import read

    known = read(home, session) if session else None
    if known is not None and known.off:
        return _off("this session switched it off", session=True, namespace=known.namespace)
    namespace = None if known is None else known.namespace
    why = refused(above, _projects(environment))
    return State(on=True, capture=not why, why=why, namespace=namespace)


def switched_off(home: str) -> set[str]:
    """Return where `memory off` was run: folders, and projects behind `project `; `*` stands for
    all.
    """
    try:
        with open(
            os.path.join(home, place.OFF), encoding="utf-8", errors="surrogateescape"
        ) as stream:
            return set(stream.read(1_048_576).split("\n")) - {""}
    except FileNotFoundError:
        return set()


def _switched_off(off: set[str], above: "list[str]", environment: "Mapping[str, str]") -> str:
    """Return why a folder, named first among those above it, is off by `memory off`; empty if it is
    not.

    Where the project of a folder can't be found out, it is off: somebody said no, and it may be
    here.
    """
    if EVERYWHERE in off:
        return "memory off --all was run"
    for each in above:
        if each in off:
            return f"memory off was run in {each}"
    if not any(each.startswith(PROJECT) for each in off):
        return ""  # finding the project of a folder costs as much as all the rest
    from pathlib import Path

    from memories.errors import ConfigError
    from memories.identity.project import identify

    home = Path(place.settings_folder(environment))
    try:
        found = identify(Path(above[0]), home, record=False)
        is_off = found is not None and bool(lines_of(off, found.name, home))
    except ConfigError as exc:
        return f"a project is off, and which one this is can't be told: {exc}"
    return f"memory off was run in the project {found.name}" if found is not None and is_off else ""


def lines_of(off: "Iterable[str]", name: str, home: "Path") -> set[str]:
    """Return those of what is switched off that mean a project, by any name that it ever had.

    Args:
        off: See `switched_off`.
        name: The project.
        home: Where the user's aliases are kept.

    Raises:
        ConfigError: They can't be read.
    """
    from memories.identity import registry

    known = registry.aliases(home)
    named = (each for each in off if each.startswith(PROJECT))
    return {each for each in named if registry.meant(each.removeprefix(PROJECT), known) == name}


def refused(folders: "list[str]", patterns: str) -> str:
    """Return why nothing is captured in a folder, by the setting `capture_projects`; empty if it
    is.

    Args:
        folders: The folder and those above it.
        patterns: Patterns of folders, separated by commas; a folder in one that matches does as
            well. What a `!` stands before is never captured. If there is any other, nothing else
            is.
    """
    wanted = [each.strip() for each in patterns.split(",") if each.strip()]
    if not wanted:
        return ""
    from fnmatch import fnmatchcase

    denied = [each[1:].strip() for each in wanted if each.startswith("!")]
    allowed = [each for each in wanted if not each.startswith("!")]
    for pattern in denied:
        path = os.path.expanduser(pattern).rstrip(os.sep)
        # A pattern without a folder is a name; whoever makes a folder chooses that, so a name only
        # refuses.
        if any(
            fnmatchcase(each if os.sep in path else os.path.basename(each), path)
            for each in folders
        ):
            return f"{PROJECTS} has !{pattern}"
    paths = [os.path.expanduser(each).rstrip(os.sep) or os.sep for each in allowed]
    if paths and not any(
        os.sep in path and fnmatchcase(each, path) for path in paths for each in folders
    ):
        return f"{PROJECTS} names other folders"
    return ""


def _projects(environment: "Mapping[str, str]") -> str:
    if PROJECTS in environment:
        return environment[PROJECTS]
    return str(place.own_settings(environment).get("capture_projects", ""))


def _folders(folder: str) -> "Iterator[str]":
    """Yield a folder and those above it, as it is written and as it is."""
    seen = set()
    for start in (os.path.abspath(folder), os.path.realpath(folder)):
        at = start
        while at not in seen:
            seen.add(at)
            yield at
            at = os.path.dirname(at)
