"""Commands that show the state of a store and of the program: status, stats, log, config, trust."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memories.answers import store_shapes
from memories.answers.advice import complete_commands
from memories.cli.app import command, option
from memories.cli.options import (
    filtered_by,
    format_option,
    namespace_option,
    since_option,
    store_option,
    with_memories,
    with_settings,
)
from memories.cli.output import (
    DIM,
    GREEN,
    YELLOW,
    confirm,
    emit,
    format_time,
    paint,
    record_change,
    require_person,
    safe,
    table,
    unwatch,
)
from memories.errors import InvalidInput, NotFound, SystemFault
from memories.guard.validate import amount
from memories.models import LOG_ACTIONS, SHORT_ID

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.models import Change, LogCheck, LogEntry, Status
    from memories.settings import Config
    from memories.transfer.audit import LogFilters
    from memories.transfer.stats import Stats

_MAX_BARS = 21  # maximum number of rows in the chart; with more days, a row covers several
_MAX_CHANGES = 20  # maximum number of changes shown for one log entry
_MAX_FORKS = 10
_MAX_NAMES = 8  # maximum number of agents, projects or namespaces shown
_MAX_WIDTH, _MIN_WIDTH = 100, 30


# --- status ---


@command(epilog="memory status\nmemory status --format text")
@with_memories(reads_shared=True)
def status(memories: "Memories") -> int:
    """Check that the store works, and show what it contains.

    Exits with 1 if the store can't be used or is damaged; "error" says why.
    """
    unwatch()  # this command reports damage in its answer
    try:
        state = memories.status()
    except SystemFault as exc:
        message = str(exc)
        answer = store_shapes.unreachable(memories.config.store, message)
        emit(answer, f"unhealthy: {complete_commands(message)}", stream=sys.stderr)
        return 1
    problem = store_shapes.describe_problem(state) or _why_not_creatable(state.store)
    emit(store_shapes.status(state, problem), partial(_render_status, state, problem))
    return 1 if problem else 0


def _why_not_creatable(store: str) -> str:
    """Return the reason a local store can't be created; empty if it can be, or if it exists.

    To find out, a folder is created. Permissions prove nothing: even root can't write to /proc.
    """
    from memories.core.urls import local_path

    path = local_path(store)
    if path is None or os.path.lexists(path):
        return ""
    try:
        folder = next(folder for folder in path.parents if folder.exists())
        probe = folder / f".memories-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError as exc:
        return (
            f"cannot create {path}: {exc.strerror}; set MEMORY_HOME or MEMORY_STORE to a writable "
            "place"
        )
    return ""


def _render_status(state: "Status", problem: str) -> str:
    store = safe(state.store.removeprefix("sqlite:///"))
    if not problem and not state.schema_version:
        store += " (not created yet; the first memory creates it)"
    rows = {
        "status": f"unhealthy: {safe(complete_commands(problem))}"
        if problem
        else paint(GREEN, "healthy"),
        "store": store,
        "memories": f"{state.memory_count} in {', '.join(state.namespaces_read)}",
    }
    if state.turn_count:
        rows["turns"] = str(state.turn_count)
    rows["deleted"] = str(state.deleted_count)
    if state.pending_count:
        rows["pending"] = f"{state.pending_count}; to review: {complete_commands('memory review')}"
    if state.without_vector_count:
        rows["no vector"] = f"{state.without_vector_count} (found by words only)"
    rows["embedder"] = state.embedder
    if state.size_bytes is not None:
        rows["size"] = f"{state.size_bytes / 1e6:.1f} MB{', compact' if state.compact else ''}"
    if log := store_shapes.large_log(state):
        rows["log"] = (
            f"{log / 1e6:.1f} MB; grows while a process keeps a transaction open; stop that process"
        )
    if state.read_only:
        rows["access"] = "read only"
    if state.erasing:
        rows["erasing"] = "a forgotten memory still has bytes on disk; forget it again"
    return table(rows.items())


@command(epilog="memory config\nmemory config --format text")
@with_settings(namespace_option, store_option, format_option)
def config(settings: "Config") -> None:
    """Show every setting and where it came from."""
    emit(store_shapes.config(settings), partial(render_config, settings))


def render_config(settings: "Config") -> str:
    """Return every setting with its source as a table."""
    rows = []
    for row in store_shapes.config(settings)["settings"]:
        value = "-" if row["value"] is None else safe(str(row["value"]))
        source = paint(DIM, f"({row['source']})")
        rows.append((row["name"], f"{value}  {source}"))
    return table(rows)


# --- trust ---


@command(
    epilog="memory trust\nmemory trust ~/work/shop --yes\nmemory trust --revoke\n"
    "memory trust --list"
)
@click.argument("folder", default=".")
@option("--revoke", is_flag=True, help="Stop trusting the file.")
@option("--list", "lists", is_flag=True, help="List the trusted files.")
@option("--yes", is_flag=True, help="Do not ask; for your own scripts, not for agents.")
@format_option
def trust(folder: str, revoke: bool, lists: bool, yes: bool, output: str | None) -> None:  # noqa: ARG001 - the option itself sets the format
    """Trust the settings in a folder's .env file.

    An untrusted file can set only harmless settings, such as result limits and the output format;
    otherwise, a folder from elsewhere could choose where memories are stored and sent. Any change
    to the file revokes the trust. Only a person can trust a file; an agent is refused.
    """
    from memories.config import registers, variables_of
    from memories.core import trust as register

    if lists:
        files = register.approved_files(registers())
        rows = [{"file": file, "sha256": digest} for file, digest in files.items()]
        emit({"trusted": rows}, "\n".join(files) or "No file is trusted.")
        return
    path = Path(folder).expanduser()
    file = (path / ".env" if path.is_dir() else path).absolute()
    if revoke:
        if not register.revoke(file, registers()):
            raise NotFound(f"{file} is not trusted")
        record_change(f"{file} is no longer trusted")
        emit({"file": str(file), "trusted": False}, f"{file} is no longer trusted.")
        return
    if not file.exists():
        raise InvalidInput(f"{file} does not exist")
    require_person("whether to trust a .env file", yes=yes)
    names = variables_of(register.read(file, registers()).values)
    question = f"Trust {file}, which sets {', '.join(names) or 'nothing so far'}?"
    if yes or confirm(question, otherwise="Nothing was trusted."):
        digest = register.approve(file, registers())
        record_change(f"{file} is trusted")
        answer = {"file": str(file), "trusted": True, "sha256": digest, "settings": names}
        emit(answer, f"{file} is trusted in its current form.")


# --- statistics ---


@command(epilog="memory stats\nmemory stats --since 7d --format text")
@since_option
@with_memories(reads_shared=True)
def stats(memories: "Memories", since: str | None) -> None:
    """Show operations, their speed, and the most-read memories.

    Counts the operations recorded in events.jsonl, and the memories in your namespace and in
    shared.
    """
    figures = memories.stats(since=since)
    emit(
        store_shapes.stats(figures),
        partial(_render_stats, figures, chart=True),
        compact=partial(_render_stats, figures, chart=False),
    )


def _render_stats(figures: "Stats", *, chart: bool) -> str:
    import shutil  # imported late; only this command needs it

    columns = shutil.get_terminal_size((80, 24)).columns
    width = max(_MIN_WIDTH, min(_MAX_WIDTH, columns))
    count = amount(figures.memory_count, "memory", "memories")
    namespaces = ", ".join(map(safe, figures.namespaces))
    used = figures.memory_count - figures.never_used_count
    blocks = [f"{count} in {namespaces}, {used} read", _operations(figures), *_callers(figures)]
    if chart and figures.per_day:
        blocks.append(_chart(figures.per_day, width))
    uses = {"most used": figures.most_used, "never used, oldest first": figures.never_used}
    for title, memories in uses.items():
        if not memories:
            continue
        rows = [title]
        for memory in memories:
            content = store_shapes.shorten(memory.content, width - 28)
            rows.append(f"{memory.access_count:>6}  {memory.id[:SHORT_ID]}  {content}")
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks)


def _operations(figures: "Stats") -> str:
    if not figures.operations:
        return "No operations have been recorded."
    heads = ("operation", "count", "failed", "p50 ms", "p95 ms", "results", "written", "tokens")
    rows: list[tuple[str, ...]] = [heads]
    for operation in figures.operations:
        name, total, failed, p50, p95, *counts = operation
        times = (_milliseconds(p50), _milliseconds(p95))
        rows.append((safe(name), str(total), str(failed), *times, *map(str, counts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    tokens = amount(figures.tokens, "token", "tokens")
    assert figures.noted_since is not None  # None only if there are no operations
    lines = [f"since {format_time(figures.noted_since)}: {tokens} given to models"]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _callers(figures: "Stats") -> Iterator[str]:
    """Yield lines with the number of operations of each agent, project and namespace."""
    groups = {
        "agent": figures.agents,
        "project": figures.projects,
        "namespace": figures.by_namespace,
    }
    for title, counts in groups.items():
        if not any(counts):
            continue
        names = [f"{safe(name) or '(unknown)'} {count}" for name, count in counts.items()]
        parts = names[:_MAX_NAMES]
        if len(names) > _MAX_NAMES:
            parts.append(f"{len(names) - _MAX_NAMES} others")
        yield f"operations by {title}: {', '.join(parts)}"


def _chart(per_day: Mapping[str, int], width: int) -> str:
    """Draw a bar for each day or group of days; the longest bar fills the available width."""
    days = list(per_day.items())
    size = -(-len(days) // _MAX_BARS)
    rows = []
    for start in range(0, len(days), size):
        part = days[start : start + size]
        rows.append((part[0][0], sum(count for _, count in part)))
    largest = max(count for _, count in rows)
    digits = len(str(largest))
    room = width - len("2026-01-01  ") - digits - 2
    title = "memories per day"
    if size > 1:
        title = f"memories per {size} days, starting on the day shown"
    lines = [title]
    for day, count in rows:
        length = max(1, round(room * count / largest)) if count else 0
        lines.append(f"{day}  {count:>{digits}}  {'#' * length}".rstrip())
    return "\n".join(lines)


# --- audit log ---


@command(
    epilog="memory log --since 7d --action forget\nmemory log 01a1fdf1-92cd-72f2\n"
    "memory log --verify"
)
@click.argument("memory_id", metavar="[ID]", required=False)
@option(
    "--conversation", metavar="NAME", section="Filters", group="filters",
    help="Only changes to this conversation, even if it was forgotten.",
)  # fmt: skip
@option(
    "--action", metavar="ACTION", values=LOG_ACTIONS, section="Filters", group="filters",
    help="Only changes of this kind, such as create, reinforce or forget.",
)  # fmt: skip
@filtered_by("since", "until", "limit")
@option(
    "--verify", is_flag=True, section="Check",
    help="Check that no entry was changed, moved or removed.",
)  # fmt: skip
@option(
    "--against", metavar="HASH", section="Check",
    help=(
        "With --verify: a head that an earlier check printed. Also check that no entry before that "
        "head was rewritten or removed."
    ),
)  # fmt: skip
@with_memories(reads_shared=True)
def log(
    memories: "Memories",
    memory_id: str | None,
    verify: bool,
    against: str | None,
    filters: "LogFilters",
) -> int:
    """Show who changed what and when, and verify the log.

    Shows the newest entries first, one for each transaction, without any content. For a forgotten
    memory, the log keeps only the ID, the number of versions, who forgot it and when. With
    --verify, exits with 1 if the log is not intact.
    """
    if not verify:
        if against is not None:
            raise InvalidInput("--against requires --verify")
        entries = memories.log(memory_id, **filters)
        emit(store_shapes.log_entries(entries), partial(_render_entries, entries))
        return 0
    if memory_id is not None or filters:
        raise InvalidInput("--verify checks the entire log; omit the filters")
    checks = memories.verify_log(against=against)
    emit(store_shapes.log_checks(checks), partial(_render_checks, checks))
    return 1 if any(check.problem for check in checks) else 0


def _render_entries(entries: "Sequence[LogEntry]") -> str:
    from memories.cli.text import NOTHING
    from memories.models import SHARED

    if not entries:
        return NOTHING
    blocks = []
    for entry in entries:
        actor = f"{entry.actor.user}@{entry.actor.host} by {entry.actor.channel}"
        if entry.namespace != SHARED:
            actor += f" in {entry.namespace}"
        head = safe(f"{entry.number}  {format_time(entry.at)}  {actor}")
        lines = [paint(DIM, head)]
        lines += [f"  {_render_change(change)}" for change in entry.changes[:_MAX_CHANGES]]
        if len(entry.changes) > _MAX_CHANGES:
            lines.append(f"  and {len(entry.changes) - _MAX_CHANGES} more")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _render_change(change: "Change") -> str:
    if change.action == "undone":
        return f"undone: entry {change.first} was not stored after all"
    kind = "version" if change.id is not None else "turn"
    span = f"{kind} {change.first}"
    if change.first != change.last:
        span = f"{kind}s {change.first} to {change.last}"
    return safe(f"{change.action} {change.id or change.conversation} ({span})")


def _render_checks(checks: "Sequence[LogCheck]") -> str:
    blocks = []
    for check in checks:
        state = paint(GREEN, "intact")
        if check.problem:
            state = paint(YELLOW, f"broken: {safe(check.problem)}")
        rows = {"log of": f"{safe(check.namespace)}: {state}", "entries": str(check.entries)}
        if check.since:
            rows["since"] = format_time(check.since)
        if check.until:
            rows["until"] = format_time(check.until)
        if check.head:
            rows["head"] = check.head
        if check.forks:
            forks = ", ".join(map(str, check.forks[:_MAX_FORKS]))
            rows["forked"] = f"at {forks}: two copies were merged"
        blocks.append(table(rows.items()))
    return "\n\n".join(blocks)


COMMANDS = (status, config, trust, stats, log)
