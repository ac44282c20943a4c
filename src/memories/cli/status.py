"""Commands that show the state of a store and of the program: status, stats, log, config, trust."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memories.answers import store_shapes
from memories.cli.options import (
    command,
    format_option,
    in_session,
    limit_option,
    namespace_option,
    option,
    since_option,
    store_option,
    until_option,
    whole_number,
    with_settings,
)
from memories.cli.output import amount, confirm, emit, require_person, safe, set_format, unwatch
from memories.cli.session import texts
from memories.errors import InvalidInput, NotFound, SystemFault

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Change, LogCheck, LogEntry
    from memories.settings import Config
    from memories.transfer.stats import Stats


@command(epilog="memory status\nmemory status --format text")
@in_session(reads=True)
def status(memories: "Memories") -> int:
    """Check that the store works, and show what it holds.

    Exits 1 if the store can't be used or is damaged; "error" says why.
    """
    unwatch()  # what is damaged is told in the answer
    try:
        found = memories.status()
    except SystemFault as exc:
        message = str(exc)
        emit(
            store_shapes.unreachable(memories.config.store, message),
            lambda: f"unhealthy: {message}",
            stream=sys.stderr,
        )
        return 1
    problem = store_shapes.describe_problem(found) or _why_not_creatable(found.store)
    emit(store_shapes.status(found, problem), lambda: texts().status(found, problem))
    return 1 if problem else 0


@command(epilog="memory config\nmemory config --format text")
@with_settings(namespace_option, store_option, format_option)
def config(found: "Config") -> None:
    """Show every setting and where it came from."""
    emit(store_shapes.config(found), lambda: texts().config(found))


def _why_not_creatable(store: str) -> str:
    """Return why a store on this machine can't be created; nothing if it can be, is there, or is on
    a server.

    Only trying tells: root may write everywhere, and yet not in /proc.
    """
    from memories.stores import local_path

    path = local_path(store)
    if path is None or os.path.lexists(path):
        return ""
    try:
        folder = next(folder for folder in path.parents if folder.exists())
        probe = folder / f".memories-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError as exc:
        return f"cannot create {path}: {exc.strerror}; set MEMORY_HOME or MEMORY_STORE to a place that can be written"
    return ""


@command(
    epilog="memory trust\nmemory trust ~/work/shop --yes\nmemory trust --revoke\nmemory trust --list"
)
@click.argument("folder", default=".")
@option("--revoke", is_flag=True, help="Take it back.")
@option("--list", "listed", is_flag=True, help="List what is trusted.")
@option("--yes", is_flag=True, help="Do not ask: in a script of your own. An agent can't.")
@format_option
def trust(folder: str, revoke: bool, listed: bool, yes: bool, output: str | None) -> None:
    """Let the .env of a folder choose every setting.

    Otherwise such a file may choose how many results there are and how they are printed, and
    nothing else: a folder that came from elsewhere could choose where memories are kept and sent.
    Any change of the file ends the trust. Only a person may do this: an agent is refused.
    """
    from memories.config import registers, variables_of
    from memories.core import trust as register

    if output is not None:
        set_format(output)
    if listed:
        files = register.approved_files(registers())
        rows = [{"file": file, "sha256": digest} for file, digest in files.items()]
        emit({"trusted": rows}, lambda: "\n".join(files) or "No file is trusted.")
        return
    given = Path(folder).expanduser()
    file = (given / ".env" if given.is_dir() else given).absolute()
    if revoke:
        if not register.revoke(file, registers()):
            raise NotFound(f"{file} is not trusted")
        emit({"file": str(file), "trusted": False}, lambda: f"{file} is no longer trusted.")
        return
    require_person("which settings a folder chooses", yes=yes)
    found = register.read(file, registers())
    names = variables_of(found.values)
    question = f"Let {file} choose {', '.join(names) or 'no setting so far'}?"
    if yes or confirm(question, otherwise="Nothing was trusted."):
        digest = register.approve(file, registers())
        shape = {"file": str(file), "trusted": True, "sha256": digest, "settings": names}
        emit(shape, lambda: f"{file} is trusted as it is now.")


_MAX_CHANGES = 20  # of an entry of the log
_ROWS = 21  # of the chart at most; a row stands for several days if there are more
_MOST_WIDTH, _LEAST_WIDTH = 100, 30
_NAMES = 8  # agents, projects, namespaces


@command(epilog="memory stats\nmemory stats --since 7d --format text")
@since_option
@in_session(reads=True)
def stats(memories: "Memories", since: str | None) -> None:
    """Show what was done, how fast, and what is used.

    Operations are those that are noted in events.jsonl; memories are those of your namespace and of
    shared.
    """
    found = memories.stats(since=since)
    emit(
        store_shapes.stats(found),
        lambda: _text(found, chart=True),
        compact=lambda: _text(found, chart=False),
    )


def _text(found: "Stats", *, chart: bool) -> str:
    import shutil

    width = max(_LEAST_WIDTH, min(_MOST_WIDTH, shutil.get_terminal_size((80, 24)).columns))
    used = found.memory_count - found.never_used_count
    head = f"{amount(found.memory_count, 'memory', 'memories')} in {', '.join(map(safe, found.namespaces))}, {used} read"
    blocks = [head, _operations(found), *_names(found)]
    if chart and found.per_day:
        size = -(-len(found.per_day) // _ROWS)
        title = "memories per day" if size == 1 else f"memories per {size} days, from the day named"
        blocks.append("\n".join([title, *_bars(found.per_day, size, width)]))
    for title, some in (
        ("most used", found.most_used),
        ("never used, the oldest", found.never_used),
    ):
        if some:
            rows = (
                f"{each.access_count:>6}  {each.id[:18]}  {store_shapes.shorten(each.content, width - 28)}"
                for each in some
            )
            blocks.append("\n".join([title, *rows]))
    return "\n\n".join(block for block in blocks if block)


def _operations(found: "Stats") -> str:
    if not found.operations:
        return "No operation is noted."
    rows: list[tuple[str, ...]] = [
        ("operation", "count", "failed", "p50 ms", "p95 ms", "results", "written", "tokens")
    ]
    for each in found.operations:
        times = (_milliseconds(each.p50_ms), _milliseconds(each.p95_ms))
        rows.append((safe(each.name), *map(str, (each.total, each.failed, *times, *each[5:]))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )
    since = f"since {found.noted_since}: {found.tokens} tokens given to models"
    return "\n".join([since, *lines])


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _names(found: "Stats") -> Iterable[str]:
    for title, counts in (
        ("agent", found.agents),
        ("project", found.projects),
        ("namespace", found.by_namespace),
    ):
        if any(counts):
            parts = [
                f"{safe(name) or '(unknown)'} {count}"
                for name, count in list(counts.items())[:_NAMES]
            ]
            more = f", {len(counts) - _NAMES} others" if len(counts) > _NAMES else ""
            yield f"operations by {title}: {', '.join(parts)}{more}"


def _bars(per_day: Mapping[str, int], size: int, width: int) -> list[str]:
    """Return a bar for each `size` days, the longest as wide as there is room."""
    days = list(per_day.items())
    parts = (days[at : at + size] for at in range(0, len(days), size))
    rows = [(part[0][0], sum(count for _, count in part)) for part in parts]
    most = max(count for _, count in rows)
    digits = len(str(most))
    room = width - len("2026-01-01  ") - digits - 2
    return [
        f"{day}  {count:>{digits}}  {'#' * max(count > 0, round(room * count / most))}".rstrip()
        for day, count in rows
    ]


_ACTIONS = tuple(
    "create update restore delete supersede reinforce turns forget import undone change".split()
)


@command(
    epilog="memory log --since 7d --action forget\nmemory log 01a1fdf1-92cd-72f2\nmemory log --verify"
)
@click.argument("memory_id", metavar="[ID]", required=False)
@option(
    "--conversation", metavar="NAME", section="Filters",
    help="Only changes of this conversation, even if it was forgotten.",
)  # fmt: skip
@option(
    "--action", metavar="ACTION", values=_ACTIONS, section="Filters",
    help="Only changes of this kind, such as create, reinforce or forget.",
)  # fmt: skip
@since_option
@until_option
@limit_option
@option(
    "--verify",
    is_flag=True,
    section="Check",
    help="Check that no entry was changed, moved or removed.",
)
@option(
    "--against", metavar="HASH", section="Check",
    help="With --verify: a head that an earlier check printed. It proves that nothing before it was rewritten or cut.",
)  # fmt: skip
@in_session(reads=True)
def log(
    memories: "Memories",
    memory_id: str | None,
    conversation: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
    limit: str | None,
    verify: bool,
    against: str | None,
) -> int:
    """Show who changed what and when; verify it.

    Newest first, one entry for each transaction, without any content. What was forgotten stays in
    the log as a fact: its ID, how many versions it had, who forgot it and when. With --verify,
    exits 1 if the log is not whole.
    """
    if not verify:
        if against is not None:
            raise InvalidInput("--against needs --verify")
        found = memories.log(
            memory_id,
            conversation=conversation,
            action=action,
            since=since,
            until=until,
            limit=whole_number(limit),
        )
        emit(store_shapes.log_entries(found), lambda: _log_text(found))
        return 0
    if any(given is not None for given in (memory_id, conversation, action, since, until, limit)):
        raise InvalidInput("--verify checks the whole log; leave out what narrows it")
    checks = memories.verify_log(against=against)
    emit(store_shapes.log_checks(checks), lambda: _check_text(checks))
    return 1 if any(check.problem for check in checks) else 0


def _log_text(found: "Sequence[LogEntry]") -> str:
    """Return entries of the audit log."""
    from memories.cli.text import _DIM, _dated, _paint
    from memories.models import SHARED

    if not found:
        return "Nothing here."
    blocks = []
    for entry in found:
        where = "" if entry.namespace == SHARED else f" in {entry.namespace}"
        who = f"{entry.actor.user}@{entry.actor.host} by {entry.actor.channel}{where}"
        head = f"{entry.number}  {_dated(entry.at)}  {who}"
        shown = [f"  {_change(change)}" for change in entry.changes[:_MAX_CHANGES]]
        more = len(entry.changes) - _MAX_CHANGES
        blocks.append(
            "\n".join(
                [_paint(_DIM, safe(head)), *shown, *([f"  and {more} more"] if more > 0 else [])]
            )
        )
    return "\n\n".join(blocks)


def _change(change: "Change") -> str:
    if change.action == "undone":
        return f"undone: entry {change.first} was not stored after all"
    what = "version" if change.id is not None else "turn"
    span = (
        f"{what} {change.first}"
        if change.first == change.last
        else f"{what}s {change.first} to {change.last}"
    )
    return safe(f"{change.action} {change.id or change.conversation} ({span})")


def _check_text(found: "Sequence[LogCheck]") -> str:
    """Return what checks of the audit log found."""
    from memories.cli.text import _GREEN, _YELLOW, _dated, _paint, _table

    blocks = []
    for each in found:
        state = (
            _paint(_YELLOW, f"broken: {safe(each.problem)}")
            if each.problem
            else _paint(_GREEN, "whole")
        )
        rows = [
            ("log of", f"{safe(each.namespace)}: {state}"),
            ("entries", str(each.entries)),
            ("since", _dated(each.since) if each.since else ""),
            ("until", _dated(each.until) if each.until else ""),
            ("head", each.head or ""),
            (
                "forked",
                f"at {', '.join(map(str, each.forks[:10]))}: two copies were merged"
                if each.forks
                else "",
            ),
        ]
        blocks.append(_table((name, value) for name, value in rows if value))
    return "\n\n".join(blocks)


COMMANDS = (status, config, trust, stats, log)
