"""The command about use: stats, with a chart of the days on a terminal."""

import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from memories.answers import transfers
from memories.cli.options import command, in_session, since_option
from memories.cli.output import amount, emit, safe

if TYPE_CHECKING:
    from memories.memories import Memories
    from memories.transfer.stats import Stats

_ROWS = 21  # of the chart at most; a row stands for several days if there are more
_MOST_WIDTH, _LEAST_WIDTH = 100, 30
_NAMES = 8  # agents, projects, namespaces


@command(epilog="memory stats\nmemory stats --since 7d --format text")
@since_option
@in_session(reads=True)
def stats(memories: "Memories", since: str | None) -> None:
    """Show what was done, how fast, and what is used.

    Operations are those that are noted in events.jsonl; memories are those of your namespace and of shared.
    """
    found = memories.stats(since=since)
    emit(transfers.stats(found), lambda: _text(found, chart=True), compact=lambda: _text(found, chart=False))


def _text(found: "Stats", *, chart: bool) -> str:
    width = max(_LEAST_WIDTH, min(_MOST_WIDTH, shutil.get_terminal_size((80, 24)).columns))
    used = found.memory_count - found.never_used_count
    head = (
        f"{amount(found.memory_count, 'memory', 'memories')} in {', '.join(map(safe, found.namespaces))}, {used} read"
    )
    blocks = [head, _operations(found), *_names(found)]
    if chart and found.per_day:
        size = -(-len(found.per_day) // _ROWS)
        title = "memories per day" if size == 1 else f"memories per {size} days, from the day named"
        blocks.append("\n".join([title, *_bars(found.per_day, size, width)]))
    for title, some in (("most used", found.most_used), ("never used, the oldest", found.never_used)):
        if some:
            rows = (
                f"{each.access_count:>6}  {each.id[:18]}  {transfers.short(each.content, width - 28)}" for each in some
            )
            blocks.append("\n".join([title, *rows]))
    return "\n\n".join(block for block in blocks if block)


def _operations(found: "Stats") -> str:
    if not found.operations:
        return "No operation is noted."
    rows: list[tuple[str, ...]] = [("operation", "count", "failed", "p50 ms", "p95 ms", "results", "written", "tokens")]
    for each in found.operations:
        times = (_milliseconds(each.p50_ms), _milliseconds(each.p95_ms))
        rows.append((safe(each.name), *map(str, (each.total, each.failed, *times, *each[5:]))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows)
    since = f"since {found.noted_since}: {found.tokens} tokens given to models"
    return "\n".join([since, *lines])


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _names(found: "Stats") -> Iterable[str]:
    for title, counts in (("agent", found.agents), ("project", found.projects), ("namespace", found.by_namespace)):
        if any(counts):
            parts = [f"{safe(name) or '(unknown)'} {count}" for name, count in list(counts.items())[:_NAMES]]
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
        f"{day}  {count:>{digits}}  {'#' * max(count > 0, round(room * count / most))}".rstrip() for day, count in rows
    ]


COMMANDS = (stats,)
