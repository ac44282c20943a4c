"""The origin of a record: its writer, its source, and how far it is trusted.

The program that stores a record sets its origin in reserved labels, so a writer can't choose it.
"""

import functools
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from memories.errors import InvalidInput
from memories.languages import is_unseen

USER, AGENT, CAPTURED, IMPORTED = TRUSTS = ("user", "agent", "captured", "imported")

_RESERVED = "="  # no tag key can begin with this
# Stores filter by TRUST and BY. VIA contains the rest of the origin, such as the channel, joined by
# `|`; stores can't filter by a part of it.
TRUST, BY, VIA = "=trust", "=by", "=via"
BRANCH = "=branch"  # the writer's git branch, if any
# HELD marks a record that awaits or has passed review; IMPORT is the id of an import.
HELD, IMPORT = "=held", "=import"
IMPORTED_AS = "=as"  # hash of a statement, by which later imports recognize it
PINNED = "=pinned"  # keeps a memory in its namespace's scratchpad
# Every part of a long message except the first has the index of the first part, and a mark.
PART, CONTINUED = "=part", "=continued"
_OWN_LABELS = (HELD, IMPORT, IMPORTED_AS, PINNED, PART, CONTINUED)  # set by the program
_BAR = "|"
# No person decides what hooks and imports write. On the web page, a signed-in person writes.
_TRUST_OF = {"hook": CAPTURED, "import": IMPORTED, "page": USER}
# Names are truncated, since they must all fit into one label, and some can be of any length.
_MAX_LENGTHS = {
    "channel": 16,
    "client": 64,
    "user": 32,
    "host": 50,
    "program": 20,
    "namespace": 63,
    "branch": 250,
}
_VIA_PARTS = ("channel", "client", "user", "host", "program", "namespace")
# Variables that programs set when running commands for a model. CODEX_HOME is not among them, since
# people set it themselves.
_AGENT_VARIABLES = frozenset(
    "AI_AGENT CLAUDECODE CODEX COPILOT_CLI CURSOR_AGENT GEMINI_CLI OPENCODE QWEN_CODE".split()
)
_AGENT_PREFIXES, _SET_BY_PEOPLE = ("CODEX_", "CLINE_"), ("CODEX_HOME",)


class Origin(NamedTuple):
    """Who wrote a version of a memory, or a turn.

    Attributes:
        trust: `user`, a person at a terminal or on the page; `agent`, a program; `captured`, a
            hook; or `imported`.
        channel: `cli`, `python`, `mcp`, `hook`, `import`, `http`, `page`, `chat`, or a program's
            own name.
        by: The name that the MCP client gives itself, else the operating-system user.
        client: Name and version of the MCP client; None for other channels.
        user: The operating-system user.
        host: The name of the machine.
        program: The version of the program that wrote it, such as `0.1.0`.
        namespace: The writer's own namespace, even if it wrote to another one.
        branch: The git branch checked out where it was written, if any.
        import_id: The import that wrote it, if any. It is only written, as the label `IMPORT`.
    """

    trust: str
    channel: str
    by: str
    client: str | None
    user: str
    host: str
    program: str
    namespace: str
    branch: str | None = None
    import_id: str | None = None


class Place(NamedTuple):
    """The place where a program works: its project, branch and working tree.

    Attributes:
        project: The project's name, the value of the tag `project`.
        branch: The checked-out git branch, if any.
        root: The root folder of the working tree; None if no anchors are checked there.
        aliases: Other names for the project.
    """

    project: str
    branch: str | None = None
    root: Path | None = None
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the project, current and former."""
        return (self.project, *self.aliases)

    def root_of(self, project: str) -> Path | None:
        """Return the top folder of a project's working tree, if the program runs in it."""
        return self.root if project in self.names else None

    def tags(self, tags: Mapping[str, str]) -> Mapping[str, str]:
        """Return tags with the project added, unless they contain a project or are global."""
        if not isinstance(tags, Mapping) or "project" in tags:
            return tags
        if str(tags.get("global")).lower() == "true":
            return tags
        return {**tags, "project": self.project}


def present(place: Place | None) -> Place:
    """Return the place that the project `.` means.

    Raises:
        InvalidInput: There is none.
    """
    if place is None:
        raise InvalidInput(
            "\".\" means the working folder's project, and there is none; give the project's name"
        )
    return place


def with_whole_name(
    tags: Mapping[str, str], place: Place | None, find_projects: Callable[[], Collection[str]]
) -> Mapping[str, str]:
    """Return tags in which the place's project has its whole name. It may be named `.`, or by the
    end of its name unless a project has that name.

    Args:
        tags: The tags.
        place: The place where the program works, if any.
        find_projects: Returns the names of the projects in use.

    Raises:
        InvalidInput: The project is `.`, and there is no place.
    """
    name = str(tags.get("project", "")).strip()
    if name == ".":
        return {**tags, "project": present(place).project}
    if place is None or not place.project.endswith(f"/{name}") or name in find_projects():
        return tags
    return {**tags, "project": place.project}


def roots(find_place: Callable[[], Place | None]) -> Callable[[str], Path | None]:
    """Return a function that does the same as `Place.root_of` for the current place.

    Args:
        find_place: Returns the place where the program works now.
    """

    def root_of(project: str) -> Path | None:
        place = find_place()
        return None if place is None else place.root_of(project)

    return root_of


