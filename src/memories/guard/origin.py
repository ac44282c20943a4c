"""Who wrote a record: told by the program that stores it, and kept in labels that no tag can be. No
writer sets it.
"""

import functools
import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from memories.errors import InvalidInput
from memories.languages.unseen import is_unseen

USER, AGENT, CAPTURED, IMPORTED = TRUSTS = ("user", "agent", "captured", "imported")
CHANNELS = ("cli", "python", "mcp", "hook", "import", "http", "page", "chat")

_RESERVED = "="  # no key of a tag can hold it
# The first two can be filtered by, the third has the rest.
TRUST, BY, VIA = "=trust", "=by", "=via"
BRANCH = "=branch"  # of git, if the writer was on one
# What had to wait for a review has the one, now and later; what a foreign file brought has the id
# of its import.
HELD, IMPORT = "=held", "=import"
PINNED = "=pinned"  # a memory that has it stays in the scratchpad of its namespace
# Each part after the first of a long message has both: the index of the first one, and that it is
# one.
PART, CONTINUED = "=part", "=continued"
_KEPT = (HELD, IMPORT, PINNED, PART, CONTINUED)  # of what a record says itself
_BAR = "|"
# What a hook or an import brought was decided by nobody; on the page a person writes, who has
# signed in.
_TRUST_OF = {"hook": CAPTURED, "import": IMPORTED, "page": USER}
# Together they fit into a label; the names of machines and users may be anything.
_MOST_BRANCH = 250
_MOST = {"client": 64, "user": 32, "host": 50, "program": 20, "namespace": 63}
# Variables that are set by what runs commands for a model; people set CODEX_HOME themselves.
_HARNESSES = frozenset(
    "AI_AGENT CLAUDECODE CODEX COPILOT_CLI CURSOR_AGENT GEMINI_CLI OPENCODE QWEN_CODE".split()
)
_HARNESSES_BEGIN, _SET_BY_PEOPLE = ("CODEX_", "CLINE_"), ("CODEX_HOME",)


class Origin(NamedTuple):
    """Who wrote a version of a memory, or a turn.

    Attributes:
        trust: `user`, a person at a terminal or on the page; `agent`, a program; `captured`, what a
            hook took down; or `imported`.
        channel: `cli`, `python`, `mcp`, `hook`, `import`, `http`, `page` or `chat`.
        by: The name that the MCP client gave itself, else the user of the operating system.
        client: Name and version of the MCP client; None for other channels.
        user: The user of the operating system.
        host: The name of the machine.
        program: The version of this program.
        namespace: The writer's own namespace, also when it wrote to another.
        branch: The git branch that was checked out where it was written; None if there was none.
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


class Place(NamedTuple):
    """Where a program works.

    Attributes:
        project: The project, for the tag of that name.
        branch: The git branch that is checked out, if there is one.
    """

    project: str
    branch: str | None = None

    def tags(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return tags with the project, unless they name one or are valid in all; what is no
        mapping as it is.
        """
        if (
            not isinstance(given, Mapping)
            or "project" in given
            or str(given.get("global")).lower() == "true"
        ):
            return given
        return {**given, "project": self.project}


def origin(
    channel: str, namespace: str, client: tuple[str, str] | None = None, branch: str | None = None
) -> Origin:
    """Return the origin of what this process writes.

    Args:
        channel: How it is written; see `Origin`.
        namespace: The process's own namespace.
        client: The name and the version that an MCP client gave itself.
        branch: The git branch that is checked out.
    """
    name, version = (_plain(text, _MOST["client"]) for text in client or ("", ""))
    called = _plain(f"{name} {version}", _MOST["client"]) or None
    known = {"user": user(), "host": host(), "program": program(), "namespace": namespace}
    rest = {part: _plain(text, _MOST[part]) for part, text in known.items()}
    trust = _TRUST_OF.get(channel, USER if channel == "cli" and is_person() else AGENT)
    return Origin(
        trust,
        _plain(channel, 16),
        name or rest["user"],
        called,
        **rest,
        branch=_plain(branch or "", _MOST_BRANCH) or None,
    )