def origin(
    channel: str, namespace: str, client: tuple[str, str] | None = None, branch: str | None = None
) -> Origin:
    """Return the origin of this process's writes.

    Args:
        channel: The channel of the writes; see `Origin`.
        namespace: The process's own namespace.
        client: An MCP client's own name and version.
        branch: The checked-out git branch.
    """
    name, version = client or ("", "")
    name, version = _clean(name, "client"), _clean(version, "client")
    user_name = _clean(user(), "user")
    trust = _TRUST_OF.get(channel, AGENT)
    if channel == "cli" and is_person():
        trust = USER
    return Origin(
        trust,
        _clean(channel, "channel"),
        by=name or user_name,
        client=_clean(f"{name} {version}", "client") or None,
        user=user_name,
        host=_clean(host(), "host"),
        program=_clean(program(), "program"),
        namespace=_clean(namespace, "namespace"),
        branch=_clean(branch or "", "branch") or None,
    )


def stamp_labels(labels: Mapping[str, str], origin: Origin) -> Mapping[str, str]:
    """Return a record's labels with this origin instead of any former one."""
    notes = {key: labels[key] for key in _OWN_LABELS if key in labels}
    return {**tags_of(labels), **notes, **_origin_labels(origin)}


def origin_of(labels: Mapping[str, str]) -> Origin | None:
    """Return the origin in a record's labels; None if it is missing, as in old stores."""
    if VIA not in labels:
        return None
    return _parse(labels.get(TRUST, ""), labels.get(BY, ""), labels[VIA], labels.get(BRANCH))


def labels_for(written_by: str | None, trust: str | None) -> dict[str, str]:
    """Return the labels of records with a given writer and trust; None means any."""
    labels = {}
    if written_by is not None:
        labels[BY] = _clean(written_by, "client")
    if trust is not None:
        labels[TRUST] = trust
    return labels


def describe_writer(origin: Origin | None) -> dict[str, str]:
    """Return the writer as shown to a model: the name, and the trust if it is unusual."""
    if origin is None:
        return {}
    if origin.trust == AGENT:
        return {"by": origin.by}
    return {"by": origin.by, "trust": origin.trust}


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the tags among a record's labels."""
    # inlined instead of calling `is_reserved`, since it runs for thousands of records
    return {key: value for key, value in labels.items() if key[:1] != _RESERVED}


def is_reserved(key: str) -> bool:
    """Return whether a label is reserved, and so can't be a tag's key."""
    return key[:1] == _RESERVED


@functools.lru_cache(maxsize=64)
def _origin_labels(origin: Origin) -> Mapping[str, str]:
    parts = [getattr(origin, name) or "" for name in _VIA_PARTS]
    labels = {TRUST: origin.trust, BY: origin.by, VIA: _BAR.join(parts)}
    if origin.branch is not None:
        labels[BRANCH] = origin.branch
    if origin.import_id is not None:
        labels[IMPORT] = origin.import_id
    return labels


@functools.lru_cache(maxsize=1_024)  # cached, since records share few origins
def _parse(trust: str, by: str, via: str, branch: str | None) -> Origin | None:
    parts = via.split(_BAR)
    if trust not in TRUSTS or len(parts) != len(_VIA_PARTS):
        return None
    channel, client, user, host, program, namespace = parts
    return Origin(
        trust, channel, by, client or None, user, host, program, namespace, branch or None
    )


def is_person() -> bool:
    """Return whether a person runs this command.

    A person does if standard input and standard error are both terminals, and no agent's
    environment variable is set.

    The input alone proves nothing: a program that captures the output may pass on its own terminal
    as the input.
    """
    if agent_variable() is not None:
        return False
    streams = (sys.stdin, sys.stderr)
    return all(stream is not None and not stream.closed and stream.isatty() for stream in streams)


def agent_variable() -> str | None:
    """Return the environment variable that shows that an agent runs this process, or None."""
    for name, value in os.environ.items():
        has_prefix = name.startswith(_AGENT_PREFIXES) and name not in _SET_BY_PEOPLE
        if value and (has_prefix or name in _AGENT_VARIABLES):
            return name
    return None


def refuse_agent(decision: str) -> None:
    """Refuse a decision that only a person may make.

    Args:
        decision: The decision, as the subject of a sentence.

    Raises:
        InvalidInput: An agent runs this process.
    """
    if variable := agent_variable():
        raise InvalidInput(
            f"{decision} is for a person to decide, but {variable} is set, so an agent is running "
            "this; a person can run it in a terminal without that variable"
        )


def _clean(text: str, kind: str) -> str:
    """Return a name as one short line without invisible characters."""
    max_length = _MAX_LENGTHS[kind]
    text = text[: 4 * max_length].replace(_BAR, "¦")
    unseen = {ord(character): " " for character in set(text) if is_unseen(character)}
    line = " ".join(text.translate(unseen).split())
    if len(line) <= max_length:
        return line
    return f"{line[: max_length - 1]}…"


def program() -> str:
    """Return the version of this program."""
    version: str = sys.modules["memories"].__version__  # Python loads a package before its modules
    return version


@functools.cache
def user() -> str:
    """Return the user's name in the operating system."""
    if os.name != "posix":
        return os.environ.get("USERNAME", "")
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user without a name, as in containers
        return str(os.getuid())


@functools.cache
def host() -> str:
    """Return the name of the machine."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform

    return platform.node()