def stamped(labels: Mapping[str, str], origin: Origin) -> Mapping[str, str]:
    """Return the labels of a record with an origin, whatever they say of one themselves."""
    held = {key: labels[key] for key in _KEPT if key in labels}
    return {**tags_of(labels), **held, **_labels(origin)}


def origin_of(labels: Mapping[str, str]) -> Origin | None:
    """Return the origin that the labels of a record tell; None if it was written before there were
    any.
    """
    if VIA not in labels:
        return None
    return _read(labels.get(TRUST, ""), labels.get(BY, ""), labels[VIA], labels.get(BRANCH) or None)


def labels_for(written_by: str | None, trust: str | None) -> dict[str, str]:
    """Return the labels that a record has if it was written by someone, with a trust; None stands
    for anyone, any.
    """
    by = None if written_by is None else _plain(written_by, _MOST["client"])
    return {key: value for key, value in ((BY, by), (TRUST, trust)) if value is not None}


def writer(origin: Origin | None) -> dict[str, str]:
    """Return who wrote something as a model is shown it: by name, and how far it is trusted if that
    is unusual.
    """
    if origin is None:
        return {}
    return {"by": origin.by} | ({} if origin.trust == AGENT else {"trust": origin.trust})


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels without those of an origin."""
    return {
        key: value for key, value in labels.items() if key[:1] != _RESERVED
    }  # of thousands, and a call costs more


def is_reserved(key: str) -> bool:
    """Return whether a label is one of an origin, which no tag can be."""
    return key[:1] == _RESERVED


@functools.lru_cache(maxsize=64)
def _labels(origin: Origin) -> Mapping[str, str]:
    via = _BAR.join((origin.channel, *(getattr(origin, name) or "" for name in _MOST)))
    told = {TRUST: origin.trust, BY: origin.by, VIA: via}
    return told if origin.branch is None else told | {BRANCH: origin.branch}


@functools.lru_cache(maxsize=1_024)  # of thousands of records few differ
def _read(trust: str, by: str, via: str, branch: str | None) -> Origin | None:
    parts = via.split(_BAR)
    if trust not in TRUSTS or len(parts) != 1 + len(_MOST):
        return None
    channel, client, user, host, program, namespace = parts
    return Origin(trust, channel, by, client or None, user, host, program, namespace, branch)


def is_person() -> bool:
    """Return whether a person runs this command: its input and errors are a terminal, and no
    agent's variable is set.

    A program that captures what a command prints may still pass on the terminal it was started from
    as the input.
    """
    streams = (sys.stdin, sys.stderr)
    return agent_variable() is None and all(
        each is not None and not each.closed and each.isatty() for each in streams
    )


def agent_variable() -> str | None:
    """Return the variable that says that an agent runs this process; None if none is set."""
    for name, value in os.environ.items():
        begins = name.startswith(_HARNESSES_BEGIN) and name not in _SET_BY_PEOPLE
        if value and (begins or name in _HARNESSES):
            return name
    return None


def refuse_agent(decision: str) -> None:
    """Refuse to decide for an agent what only a person decides.

    Args:
        decision: What a person decides, the subject of a sentence.

    Raises:
        InvalidInput: An agent runs this process.
    """
    if variable := agent_variable():
        raise InvalidInput(
            f"{decision} is for a person to decide, and {variable} is set, so an agent runs this; "
            "a person runs it in a terminal without that variable"
        )


def _plain(text: str, most: int) -> str:
    """Return a name as one short line with nothing unseen in it, whatever a program called
    itself.
    """
    seen = "".join(" " if sign.isspace() or is_unseen(sign) else sign for sign in text[: 4 * most])
    line = " ".join(seen.replace(_BAR, "¦").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def program() -> str:
    """Return the version of this program."""
    version: str = sys.modules[
        "memories"
    ].__version__  # the package is loaded before each of its modules
    return version


@functools.cache
def user() -> str:
    """Return the user as the operating system names it."""
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
